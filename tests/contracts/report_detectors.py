"""What must hold of tables and pages: each number stands where its name says, and is the record's."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from fit_example import CLASS_NAMES, CONFUSION, as_fit, fit_example
from meanteacher.photos.pages import fit_page as page_module
from meanteacher.photos.pages.fit_page import since_sentence
from meanteacher.photos.pages.model_card import model_card
from meanteacher.records import Evaluation, Record
from meanteacher.report import answer, load_records, paired_difference, summarise, to_text
from meanteacher.report.compare import baselines
from meanteacher.report.figures import curve
from methods_page import gathered, load_gathered

# --- records of runs --------------------------------------------------------------------------------------------------

_ERRORS = {
    # (method, seed): student and teacher on test images, student and teacher on validation images
    ("supervised", 0): (0.31, 0.30, 0.41, 0.40),
    ("supervised", 1): (0.26, 0.24, 0.36, 0.34),
    ("supervised", 2): (0.28, 0.27, 0.38, 0.37),
    ("mean-teacher", 0): (0.22, 0.16, 0.32, 0.26),
    ("mean-teacher", 1): (0.15, 0.12, 0.25, 0.22),
    ("mean-teacher", 2): (0.19, 0.11, 0.29, 0.21),
}


def _content(method: str, seed: int) -> dict[str, Any]:
    student, teacher, student_kept, teacher_kept = _ERRORS[method, seed]
    return {
        "schema": 1,
        "recipe": {"name": f"made-up/{method}", "fingerprint": f"of-{method}", "fields": {"steps": 9}},
        "method": method,
        "seed": seed,
        "data": {
            "fingerprint": "made-up",
            "n_train": 100,
            "n_labelled": 10,
            "n_validation": 200,
            "n_test": 500,
            "class_names": ["left", "right"],
        },
        "split_fingerprint": f"split-{seed}",
        "environment": {"torch": "2"},
        "n_parameters": 7,
        "memory_bytes": 340_008,
        "processes": [{"from_step": 0, "n": 1}],
        "steps": 9,
        "skipped_steps": 0,
        "seconds": 4.2,
        "cpu_seconds": 4.1,
        "images_per_second": 10.0,
        "curve": [],
        "errors": {
            "last": {
                "step": 9,
                "student": {"test": student, "validation": student_kept},
                "teacher": {"test": teacher, "validation": teacher_kept},
            },
            # Chosen by looking: lower than what a run hands over.
            "best_validation": {
                "step": 4,
                "student": {"test": student / 2, "validation": student_kept / 2},
                "teacher": {"test": teacher / 2, "validation": teacher_kept / 2},
            },
        },
        "vitals": [],
        "alarms": [],
    }


def _records() -> list[Record]:
    """In an order of their own."""
    runs = list(reversed(_ERRORS))
    with tempfile.TemporaryDirectory() as folder:
        for number, (method, seed) in enumerate(runs):
            path = Path(folder) / f"{(5 * number) % 7}" / "record.json"
            path.parent.mkdir()
            path.write_text(json.dumps(_content(method, seed)))
        return load_records(folder)


def a_row_is_the_mean_and_deviation_over_runs() -> None:
    for row in summarise(_records()):
        runs = [errors for (method, _), errors in _ERRORS.items() if method == row.method]
        for k, (model, spread) in enumerate((("student", row.student), ("teacher", row.teacher))):
            values = [errors[k] for errors in runs]
            mean = sum(values) / 3
            deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
            assert spread is not None
            assert spread.mean == pytest.approx(mean), f"{row.method}: the mean of the {model} is another"
            assert spread.deviation == pytest.approx(deviation), f"{row.method}: the spread of the {model} is another"


def a_table_prints_the_student_and_the_teacher_under_their_names() -> None:
    header, *lines = [re.split(r" {2,}", line) for line in to_text(summarise(_records())).splitlines()]
    student, teacher = (header.index(f"{name} error, %") for name in ("Student", "Teacher"))
    printed = {line[0]: (_numbers(line[student]), _numbers(line[teacher])) for line in lines}
    assert printed == {
        "Supervised-only": ([28.3, 2.5], [27.0, 3.0]),
        "Mean Teacher": ([18.7, 3.5], [13.0, 2.6]),
    }, f"other numbers are printed: {printed}"


def runs_are_compared_seed_by_seed() -> None:
    """Teachers differ by -0.14, -0.12 and -0.16: the mean is -0.14, the variance 0.0004, the standard error 0.0115."""
    difference = paired_difference(_records(), "supervised", "mean-teacher")
    assert [(pair.seed, pair.baseline, pair.other) for pair in difference.pairs] == [
        (seed, _ERRORS["supervised", seed][1], _ERRORS["mean-teacher", seed][1]) for seed in range(3)
    ], "runs of different seeds are compared"
    assert difference.mean == pytest.approx(-0.14), "the difference is another"
    assert difference.standard_error == pytest.approx(0.02 / 3**0.5), "the standard error is another"


def the_answer_tells_whose_error_is_lower() -> None:
    first = answer(_records())[0]
    assert _numbers(first)[1:4] == [13.0, 27.0, 14.0], f"other numbers are told: {first}"
    assert "lower" in first, "the lower error is said to be the higher one"


def an_error_is_that_of_the_teacher_on_the_images_it_names() -> None:
    for run in _records():
        errors = _ERRORS[run.method, run.seed]
        assert run.error("test") == errors[1], "the error of another model, of other images or of a chosen step"
        assert run.error("validation") == errors[3], "the error of another model, of other images or of a chosen step"


def gathered_runs_are_the_runs() -> None:
    records = _records()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gathered.json"
        file.write_text(gathered(records))
        again = load_gathered(file)
    for before, after in zip(records, again, strict=True):
        assert (after.recipe.name, after.seed, after.data) == (before.recipe.name, before.seed, before.data)
        assert after.errors == before.errors, "errors have changed places"


def a_curve_is_the_mean_of_the_model_that_it_names() -> None:
    runs = [run for run in _records() if run.method == "mean-teacher"][:2]
    points = ([(100, 0.4, 0.3), (200, 0.3, 0.1)], [(100, 0.6, 0.5), (150, 0.5, 0.4), (200, 0.2, 0.15)])
    drawn = [
        replace(run, curve=tuple(Evaluation(step, "test", student, teacher) for step, student, teacher in its))
        for run, its in zip(runs, points, strict=True)
    ]
    for model, expected in (("student", {100: 50.0, 200: 25.0}), ("teacher", {100: 40.0, 200: 12.5})):
        found = {step: sum(errors) / len(errors) for step, errors in curve(drawn, "test", model).items()}
        assert found == pytest.approx(expected), f"the curve of the {model} is another: {found}"


def a_recipe_is_compared_with_the_baseline_of_its_task_and_change() -> None:
    names = {
        "fast/a-500": "mean-teacher",
        "fast/a-500+steps=9": "mean-teacher",
        "fast/b-40": "mean-teacher",
        "fast/a-500/supervised": "supervised",
        "fast/a-500/supervised+steps=9": "supervised",
        "fast/b-40/supervised": "supervised",
    }
    some = _records()[0]
    runs = [replace(some, recipe=replace(some.recipe, name=name), method=method) for name, method in names.items()]
    assert baselines(runs) == {
        "fast/a-500": "fast/a-500/supervised",
        "fast/a-500+steps=9": "fast/a-500/supervised+steps=9",
        "fast/b-40": "fast/b-40/supervised",
    }, "runs are compared with those of another task, or of another change"


RECORDS = (
    a_curve_is_the_mean_of_the_model_that_it_names,
    a_recipe_is_compared_with_the_baseline_of_its_task_and_change,
    a_row_is_the_mean_and_deviation_over_runs,
    a_table_prints_the_student_and_the_teacher_under_their_names,
    runs_are_compared_seed_by_seed,
    the_answer_tells_whose_error_is_lower,
    an_error_is_that_of_the_teacher_on_the_images_it_names,
    gathered_runs_are_the_runs,
)

# --- the report of a fit ----------------------------------------------------------------------------------------------


def _numbers(text: str) -> list[float]:
    """Every number of a text, whatever stands around it."""
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


class _Tables(HTMLParser):
    """The texts of each table's cells, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table":
            name = (dict(attrs).get("class") or "").split()[0]
            self._rows = self.tables.setdefault(name, [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._rows[-1][-1] += data


def _page(content: dict[str, Any]) -> dict[str, list[list[str]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "reliability_diagram", lambda _: Markup(""))
        html = page_module.fit_page(as_fit(content))
    tables = _Tables()
    tables.feed(html)
    return tables.tables


def the_page_prints_the_confusions_as_they_were_counted() -> None:
    header, *rows = _page(fit_example())["confusion"]
    assert tuple(name.strip() for name in header[1:]) == CLASS_NAMES
    for name, counts, row in zip(CLASS_NAMES, CONFUSION, rows, strict=True):
        assert row[0] == name
        assert tuple(0 if cell == "·" else int(cell) for cell in row[1:]) == counts, f"{name}: {row}"


def the_page_prints_each_class_with_its_own_numbers() -> None:
    fit = fit_example()
    for k, row in enumerate(fit["per_class"]):
        row["n_labelled"] = 50 + k
    _, *rows = _page(fit)["classes"]
    for row, counts, printed in zip(fit["per_class"], CONFUSION, rows, strict=True):
        wrong, n = sum(counts) - max(counts), sum(counts)
        error, *others = _numbers(" ".join(printed[1:]))
        assert printed[0] == row["name"]
        assert error == pytest.approx(100 * wrong / n, abs=0.51), f"{row['name']}: another error"
        assert others == [wrong, n, row["n_labelled"], 12.5, row["n_predicted"]], f"{row['name']}: {printed}"


def the_card_says_what_the_page_says() -> None:
    card = model_card(as_fit(fit_example()))
    lines = {line.split("|")[1].strip(): _numbers(line) for line in card.splitlines() if line.startswith("| ")}
    assert lines["oak leaf"][1:] == [6, 12, 50], "another class's numbers"
    # Four of twelve oak leaves are the most that were taken for anything.
    assert re.search(r"oak leaf mistaken for beech leaf: 4 of 12", card), "confusions are told the other way round"


def before_and_now_do_not_change_places() -> None:
    assert _numbers(since_sentence(as_fit(fit_example()))) == [35.0, 25.0, 60], "other numbers before and now"


FITS = (
    the_page_prints_the_confusions_as_they_were_counted,
    the_page_prints_each_class_with_its_own_numbers,
    the_card_says_what_the_page_says,
    before_and_now_do_not_change_places,
)
