"""docs/results.md and the README say what the records say."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest

import meanteacher as mt
from benchmarks import tables
from meanteacher.experiment.describe import fingerprint
from meanteacher.paper.scaled import scaled
from meanteacher.recipes import RECIPES, find

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
    estimate = fit["estimate"]["errors"][fit["answer"]["shipped"]]
    minutes, seconds = divmod(round(fit["timing"]["total_seconds"]), 60)
    row = (
        f"| `{name}` | {fit['plan']['minutes']:g} | {percent(fit['test']['error'])} | {fit['test']['n_judged']:,} | "
        f"{percent(estimate['error'])} ({100 * estimate['low']:.1f} to {percent(estimate['high'])}) | "
        f"{percent(fit['estimate']['errors']['supervised']['error'])} | {minutes} min {seconds} s |"
    )
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


@every_fit
def test_every_fit_was_made_by_a_commit_and_says_how_wrong_it_is(name: str) -> None:
    fit = FITS[name]
    assert "dirty" not in fit["environment"]["commit"]
    estimate = fit["estimate"]["errors"][fit["answer"]["shipped"]]
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


@pytest.mark.parametrize(
    ("what", "scenario"),
    [("the trial chooses the network", "svhn"), ("from scratch (`--backbone none`)", "svhn-scratch")],
)
def test_digits_with_and_without_a_trial(what: str, scenario: str) -> None:
    values = [FITS[f"{scenario}-{number}"]["test"]["error"] for number in (1, 2, 3)]
    row = f"| {what} | {' | '.join(map(percent, values))} | {over_draws(values)} |"
    assert row in (DOCS / "results.md").read_text(encoding="utf-8")


def test_the_readme_says_what_fits_of_flowers_gave() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    ours = [fit["test"]["error"] for fit in DRAWS]
    theirs = [fit["baselines"]["standardised probe 224"] for fit in DRAWS]
    assert f"| logistic regression on the features of the same network | {percent(statistics.mean(theirs))} |" in readme
    assert f"| **`meanteacher fit --minutes 15`** | **{percent(statistics.mean(ours))}** |" in readme


# --- tables -----------------------------------------------------------------------------------------------------------

TABLES = json.loads((DOCS / "records/tables.json").read_text(encoding="utf-8"))
OURS = "`MeanTeacherClassifier()`"


def mean_and_deviation(data: str, contender: str) -> tuple[float, float]:
    found = [split["test"] for split in TABLES["errors"][data][contender]]
    return statistics.mean(found), statistics.stdev(found)


@pytest.mark.parametrize("part", ["test", "unlabelled"])
def test_errors_on_tables_are_those_of_the_record(part: str) -> None:
    assert tables.table(TABLES, part) in (DOCS / "results.md").read_text(encoding="utf-8")
    assert TABLES["splits"] == list(tables.SPLITS)
    assert "dirty" not in TABLES["environment"]["commit"]


def test_on_digits_no_other_contender_is_better_by_more_than_its_spread() -> None:
    ours, _ = mean_and_deviation("digits", OURS)
    mean, deviation = min(mean_and_deviation("digits", contender) for contender in tables.CONTENDERS)
    assert ours <= mean + deviation


def test_the_readme_has_the_errors_on_digits() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    ours, supervised = (
        tables.said([split["test"] for split in TABLES["errors"]["digits"][contender]])
        for contender in (OURS, '`SemiSupervisedClassifier("supervised")`, the same network and steps')
    )
    assert f"it has {ours} test error, the same network without the unlabelled rows {supervised}." in readme


# --- scaled tables ----------------------------------------------------------------------------------------------------

SCALED = DOCS / "records" / "scaled"
MINUTES, SEEDS = 2.5, 2
SYSTEMS = {
    "Supervised-only": "supervised",
    "Pi model": "pi-model",
    "Temporal Ensembling": "temporal-ensembling",
    "VAT+EntMin": "vat-entmin",
    "Mean Teacher": "mean-teacher",
}
SCALED_TABLES = {"1": ("svhn-250", "svhn-500", "svhn-1000"), "2": ("cifar10-1000", "cifar10-4000")}
scaled_rows = pytest.mark.parametrize(
    ("table", "system"), [(table, system) for table in SCALED_TABLES for system in SYSTEMS]
)


def scaled_records(table: str, cell: str, system: str) -> list[dict[str, Any]]:
    """In the order of their seeds."""
    folder = SCALED / f"scaled-{MINUTES:g}-minutes" / f"table{table}" / cell / SYSTEMS[system]
    return [json.loads((folder / f"seed-{seed}" / "record.json").read_text(encoding="utf-8")) for seed in range(SEEDS)]


def scaled_row(table: str, system: str) -> str:
    cells = []
    for cell in SCALED_TABLES[table]:
        errors = [record["errors"]["last"]["teacher"]["test"] for record in scaled_records(table, cell, system)]
        cells.append(f"{100 * statistics.mean(errors):.1f} ± {100 * statistics.stdev(errors):.1f} %")
    return f"| {system} | {' | '.join(cells)} |"


@scaled_rows
def test_scaled_runs_of_every_system_have_their_row(table: str, system: str) -> None:
    assert scaled_row(table, system) in (DOCS / "results.md").read_text(encoding="utf-8")


@scaled_rows
def test_scaled_records_are_of_the_recipes_as_they_are_and_of_a_commit(table: str, system: str) -> None:
    for cell in SCALED_TABLES[table]:
        twin = scaled(RECIPES[f"table{table}/{cell}/{SYSTEMS[system]}"], MINUTES)
        for record in scaled_records(table, cell, system):
            assert record["recipe"]["fingerprint"] == fingerprint(twin)
            assert "dirty" not in record["environment"]["commit"]


@pytest.mark.parametrize("table", SCALED_TABLES)
def test_orderings_are_judged_as_the_command_judges_them(table: str, tmp_path: Path) -> None:
    shutil.copytree(SCALED, tmp_path / "runs")
    mt.table(table, scale=MINUTES, seeds=SEEDS, out=tmp_path / "runs", train=False)
    (written,) = (tmp_path / "runs").glob("table-*.md")
    judged = written.read_text(encoding="utf-8").partition("## Which orderings of the paper hold\n\n")[2]
    assert judged.count("\n") > 5
    assert judged in (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("letter", "setting", "named", "n"),
    # The paper's own weight, and the decay that changes in the run, are figure 4's own evaluation.
    [("c", "weight", "1", 7), ("d", "decay", "0.99, then 0.999", 9)],
)
def test_figure_4_is_that_of_its_records(letter: str, setting: str, named: str, n: int) -> None:
    folder = SCALED / f"scaled-{MINUTES:g}-minutes"
    runs = {path.name.removeprefix(f"{setting}-"): path for path in (folder / f"figure4{letter}").iterdir()}
    runs = dict(sorted(runs.items(), key=lambda run: float(run[0])))
    runs[named] = folder / "figure4" / "evaluation"
    if letter == "c":
        runs = dict(sorted(runs.items(), key=lambda run: float(run[0])))
    errors = {}
    for value, path in runs.items():
        record = json.loads((path / "seed-0" / "record.json").read_text(encoding="utf-8"))
        assert "dirty" not in record["environment"]["commit"]
        name = record["recipe"]["name"].removeprefix(f"scaled-{MINUTES:g}-minutes/")
        assert record["recipe"]["fingerprint"] == fingerprint(scaled(RECIPES[name], MINUTES))
        errors[value] = record["errors"]["last"]["teacher"]["validation"]
    assert len(errors) == n
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert f"| {setting} | {' | '.join(errors)} |" in page
    assert f"| Mean Teacher, scaled | {' | '.join(map(percent, errors.values()))} |" in page
    # The paper's optimum.
    assert min(errors, key=lambda value: errors[value]) == {"c": "1", "d": "0.999"}[letter]
