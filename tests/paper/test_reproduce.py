"""`mt.table` and `mt.figure`: from the runs that there are to the written files."""

from collections.abc import Callable
from pathlib import Path

import pytest

import meanteacher as mt
from meanteacher.core import InputError, Interrupted
from meanteacher.experiment import workers
from meanteacher.paper.layout import TABLES, Table
from meanteacher.paper.runs import find_figure, find_table, recipe_names, runs_of
from meanteacher.recipes import RECIPES
from meanteacher.train import Callback, StopWhen
from record_support import write_record
from support import child_environment

SVHN500 = {"supervised": 0.2, "pi-model": 0.1, "mean-teacher": 0.05}


@pytest.fixture
def fill(tmp_path: Path) -> Callable[..., None]:
    """Two seeds of three cells of table 1 or of its laptop version, complete."""

    def fill(start: str = "", seeds: int = 2) -> None:
        for method, error in SVHN500.items():
            for run in runs_of([f"{start}table1/svhn-500/{method}"], seeds=seeds, out=tmp_path):
                write_record(run, error + 0.01 * run.seed)

    return fill


def test_table_of_real_runs_is_trained_once_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the digits, which need no download."""
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    monkeypatch.setattr(workers, "_POLL_SECONDS", 0.05)
    rows = {"Supervised-only": ("digits/supervised",), "Mean Teacher": ("digits/mean-teacher",)}
    monkeypatch.setitem(TABLES, "9", (Table(title="Table 9. Digits", columns=("40 labels",), rows=rows),))
    ended: list[str] = []

    class Noting(Callback):
        def on_message(self, sentence: str) -> None:
            ended.append(sentence.partition(":")[0])

    made = mt.table("9", seeds=1, out=tmp_path, jobs=2, callback=Noting())
    assert (made.problems, made.unfinished, ended) == ((), 0, ["Complete", "Complete"])
    records = {path: path.read_bytes() for path in tmp_path.rglob("record.json")}
    assert len(records) == 2
    again = mt.table("9", seeds=1, out=tmp_path, callback=Noting())
    assert again.text == made.text
    assert len(ended) == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("record.json")} == records
    with pytest.raises(Interrupted, match="2 runs"):
        mt.table("9", seeds=2, out=tmp_path, callback=StopWhen(lambda: True))


def test_table_shows_what_there_is_and_counts_what_is_missing(tmp_path: Path, fill: Callable[..., None]):
    fill()
    made = mt.table("1", cell="svhn-500", seeds=3, out=tmp_path, train=False)
    n_systems = len(recipe_names(find_table("1"), cell="svhn-500"))
    assert made.unfinished == 3 * n_systems - 6
    assert f"Not complete: {made.unfinished} run" in made.text
    claim = RECIPES["table1/svhn-500/mean-teacher"].claim
    assert claim is not None
    # The mean of 5 and 6 %.
    assert f"{claim.error:.2f} ± {claim.spread:.2f}" in made.text
    assert "5.50 ± 0.71" in made.text
    assert f"{5.5 - claim.error:+.2f}" in made.text
    assert "1 min 15 s" in made.text
    endings = [".md", ".html", ".csv", "-curves.csv", ".json"]
    assert [path.name for path in made.files] == [f"table-1-svhn-500{ending}" for ending in endings]
    assert len(made.files[2].read_text().splitlines()) == 7  # a line per run
    for path in made.files[:2]:
        assert "5.50 ± 0.71" in path.read_text().replace("\N{NO-BREAK SPACE}", " ")


def test_orderings_of_the_compared_systems_are_judged(tmp_path: Path, fill: Callable[..., None]):
    fill(seeds=3)
    made = mt.table("1", cell="svhn-500", seeds=3, out=tmp_path, train=False)
    (line,) = [line for line in made.text.splitlines() if "Mean Teacher than Pi model " in line]
    assert line.endswith("yes")
    assert "−5.00" in line
    assert {each.verdict for each in made.orderings} == {"yes"}


def test_orderings_are_listed_by_number_of_labels(tmp_path: Path):
    """The first row of the table has no cell with 250 labels."""
    for labels in ("250", "500", "1000"):
        for method in ("supervised", "mean-teacher"):
            for run in runs_of([f"table1/svhn-{labels}/{method}"], seeds=2, out=tmp_path):
                write_record(run, 0.1 + 0.01 * run.seed)
    made = mt.table("1", seeds=2, out=tmp_path, train=False)
    listed = [line.partition("  ")[0] for line in made.text.splitlines() if "Mean Teacher than" in line]
    assert listed == ["250 labels", "500 labels", "1000 labels"]


def test_orderings_of_table_3_are_judged(tmp_path: Path):
    for method, error in (("pi-model", 0.1), ("mean-teacher", 0.05)):
        for run in runs_of([f"table1/svhn-500/{method}"], seeds=3, out=tmp_path):
            write_record(run, error + 0.01 * run.seed)
    made = mt.table("3", cell="svhn-500", seeds=3, out=tmp_path, train=False)
    (line,) = [line for line in made.text.splitlines() if "Mean Teacher than Pi model (ours)" in line]
    assert line.endswith("yes")


def test_laptop_version_is_written_beside_the_table_and_says_so(tmp_path: Path, fill: Callable[..., None]):
    fill("laptop/")
    whole = mt.table("1", cell="svhn-500", seeds=2, out=tmp_path, train=False)
    laptop = mt.table("1", cell="svhn-500", seeds=2, laptop=True, out=tmp_path, train=False)
    assert "5.50" not in whole.text  # no number of a laptop stands for one of full size
    (line,) = [line for line in laptop.text.splitlines() if line.startswith("Mean Teacher")]
    assert "5.50 ± 0.71" in line
    assert "4.18 ± 0.27" in line  # the paper's, in a column of its own
    assert "Laptop version: 6,000 steps" in laptop.text
    assert "Ours, %" not in laptop.text
    assert "+1.32" not in laptop.text
    assert not {path.name for path in whole.files} & {path.name for path in laptop.files}
    assert all(path.name.startswith("table-1-laptop") for path in laptop.files)


def test_laptop_version_judges_the_orderings_of_the_paper(tmp_path: Path, fill: Callable[..., None]):
    fill("laptop/", seeds=4)
    made = mt.table("1", laptop=True, out=tmp_path, train=False)
    assert [(each.better, each.worse, each.verdict) for each in made.orderings] == [
        ("Pi model", "Supervised-only", "yes"),
        ("Mean Teacher", "Supervised-only", "yes"),
        ("Mean Teacher", "Pi model", "yes"),
    ]
    # The paper's 6.83 and 4.18 %.
    assert made.orderings[-1].line()[2] == "−2.65"


def test_curves_of_a_laptop_are_those_of_the_runs_of_its_tables(tmp_path: Path, fill: Callable[..., None]):
    fill("laptop/", seeds=4)
    made = mt.figure("3", laptop=True, out=tmp_path, train=False)
    in_tables = {name for table in ("1", "2") for name in recipe_names(find_table(table, laptop=True))}
    assert set(recipe_names(find_figure("3", laptop=True))) <= in_tables
    (finding,) = made.findings
    assert finding.startswith("SVHN, 500 labels: Mean Teacher minus Pi model is −5.00 (−5.00 to −5.00) points")
    assert finding in made.text


def test_parts_of_a_table_count_their_own_missing_runs(tmp_path: Path):
    made = mt.table("5", seeds=1, cell="mean-teacher", out=tmp_path, train=False)
    assert made.text.count("Not complete: 8 runs") == 2
    assert made.unfinished == 16


def test_preset_is_part_of_the_file_name_and_takes_its_own_runs(tmp_path: Path):
    name = "table1/svhn-500/mean-teacher"
    (run,) = runs_of([name], seeds=1, preset="as-coded", out=tmp_path)
    write_record(run, 0.0321)
    chosen = {"cell": "svhn-500/mean-teacher", "seeds": 1, "out": tmp_path, "train": False}
    coded = mt.table("1", preset="as-coded", **chosen)
    assert "3.21" in coded.text
    assert "as-coded" in coded.files[0].name
    assert "3.21" not in mt.table("1", **chosen).text


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_written_without_a_run(name: str, tmp_path: Path):
    made = mt.table(name, out=tmp_path, train=False)
    assert made.unfinished > 0
    claims = [RECIPES[recipe].claim for recipe in recipe_names(find_table(name))]
    for path in made.files:
        text = path.read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert all(f"{claim.error:.2f}" in text for claim in claims if claim)


def test_top5_error_of_the_paper_stands_beside_ours(tmp_path: Path):
    name = "table4/imagenet-10/mean-teacher-resnet"
    (run,) = runs_of([name], seeds=1, out=tmp_path)
    errors = {model: {"test": 0.3, "validation": None, "test_top5": 0.0911} for model in ("student", "teacher")}
    write_record(run, 0.3, errors={"last": {"step": 1, **errors}, "best_validation": None})
    made = mt.table("4", cell="imagenet-10", seeds=1, out=tmp_path, train=False)
    assert RECIPES[name].claim is not None
    (line,) = [line for line in made.text.splitlines() if "ImageNet" in line and "ResNet Mean Teacher" in line]
    assert "top-5" in line
    assert f"{9.11 - RECIPES[name].claim.error:+.2f}" in line
    assert "30.00" not in line


def test_quoted_numbers_are_left_out_of_a_part(tmp_path: Path):
    assert "State of the art using all labels" in mt.table("4", out=tmp_path, train=False).text
    assert "State of the art using all" not in mt.table("4", cell="cifar10-4000", out=tmp_path, train=False).text


@pytest.mark.parametrize("laptop", [False, True], ids=["paper", "laptop"])
@pytest.mark.parametrize("name", ["3", "4a", "4d"])
def test_figure_is_drawn_from_what_there_is(name: str, laptop: bool, tmp_path: Path):
    names = recipe_names(find_figure(name, laptop=laptop))
    for run in runs_of(names[:2], seeds=2, out=tmp_path):
        write_record(run, 0.1 + 0.02 * run.seed)
    made = mt.figure(name, seeds=2, laptop=laptop, out=tmp_path, train=False)
    stem = f"figure-{name}{'-laptop' if laptop else ''}"
    endings = {".svg", ".png", ".csv", "-curves.csv", ".json"}
    assert {path.name for path in made.files} == {f"{stem}{ending}" for ending in endings}
    assert made.text.count("11.00 ± 1.41" if name == "3" else "11.0 ± 1.4") == 2
    assert ("Laptop version" in made.text) == laptop
    assert made.unfinished == 2 * len(names) - 4


def test_figure_without_a_run_is_written(tmp_path: Path):
    for name in ("3", "4e"):
        made = mt.figure(name, out=tmp_path / name, train=False)
        assert all(path.stat().st_size for path in made.files)


def test_cell_of_a_figure_draws_that_alone(tmp_path: Path):
    made = mt.figure("4d", cell="decay-0.999", out=tmp_path, train=False)
    assert "0.999 " in made.text
    assert "0.97 " not in made.text
    assert made.files[0].stem == "figure-4d-decay-0.999"


@pytest.mark.parametrize("changes", [{"jobs": 0, "train": True}, {"seeds": 0}, {"preset": "as-writen"}])
def test_wrong_value_is_an_input_error_and_writes_nothing(changes: dict[str, object], tmp_path: Path):
    with pytest.raises(InputError):
        mt.table("1", out=tmp_path / "runs", **{"train": False, **changes})
    assert not (tmp_path / "runs").exists()


def test_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file.*--out"):
        mt.table("1", out=tmp_path / "file", train=False)
