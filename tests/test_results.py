"""docs/results.md says what the records say."""

import json
import statistics
from pathlib import Path

import pytest

from meanteacher.experiment.describe import fingerprint
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
