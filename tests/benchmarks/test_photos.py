"""The page of whole fits is that of their records."""

import json
from pathlib import Path

from benchmarks.photos import RECORDS, TABLES, page


def test_the_page_has_the_means_of_each_set_and_says_whether_the_estimate_covers(tmp_path: Path) -> None:
    estimate = {"error": 0.2, "low": 0.1, "high": 0.3}
    about = {"estimate": estimate, "n_views": 6, "network": "Lite0", "seconds": 601.4}
    for draw, error in enumerate((0.15, 0.4)):
        name = f"flowers-{draw}-10"
        content = about | {"scenario": name, "error": error, "logistic regression": 0.25}
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    text = page(tmp_path)
    assert "| flowers-0-10 | 15.0 | 25.0 | -10.0 | 20.0 (10.0 to 30.0) | yes | 6, Lite0 | 601 |" in text
    assert "| flowers-1-10 | 40.0 | 25.0 | +15.0 | 20.0 (10.0 to 30.0) | no | 6, Lite0 | 601 |" in text
    assert "| flowers, mean | 27.5 | 25.0 | +2.5 |" in text
    assert "## 2 minutes" not in text


def test_eighteen_fits_are_in_the_tables() -> None:
    assert len(TABLES) == 18
    assert {minutes for _, minutes, _ in TABLES.values()} == {2, 10}


def test_the_page_in_the_documentation_is_that_of_the_records() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "experiments/whole-fits.md").read_text(encoding="utf-8") == page(RECORDS)
