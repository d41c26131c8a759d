"""docs/results.md says what the records say."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from meanteacher.experiment.describe import fingerprint
from meanteacher.formats import percent, percent_range
from meanteacher.recipes import find

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = sorted((DOCS / "records" / "fast").rglob("record.json"))
TASKS = {"fast/svhn-500": "SVHN, 500 labels", "fast/cifar10-4000": "CIFAR-10, 4000 labels"}
every_task = pytest.mark.parametrize("name", TASKS)


def errors(name: str) -> list[float]:
    """The teacher's, of every seed that was run."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS]
    found = sorted((record for record in found if record["recipe"]["name"] == name), key=lambda record: record["seed"])
    return [record["errors"]["last"]["teacher"]["test"] for record in found]


def said(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread} %"


@every_task
def test_the_summary_is_that_of_the_records(name: str) -> None:
    ours, baseline = errors(name), errors(f"{name}/supervised")
    row = f"| {TASKS[name]} | {said(baseline)} | {len(baseline)} | {said(ours)} | {len(ours)} |"
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


@every_task
def test_the_curve_is_that_of_the_records(name: str) -> None:
    curve = [errors(f"{name}{part}")[:1] for part in ("/minutes-1", "/minutes-3", "/minutes-10", "", "/minutes-60")]
    row = f"| {TASKS[name]} | {' | '.join(said(error) if error else 'not run yet' for error in curve)} |"
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_every_record_of_a_fast_recipe_has_its_row(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    last = record["errors"]["last"]
    row = (
        f"| `{record['recipe']['name']}` | {record['seed']} | {record['steps']:,} | "
        f"{100 * last['student']['test']:.2f} % | {100 * last['teacher']['test']:.2f} % | "
        f"{record['cpu_seconds'] / 60:.0f} |"
    )
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_every_record_is_of_the_recipe_as_it_is_and_of_a_commit(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["recipe"]["fingerprint"] == fingerprint(find(record["recipe"]["name"]))
    assert "dirty" not in record["environment"]["commit"]


FITS = sorted((DOCS / "records" / "fit").glob("*.json"))
DRAWS = [path for path in FITS if path.stem in {"flowers-0-15", "flowers-1-15", "flowers-2-15"}]


def fit_row(record: dict[str, Any]) -> str:
    """A row of the table of fits: everything in it is from the record."""
    kept = record["estimate"][record["answer"]["shipped"]]
    ten_lines = [record["baselines"].get(name) for name in ("standardised probe 160", "label spreading 160")]
    cells = [
        f"`{record['scenario']}`",
        f"{record['plan']['minutes']:g}",
        percent(record["test"]["error"]),
        f"{percent(kept['error'])} ({percent_range(kept['low'], kept['high'])})",
        percent(record["estimate"]["supervised"]["error"]),
        *("" if error is None else percent(error) for error in ten_lines),
    ]
    return f"| {' | '.join(cells)} |".replace("  ", " ")


@pytest.mark.parametrize("path", FITS, ids=lambda path: path.stem)
def test_every_record_of_a_fit_has_its_row(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert fit_row(record) in (DOCS / "results.md").read_text(encoding="utf-8")
    assert "dirty" not in record["environment"]["commit"]


def test_the_fits_of_three_draws_are_summarised_as_recorded() -> None:
    found = [json.loads(path.read_text(encoding="utf-8"))["test"]["error"] for path in DRAWS]
    assert len(found) == 3
    assert f"{said_short(found)} over three draws" in (DOCS / "results.md").read_text(encoding="utf-8")


def said_short(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f} %"
