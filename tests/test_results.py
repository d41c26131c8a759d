"""docs/results.md says what the records say."""

import json
from pathlib import Path

import pytest

from meanteacher.recipes import find
from meanteacher.recipes.describe import fingerprint

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = sorted((DOCS / "records" / "fast").rglob("record.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_every_record_of_a_fast_recipe_has_its_row(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    last = record["errors"]["last"]
    row = (
        f"| `{record['recipe']['name']}` | {record['seed']} | {record['steps']:,} | {last['student']['test']:.2%} | "
        f"{last['teacher']['test']:.2%} | {record['cpu_seconds'] / 60:.0f} |"
    )
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_every_record_is_of_the_recipe_as_it_is_and_of_a_commit(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["recipe"]["fingerprint"] == fingerprint(find(record["recipe"]["name"]))
    assert "dirty" not in record["environment"]["commit"]
