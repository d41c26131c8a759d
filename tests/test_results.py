"""docs/results.md is what its command writes; the README and the records say the same."""

import json
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import results
from meanteacher.experiment.describe import fingerprint
from meanteacher.paper.runs import recipe_names, runs_of
from meanteacher.recipes import find
from meanteacher.records import Record, load_records
from meanteacher.report.compare import percent_spread, spread
from record_support import write_record

DOCS = results.DOCS
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
FAST = load_records(DOCS / "records" / "fast")
DEMO = [record for name in ("demo", "demo-default") for record in load_records(DOCS / "records" / name)]
OTHERS = [record for record in load_records(DOCS / "records") if record.recipe.name.startswith(("laptop/", "compare/"))]
FITS: dict[str, Any] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DOCS / "records/photos").glob("*.json"))
}
TABLES = json.loads((DOCS / "records/tables.json").read_text(encoding="utf-8"))
OURS = results.ON_TABLES
CONFIRMED, CHOSEN = (results.OnTables(TABLES, part) for part in ("confirmed_on", "chosen_on"))
every_fit = pytest.mark.parametrize("name", FITS)


def named(record: Record) -> str:
    return f"{record.recipe.name} {record.seed}"


def test_the_page_is_what_the_command_writes() -> None:
    """If it fails: python docs/tools/results.py"""
    assert (DOCS / "results.md").read_text(encoding="utf-8") == results.page()


def test_the_readme_begins_with_the_results_of_the_records() -> None:
    """If it fails: python docs/tools/results.py"""
    assert results.readme(README) == README


def test_computation_of_the_paper_is_counted_from_both_recipes() -> None:
    """731 million multiplications per image and pass of the ConvNet, 33 million of FastNet, of which the fixed layer
    needs no gradient; 180,000 steps of 100 images, and 5,400 of 160."""
    assert round(results.computation("table1/svhn-500/mean-teacher", "fast/svhn-500")) == 487
    assert round(results.computation("table2/cifar10-4000/mean-teacher", "fast/cifar10-4000")) == 406


def test_a_changed_record_changes_its_row_and_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(results.RECORDS, tmp_path / "records")
    monkeypatch.setattr(results, "RECORDS", copy)
    path = copy / "photos" / "things-1-10.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    before = results.page()
    path.write_text(json.dumps(record | {"error": record["error"] - 0.02}), encoding="utf-8")
    (changed,) = set(results.page().splitlines()) - set(before.splitlines())
    assert changed.startswith("| 40 kinds of things, 6 or 8 labels each | 10 |")


@pytest.mark.parametrize("record", [*FAST, *OTHERS, *DEMO], ids=named)
def test_every_record_is_of_the_recipe_as_it_is_and_of_a_commit(record: Record) -> None:
    assert record.recipe.fingerprint == fingerprint(find(record.recipe.name))
    assert "dirty" not in str(record.environment["commit"])


# --- fits of photos ---------------------------------------------------------------------------------------------------


@every_fit
def test_every_fit_was_made_by_a_commit(name: str) -> None:
    assert "dirty" not in FITS[name]["environment"]["commit"]


@pytest.mark.parametrize("minutes", [10, 2])
@pytest.mark.parametrize("photos", results.SETS)
def test_fits_of_every_set_are_better_than_what_takes_ten_lines(photos: str, minutes: int) -> None:
    draws = [FITS[f"{photos}-{draw}-{minutes}"] for draw in range(3)]
    assert sum(fit["error"] - fit["logistic regression"] for fit in draws) / 3 < 0


def test_the_readme_says_what_whole_fits_gave() -> None:
    text = " ".join(README.split())
    for key, words in (("error", "test errors of"), ("logistic regression", "where logistic regression")):
        means = [100 * fmean(FITS[f"{photos}-{draw}-10"][key] for draw in range(3)) for photos in results.SETS]
        first, second, third = (f"{mean:.1f}" for mean in means)
        assert re.search(rf"{words}[^%]* {first}, {second} and {third} %", text)


# --- tables -----------------------------------------------------------------------------------------------------------


def errors_on(data: str, contender: str) -> list[float]:
    return [split["test"] for split in TABLES["errors"][data][contender]]


def test_the_record_of_tables_is_of_a_commit() -> None:
    assert "dirty" not in TABLES["environment"]["commit"]


def test_the_record_of_tables_has_at_least_twenty_sets_and_five_splits_of_each() -> None:
    assert len(TABLES["errors"]) >= 20
    assert len(CONFIRMED.errors) >= 10
    assert {len(splits) for found in TABLES["errors"].values() for splits in found.values()} == {5}
    assert not CONFIRMED.errors.keys() & CHOSEN.errors.keys()


def test_the_loss_on_a_set_is_the_difference_from_the_best_of_the_others() -> None:
    found = {"MeanTeacherClassifier": [0.3, 0.2], "one": [0.5, 0.3], "two": [0.1, 0.36]}
    splits = {name: [{"test": error, "chosen": "network"} for error in errors] for name, errors in found.items()}
    splits["MeanTeacherClassifier"][1]["chosen"] = "logistic regression"
    part = results.OnTables({"confirmed_on": ["some", "missing"], "errors": {"some": splits}}, "confirmed_on")
    assert part.points("some") == "+2.0"
    assert (part.close, part.ahead, part.n_simple) == (["some"], [], 1)
    assert "| some | 25.0 ± 7.1 | 40.0 ± 14.1 | 23.0 ± 18.4 | +2.0 |" in part.table()


def test_the_readme_has_the_errors_on_tables() -> None:
    ours, simple = (
        f"{percent_spread(spread(errors_on('digits', each)), 0)} %" for each in (OURS, "logistic regression")
    )
    text = README.replace("\n", " ")
    assert f"On digits it has {ours} test error, logistic regression {simple}." in text
    close, ahead, n = (len(each) for each in (CONFIRMED.close, CONFIRMED.ahead, CONFIRMED.errors))
    assert f"On {n} tables that its defaults were not chosen on" in text
    assert (
        f"at most 3 points behind the best of five classifiers of scikit-learn on {close}, and ahead of all on {ahead}"
        in text
    )


# --- the paper on a laptop --------------------------------------------------------------------------------------------

ERRORS = {"supervised": 0.3, "pi-model": 0.2, "temporal-ensembling": 0.25, "mean-teacher": 0.1}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records but for those of laptop versions, of ablations and of the comparison of all methods."""
    ignore = shutil.ignore_patterns("laptop", "ablation", "compare")
    monkeypatch.setattr(results, "RECORDS", shutil.copytree(results.RECORDS, tmp_path / "records", ignore=ignore))
    return results.RECORDS


def fill(records: Path, names: list[str], seeds: int | None = None) -> None:
    """Runs of these recipes, whose errors differ between the draws by more than between the systems."""
    for run in runs_of(names, seeds=seeds, out=records):
        write_record(run, ERRORS.get(run.name.rpartition("/")[2], 0.1) + 0.05 * run.seed)


def test_without_a_record_of_a_laptop_the_page_has_no_such_section(records: Path) -> None:
    assert "on a laptop" not in results.page()
    assert results.pictures() == {}


def test_some_records_of_a_laptop_are_shown_and_the_others_counted(records: Path) -> None:
    fill(records, [f"laptop/table1/svhn-250/{system}" for system in ("pi-model", "mean-teacher")], seeds=3)
    page = results.page()
    assert "| Mean Teacher | 15.00 ± 5.00 | – | – | – | 1.2 |" in page
    assert "Not complete: 51 runs." in page
    assert "1 of 1\norderings" in page
    assert "(figure-4" not in page
    assert "### Figure 4" not in page


def test_the_pi_model_is_also_read_where_the_paper_stops_it(records: Path) -> None:
    """After 100,000 of 180,000 steps with 250 labels: 3,333 of our 6,000. With 500 labels it goes on to the end."""
    names = [f"laptop/table1/svhn-{n}/{system}" for n in (250, 500) for system in ("supervised", "pi-model")]
    for run in runs_of(names, seeds=3, out=records):
        early = 0.25 + 0.01 * run.seed
        points = [(3000, "test", 0.1), (3400, "validation", 0.1), (3500, "test", early), (6000, "test", 0.3)]
        curve = [{"step": step, "part": part, "student": 0.5, "teacher": error} for step, part, error in points]
        write_record(run, 0.28 if "supervised" in run.name else 0.3, curve=curve)
    page = " ".join(results.page().split())
    assert (
        "at their end, where it is lower, the difference is −2.0 (−4.5 to +0.5) on SVHN with 250 labels. With" in page
    )
    assert "student against student the difference is +2.0 (+2.0 to +2.0) on SVHN with 250 labels and +2.0" in page


def test_orderings_that_do_not_hold_are_counted_by_verdict(records: Path) -> None:
    fill(records, [f"laptop/table1/svhn-250/{system}" for system in ("supervised", "mean-teacher")], seeds=2)
    fill(records, [f"laptop/table1/svhn-500/{system}" for system in ("supervised", "mean-teacher")], seeds=3)
    assert "1 of 2 (not known from fewer than 3 runs: 1)" in results.page()


def test_all_records_of_a_laptop_are_shown_with_orderings_curves_and_optima(records: Path) -> None:
    for parts in results.LAPTOP_TABLES.values():
        fill(records, recipe_names(parts))
    for name in results.FIGURE4:
        fill(records, recipe_names(results.LAPTOP_FIGURES[name]), seeds=1)
    (best,) = runs_of(["laptop/figure4d/decay-0.99"], seeds=1, out=records)
    write_record(best, 0.05)
    page = results.page()
    assert "| Temporal Ensembling | 30.00 ± 5.00 | 30.00 ± 5.00 | 30.00 ± 5.00 | 30.00 ± 5.00 | 1.2 |" in page
    assert "Not complete" not in page
    assert "12 of 12\norderings" in page
    assert all(f"(figure-{name}-laptop.svg)" in page for name in results.LAPTOP_FIGURES)
    assert "| SVHN, 250 labels | Mean Teacher than Pi model | −5.34 | −10.00 (−10.00 to −10.00) | 4 | yes |" in page
    assert (
        "| CIFAR-10, 4000 labels | Temporal Ensembling than Pi model | −1.04 | +5.00 (+5.00 to +5.00) | 3 | no |"
        in page
    )
    assert page.count("Mean Teacher minus Pi model is −10.00") == 3
    assert "| 4d | decay of the teacher's average | good decays span an order" in page
    assert "and others are much worse | 0.99 | 5.0 | 0.995 | 10.0 |" in page
    assert set(results.pictures()) == {f"figure-{name}-laptop.svg" for name in results.LAPTOP_FIGURES}


def test_a_part_of_figure_4_is_shown_if_every_setting_has_a_run(records: Path) -> None:
    fill(records, ["laptop/table1/svhn-250/mean-teacher"], seeds=1)
    names = recipe_names(results.LAPTOP_FIGURES["4d"])
    fill(records, names[:-1], seeds=1)
    assert "### Figure 4" not in results.page()
    fill(records, names, seeds=1)
    page = results.page()
    section = page.split("### Figure 4")[1].split("## Two moons")[0]
    assert [line[:4] for line in section.splitlines() if line.startswith("| 4")] == ["| 4d"]
    assert "in one run per setting, all with the same labels" in page
    assert "Not run on a laptop yet: 4a, 4b, 4c, 4e and 4f." in page
    assert "figure-4d-laptop.svg" in results.pictures()
    assert "figure-4c-laptop.svg" not in results.pictures()
    fill(records, names, seeds=2)
    assert "mean ± standard deviation over label draws. Differences" in results.page()


def test_the_page_says_if_uncoupled_outputs_do_best(records: Path) -> None:
    fill(records, ["laptop/table1/svhn-250/mean-teacher", *recipe_names(results.LAPTOP_FIGURES["4e"])], seeds=1)
    assert "Figure 4e differs" not in results.page()
    for name, error, is_said in (
        ("distance-0", 0.05, False),
        ("one-output-no-ramp-up", 0.2, True),
        ("distance-0-no-ramp-up", 0.3, False),
    ):
        (run,) = runs_of([f"laptop/figure4e/{name}"], seeds=1, out=records)
        write_record(run, error)
        assert ("Figure 4e differs" in results.page()) is is_said


def test_the_readme_begins_with_the_laptop_versions_if_there_are_three_draws_of_them(records: Path) -> None:
    assert "laptop" not in results.readme(README).split("## Install")[0]
    column = [f"laptop/table1/svhn-250/{system}" for system in ("supervised", "pi-model", "mean-teacher")]
    fill(records, column, seeds=2)
    assert "laptop" not in results.readme(README).split("## Install")[0]
    for parts in results.LAPTOP_TABLES.values():
        fill(records, recipe_names(parts))
    filled = results.readme(README)
    assert "| **Mean Teacher** | **17.5 %** | **17.5 %** | **17.5 %** | **15.0 %** |" in filled
    assert "| Mean Teacher minus Pi model | −10.0 ± 0.0 |" in filled
    assert "Mean over 3 or 4 draws of the labels" in filled
    words = " ".join(filled.split())
    assert "squared error of the softmax outputs, translations by 2 pixels" in words
    assert "487 times the computation" in words
    assert len(filled.splitlines()) <= 120
    assert [line for line in filled.splitlines() if len(line) > 120] == []


def test_ablations_of_the_fast_recipe_are_compared_with_mean_teacher(records: Path) -> None:
    assert "have recipes" in results.page()
    names = [f"fast/svhn-250/ablation/{name}" for name in ("mean-teacher", "no-average")]
    for run in runs_of(names, seeds=3, out=records):
        write_record(run, 0.1 + 0.01 * run.seed + (0.05 if run.name == names[1] else 0.0))
    page = results.page()
    assert "| Mean Teacher without the average (decay 0) | 16.00 ± 1.00 | −5.00 (−5.00 to −5.00) | – | – |" in page
    assert "| Mean Teacher | 11.00 ± 1.00 | – | – | – |" in page
    assert "1,440 steps" in page.replace("\n", " ")
    assert "the average does not" not in page


def test_the_page_says_so_if_the_average_adds_nothing_to_the_fast_recipe(records: Path) -> None:
    column = [f"laptop/table1/svhn-250/{system}" for system in ("supervised", "pi-model", "mean-teacher")]
    fill(records, column, seeds=3)
    for n_shown, data in enumerate(("svhn-250", "cifar10-1000")):
        assert "the average does not" not in results.page()
        assert "no gain" not in results.readme(README)
        for name in ("mean-teacher", "no-average"):
            for run in runs_of([f"fast/{data}/ablation/{name}"], seeds=3, out=records):
                write_record(run, 0.1 + (0.01 * run.seed if name == "no-average" else 0.005 * n_shown))
    assert "the average does not" in results.page()
    assert "no gain from the average" in " ".join(results.readme(README).split())


def test_all_methods_that_ran_are_listed_by_the_error_of_the_average(records: Path) -> None:
    assert "table cifar10-250" not in results.page()
    for name, error in {"vat": 0.3, "supervised": 0.5, "mean-teacher": 0.25}.items():
        (run,) = runs_of([f"compare/cifar10-250/{name}"], seeds=1, out=records)
        write_record(run, error)
    _, _, after = results.page().partition("table cifar10-250")
    section, _, _ = after.partition("Runs planned")
    rows = [line.split(" | ")[:2] for line in section.splitlines() if line.startswith("| `")]
    assert rows == [["| `mean-teacher`", "25.00"], ["| `vat`", "30.00"], ["| `supervised`", "50.00"]]
    assert "Not run: `pseudo-label`, `pseudo-ensemble`," in section
