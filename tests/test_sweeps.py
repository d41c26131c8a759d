"""A sweep: every combination once, interrupted and continued, compared seed by seed."""

import csv
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import meanteacher as mt
from meanteacher.cli.app import app
from meanteacher.core import InputError, Interrupted
from meanteacher.experiment import workers
from meanteacher.recipes import find
from meanteacher.report import Record, render_page
from meanteacher.report.compare import baselines, recipe_labels
from meanteacher.report.tabular import tabular
from meanteacher.sweeps import variants
from meanteacher.train import Callback
from support import child_environment

RECIPE = """
from support import recipe

small = recipe(steps=12, name="own/small", evaluate_every=6)
"""


class Following(Callback):
    """Stops after some runs are complete."""

    def __init__(self, n: int = 100) -> None:
        self.n, self.ends = n, list[str]()

    def on_message(self, sentence: str) -> None:
        self.ends.append(sentence)

    def should_stop(self) -> bool:
        return len(self.ends) >= self.n


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a recipe of twelve steps is defined, for processes of their own."""
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    monkeypatch.setattr(workers, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    (tmp_path / "own.py").write_text(RECIPE)
    return f"{tmp_path / 'own.py'}:small"


def test_two_by_three_runs_are_interrupted_and_continued(small: str, tmp_path: Path):
    out = tmp_path / "all"
    settings = {"method.weight.value": [3, 1, 0.5]}
    first = Following(2)
    with pytest.raises(Interrupted, match="runs are not complete"):
        mt.sweep(small, settings, seeds=2, out=out, callback=first)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("record.json")}
    assert 2 <= len(before) < 6
    second = Following()
    done = mt.sweep(small, settings, seeds=2, out=out, jobs=2, callback=second)
    assert (done.unfinished, done.problems) == (0, ())
    assert len(second.ends) == 6 - len(before)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    names = {f"own/small+method.weight.value={value}/seed-{seed}" for value in ("3", "1", "0.5") for seed in (0, 1)}
    assert {path.parent.relative_to(out).as_posix() for path in out.rglob("record.json")} == names

    stem = "sweep-own-small-method.weight.value"
    assert [path.name for path in done.files] == [
        f"{stem}.html",
        f"{stem}.csv",
        f"{stem}-curves.csv",
        f"{stem}.json",
    ]
    # A tenth of the images is held out, and a setting is chosen on these.
    assert "validation error" in done.text
    assert "Mean Teacher (method.weight.value=3): " in done.text
    assert "points against Mean Teacher (method.weight.value=0.5), n = 2" in done.text
    with done.files[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["method.weight.value"], row["seed"]) for row in rows} == {
        (v, s) for v in ("3", "1", "0.5") for s in "01"
    }
    records = {
        path.parent.relative_to(out).as_posix(): json.loads(path.read_text()) for path in out.rglob("record.json")
    }
    for row in rows:
        record = records[f"{row['recipe']}/seed-{row['seed']}"]
        assert float(row["teacher_test"]) == record["errors"]["last"]["teacher"]["test"]
    with done.files[2].open(newline="") as file:
        curve = [row for row in csv.DictReader(file) if row["recipe"].endswith("=1") and row["seed"] == "1"]
    assert [int(point["step"]) for point in curve] == [6, 12]

    again = mt.sweep(small, settings, seeds=2, out=out, train=False)
    assert again.text == done.text


def test_commands_of_a_sweep_make_its_runs(small: str, tmp_path: Path):
    out = tmp_path / "all"
    arguments = ["run", small, "--seeds", "2", "--set", "steps=4,6", "--set", "method.decay=0.5", "--out", str(out)]
    printed = CliRunner().invoke(app, [*arguments, "--log", "tensorboard", "--print-commands"])
    assert printed.exit_code == 0, printed.output
    lines = printed.stdout.splitlines()
    assert len(lines) == 4
    words = shlex.split(lines[1])
    assert words[:8] == ["meanteacher", "run", small, "--set", "steps=6", "--set", "method.decay=0.5", "--seed"]
    assert words[words.index("--log") + 1] == "tensorboard"
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    left = CliRunner().invoke(app, [*arguments, "--print-commands"])
    assert len(left.stdout.splitlines()) == 3
    assert lines[1].partition(" --log")[0] not in left.stdout


def test_sweep_by_the_command_line_says_what_it_found_and_wrote(small: str, tmp_path: Path):
    out = tmp_path / "all"
    arguments = ["run", small, "--set", "method.weight.value=1,3", "--set", "steps=2", "--out", str(out)]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.count("Complete: own/small") == 2
    assert f"Written: {out / 'sweep-own-small-method.weight.value-steps.html'}" in done.output


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seeds", "2", "--nproc", "2"], "--jobs instead of --nproc"),
        (["--seeds", "2", "--seed", "3"], "--seeds instead of --seed"),
        (["--set", "method.weight.value=1,x"], "method.weight.value is a number, such as 2; got 'x'"),
        (["--set", "method.wait=1,2"], "no field 'wait'"),
    ],
)
def test_mistake_in_a_sweep_gets_one_sentence(more: list[str], words: str, small: str):
    refused = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["run", small, *more])
    assert refused.exit_code == 2
    assert words in refused.output


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["steps=100,200"], [("steps=100",), ("steps=200",)]),
        (
            ["steps=100, 200", "data.n_labelled=4"],
            [("steps=100", "data.n_labelled=4"), ("steps=200", "data.n_labelled=4")],
        ),
        (["model.hidden=8,9"], [("model.hidden=8,9",)]),
        (["model.hidden=(8,9),(16,)"], [("model.hidden=(8,9)",), ("model.hidden=(16,)",)]),
        (["method.buffers='own','average'"], [("method.buffers='own'",), ("method.buffers='average'",)]),
        (
            {"model.hidden": [(8, 9), (16,)], "steps": 100},
            [("model.hidden=(8,9)", "steps=100"), ("model.hidden=(16,)", "steps=100")],
        ),
        ({"method.decay": [0.5, 0.50, 0.25]}, [("method.decay=0.5",), ("method.decay=0.25",)]),
        ((), [()]),
    ],
)
def test_combinations_are_those_of_the_values(settings: Any, expected: list[tuple[str, ...]]):
    recipe = find("moons/mean-teacher")
    found = variants(recipe, settings)
    assert [chosen for _, chosen in found] == expected
    assert len({changed.name for changed, _ in found}) == len(found)


def test_field_without_values_is_refused():
    with pytest.raises(InputError, match="steps has no values"):
        variants(find("moons/mean-teacher"), {"steps": []})


@pytest.fixture
def swept(run: Callable[..., Record]) -> list[Record]:
    """Written in another order than they are shown in: 10 after 9."""
    return [
        run("mean-teacher", seed, recipe=f"digits/mean-teacher{changes}", student=error, teacher=error)
        for changes, errors in (("+weight=10", (0.10, 0.12)), ("+weight=9", (0.2, 0.21)), ("", (0.15, 0.16)))
        for seed, error in enumerate(errors)
    ]


def _also(recipe: str, change: str) -> str:
    return f"{recipe},{change}" if "+" in recipe else f"{recipe}+{change}"


def test_variants_are_compared_with_the_unchanged_recipe_or_the_lowest_value(swept: list[Record]):
    assert baselines(swept) == {
        "digits/mean-teacher+weight=9": "digits/mean-teacher",
        "digits/mean-teacher+weight=10": "digits/mean-teacher",
    }
    assert baselines(swept[:4]) == {"digits/mean-teacher+weight=10": "digits/mean-teacher+weight=9"}
    fixed = [replace(r, recipe=replace(r.recipe, name=_also(r.recipe.name, "steps=9"))) for r in swept]
    assert set(baselines(fixed).values()) == {"digits/mean-teacher+steps=9"}
    assert set(recipe_labels(fixed).values()) == set(recipe_labels(swept).values())
    assert list(recipe_labels(swept).values()) == [
        "Mean Teacher (weight=10)",
        "Mean Teacher (weight=9)",
        "Mean Teacher (unchanged)",
    ]


def test_variants_are_compared_with_supervised_only_where_it_ran(swept: list[Record], run: Callable[..., Record]):
    both = [*swept, run("supervised", 0), run("supervised", 1)]
    assert set(baselines(both).values()) == {"digits/supervised"}
    assert "with that of supervised-only training, label draw" in render_page(both, "A")


def test_page_of_a_sweep_names_what_it_compares_with(swept: list[Record]):
    page = render_page(swept, "A sweep")
    assert "with that of Mean Teacher (unchanged), label draw" in page
    assert "supervised-only" not in page.lower()


def test_tables_hold_the_differences_and_their_intervals(swept: list[Record]):
    names = {record.recipe.name for record in swept}
    files = tabular("stem", swept, settings={name: {"weight": name.partition("=")[2] or "2"} for name in names})
    whole = json.loads(files["stem.json"])
    (row,) = [row for row in whole["recipes"] if row["recipe"].endswith("=10")]
    assert row["difference"]["baseline"] == "digits/mean-teacher"
    assert row["difference"]["mean"] == pytest.approx(-0.045)
    assert row["difference"]["low"] < -0.045 < row["difference"]["high"]
    assert row["teacher"] == {"mean": pytest.approx(0.11), "deviation": pytest.approx(0.0141, abs=1e-4), "n": 2}
    assert len(whole["curves"]) == 12
    lines = list(csv.reader(files["stem.csv"].splitlines()))
    assert lines[0][:2] == ["recipe", "weight"]
    assert {line[1] for line in lines[1:]} == {"9", "10", "2"}
    assert lines[1][lines[0].index("student_validation")] == ""


def test_show_prints_every_field_the_claim_and_the_deviations():
    shown = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["show", "table1/svhn-500/mean-teacher"])
    assert shown.exit_code == 0, shown.output
    recipe = find("table1/svhn-500/mean-teacher")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in shown.output.splitlines()}
    assert lines["name"] == '"table1/svhn-500/mean-teacher"'
    assert lines["method"] == "MeanTeacher"
    assert lines["method.weight.value"] == str(recipe.training.method.weight.value)
    assert lines["steps"] == str(recipe.training.steps)
    assert lines["data.n_labelled"] == "500"
    assert "Translate" in {value for field, value in lines.items() if field.startswith("views.student")}
    assert recipe.claim is not None
    assert lines["paper"] == f"{recipe.claim} % error, {recipe.claim.where}"
    assert shown.output.count("\ndeviation ") == len(recipe.deviations)
    for deviation in recipe.deviations:
        assert deviation in shown.output
