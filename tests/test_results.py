"""docs/results.md and the README say what the records say."""

import json
import statistics
from pathlib import Path
from typing import Any

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


# --- fits of photos ---------------------------------------------------------------------------------------------------

FITS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DOCS / "records/fit").glob("*.json"))
}
DRAWS = [FITS[f"flowers-{draw}-15"] for draw in range(3)]
every_fit = pytest.mark.parametrize("name", FITS)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def over_draws(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f} %"


def mean_over_classes(fit: dict[str, Any]) -> float:
    return statistics.mean(each["error"] for each in fit["test"]["per_class"])


@every_fit
def test_every_fit_has_its_row(name: str) -> None:
    fit = FITS[name]
    estimate = fit["estimate"][fit["answer"]["shipped"]]
    minutes, seconds = divmod(round(fit["timing"]["total_seconds"]), 60)
    row = (
        f"| `{name}` | {fit['plan']['minutes']:g} | {percent(fit['test']['error'])} | {fit['test']['n_judged']:,} | "
        f"{percent(estimate['error'])} ({100 * estimate['low']:.1f} to {percent(estimate['high'])}) | "
        f"{percent(fit['estimate']['supervised']['error'])} | {minutes} min {seconds} s |"
    )
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


@every_fit
def test_every_fit_was_made_by_a_commit_and_says_how_wrong_it_is(name: str) -> None:
    fit = FITS[name]
    assert "dirty" not in fit["environment"]["commit"]
    estimate = fit["estimate"][fit["answer"]["shipped"]]
    assert estimate["low"] <= fit["test"]["error"] <= estimate["high"] or name in OUTSIDE


OUTSIDE: set[str] = set()
"""Fits whose interval does not contain the error on the test photos; results.md says so."""


@pytest.mark.parametrize(
    ("what", "values"),
    [
        ("`meanteacher fit --minutes 15`", [fit["test"]["error"] for fit in DRAWS]),
        ("logistic regression, 160 pixels", [fit["baselines"]["standardised probe 160"] for fit in DRAWS]),
        ("logistic regression, 224 pixels", [fit["baselines"]["standardised probe 224"] for fit in DRAWS]),
        ("label spreading, 160 pixels", [fit["baselines"]["label spreading 160"] for fit in DRAWS]),
        ("label spreading, 224 pixels", [fit["baselines"]["label spreading 224"] for fit in DRAWS]),
        (
            "the best linear classifier we found, 224 pixels",
            [fit["baselines"]["probe of the fit 224"] for fit in DRAWS],
        ),
    ],
)
def test_flowers_over_three_draws(what: str, values: list[float]) -> None:
    row = f"| {what} | {' | '.join(map(percent, values))} | {over_draws(values)} |"
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")
    assert all(fit["test"]["error"] <= value for fit, value in zip(DRAWS, values, strict=True))


def test_strangers_and_unequal_labels_cost_what_the_page_says() -> None:
    equal, strangers, unequal = (FITS[f"flowers-{kind}"] for kind in ("equal", "strangers", "unequal"))
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    for row in (
        f"| 10 labels per class | {percent(equal['test']['error'])} | {percent(mean_over_classes(equal))} |",
        f"| the same, and 750 photos of no class | {percent(strangers['test']['error'])} | "
        f"{percent(mean_over_classes(strangers))} |",
        f"| 3 daisies, 30 tulips, 10 of the others | {percent(unequal['test']['error'])} | "
        f"{percent(mean_over_classes(unequal))} |",
    ):
        assert row in page
    assert strangers["test"]["error"] <= equal["test"]["error"] + 0.02
    assert mean_over_classes(unequal) <= mean_over_classes(equal) + 0.03


def test_the_readme_says_what_fits_of_flowers_gave() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    ours = [fit["test"]["error"] for fit in DRAWS]
    theirs = [fit["baselines"]["standardised probe 224"] for fit in DRAWS]
    assert f"| logistic regression on the features of the same network | {percent(statistics.mean(theirs))} |" in readme
    assert f"| **`meanteacher fit --minutes 15`** | **{percent(statistics.mean(ours))}** |" in readme
