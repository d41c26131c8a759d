"""Runs and their curves for other programs: CSV and JSON, in which errors are shares and not percentages."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from typing import Any

from meanteacher.records import Part, Record
from meanteacher.report.compare import Difference, baseline_differences, baselines, summarise
from meanteacher.report.page import comparable


def tabular(
    stem: str, records: Sequence[Record], part: Part = "test", settings: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, str]:
    """Name of a file -> its content: STEM.csv has a row per run, STEM-curves.csv one per evaluation, STEM.json all.

    Args:
        stem: of the names
        records: the complete runs
        part: the images of the differences
        settings: recipe -> the fields that a sweep has varied, and their values: further columns
    """
    settings = settings or {}
    runs = [_run(record, settings.get(record.recipe.name, {})) for record in records]
    curves = [{"recipe": r.recipe.name, "seed": r.seed, **asdict(point)} for r in records for point in r.curve]
    summary = []
    for group in comparable(records):
        partner, differences = baselines(group), baseline_differences(group, part)
        for row in summarise(group, part=part):
            difference = differences.get(row.recipe)
            compared = None if difference is None else _difference(difference, partner[row.recipe])
            summary.append({**asdict(row), "difference": compared})
    whole = {"part": part, "recipes": summary, "runs": runs, "curves": curves}
    return {
        f"{stem}.csv": _csv(runs),
        f"{stem}-curves.csv": _csv(curves),
        f"{stem}.json": json.dumps(whole, indent=2) + "\n",
    }


def _run(record: Record, settings: Mapping[str, str]) -> dict[str, Any]:
    last = record.errors.last
    return {
        "recipe": record.recipe.name,
        **settings,
        "method": record.method,
        "seed": record.seed,
        "n_labelled": record.data.n_labelled,
        "steps": record.steps,
        "student_test": last.student.test,
        "teacher_test": last.teacher.test,
        "student_validation": last.student.validation,
        "teacher_validation": last.teacher.validation,
        "seconds": record.seconds,
        "alarms": " ".join(alarm.kind for alarm in record.alarms),
        "recipe_fingerprint": record.recipe.fingerprint,
        "split_fingerprint": record.split_fingerprint,
    }


def _difference(difference: Difference, baseline: str | None) -> dict[str, Any]:
    interval = difference.interval
    ends = {} if interval is None else {"low": interval.low, "high": interval.high}
    return {"baseline": baseline, "mean": difference.mean, "n": difference.n, **ends}


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of one set of columns; None is an empty cell."""
    rows, text = list(rows), StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
