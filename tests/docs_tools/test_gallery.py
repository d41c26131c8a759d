"""The gallery as a person runs it, with runs of a dozen steps."""

import itertools
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gallery
import methods_page
from meanteacher import experiment
from meanteacher.data import Split
from meanteacher.experiment import run
from meanteacher.experiment.prepared import Prepared
from meanteacher.methods import METHODS
from meanteacher.recipes import RECIPES, toy
from meanteacher.report import boundary, load_record
from methods_page import load_gathered
from support import PATIENCE, child_environment


@pytest.fixture(autouse=True, scope="module")
def _short_recipes():
    with pytest.MonkeyPatch.context() as patch:
        for recipe in toy.MOONS:
            patch.setitem(RECIPES, recipe.name, recipe.varied(steps=12, evaluate_every=12))
        yield


def _gallery(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(gallery.app, list(arguments))


def _folders(folder: Path) -> list[str]:
    return ["--out", str(folder / "docs"), "--runs", str(folder / "runs")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of two draws: docs/ and runs/."""
    folder = tmp_path_factory.mktemp("gallery")
    done = _gallery(*_folders(folder), "--draws", "2")
    assert done.exit_code == 0, done.output
    assert "draw 2: Supervised-only" in done.output
    assert f"The page: {folder / 'docs' / 'methods.md'}" in done.output
    return folder


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two methods only, for tests that train."""
    names = ["supervised", "mean-teacher"]
    monkeypatch.setattr(gallery, "moons_recipes", lambda: {name: RECIPES[f"moons/{name}"] for name in names})
    return names


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_method_has_a_section_and_a_small_picture(made: Path):
    page = (made / "docs" / "methods.md").read_text()
    pictures = {path.stem: path for path in (made / "docs" / "methods").glob("*.svg")}
    assert set(pictures) == set(METHODS)
    assert re.findall(r'^<img src="methods/(.*?)\.svg"', page, re.MULTILINE) == list(METHODS)
    assert len(re.findall(r"^\| \[", page, re.MULTILINE)) == len(METHODS)
    for path in pictures.values():
        ET.parse(path)
        assert path.stat().st_size < 46_000
    for method in METHODS:
        text = methods_page.MethodText.of(type(RECIPES[f"moons/{method}"].training.method).__doc__)
        assert f"## {text.title}\n" in page
        assert (f"{text.paper}: {text.idea}" if text.paper else text.idea[1:]) in page
        assert text.summary in page
    assert all(text in page for text in methods_page.paragraphs(toy.__doc__)[1:])


def test_pictures_share_one_window(made: Path):
    boxes = {ET.parse(path).getroot().get("viewBox") for path in (made / "docs" / "methods").glob("*.svg")}
    assert len(boxes) == 1


def test_runs_stay_out_of_the_folder_of_the_page(made: Path):
    expected = {"methods.md", "methods/records.json", *(f"methods/{method}.svg" for method in METHODS)}
    assert set(_files(made / "docs")) == expected


def test_every_number_on_the_page_is_in_the_gathered_records(made: Path):
    kept = {(run.recipe.name, run.seed): run for run in load_gathered(made / "docs" / "methods" / "records.json")}
    assert len(kept) == 2 * len(METHODS)
    for path in (made / "runs").rglob("record.json"):
        record = load_record(path)
        run = kept[record.recipe.name, record.seed]
        assert run.errors == record.errors
        assert (run.split_fingerprint, run.seconds) == (record.split_fingerprint, record.seconds)


def test_running_it_again_trains_nothing_and_changes_nothing(made: Path, monkeypatch: pytest.MonkeyPatch):
    before = _files(made / "docs")
    monkeypatch.setattr(Prepared, "train", _not_now)
    again = _gallery(*_folders(made), "--draws", "2")
    assert again.exit_code == 0, again.output
    assert _files(made / "docs") == before


def _not_now(*_: Any, **__: Any) -> None:
    raise AssertionError("trains")


def test_the_page_can_be_written_again_from_its_numbers_and_pictures(made: Path, tmp_path: Path):
    before = _files(made / "docs")
    for name, content in before.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "methods.md").unlink()
    assert _gallery("--out", str(tmp_path), "--page-only").exit_code == 0
    assert _files(tmp_path) == before


@pytest.mark.parametrize(
    ("lost", "words"), [("records.json", "records.json: cannot be read"), ("vat.svg", "has no picture of vat")]
)
def test_a_page_without_its_numbers_or_pictures_is_refused(made: Path, tmp_path: Path, lost: str, words: str):
    for name, content in _files(made / "docs" / "methods").items():
        (tmp_path / "methods").mkdir(exist_ok=True)
        (tmp_path / "methods" / name).write_bytes(content)
    (tmp_path / "methods" / lost).unlink()
    failed = _gallery("--out", str(tmp_path), "--page-only")
    assert failed.exit_code == 2
    assert words in failed.output
    assert "python docs/tools/gallery.py" in failed.output
    assert not (tmp_path / "methods.md").exists()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_picture_shows_the_shipped_network_and_labels_of_the_chosen_draw(
    made: Path, tmp_path: Path, few: list[str], seed: int, monkeypatch: pytest.MonkeyPatch
):
    drawn = _drawn(monkeypatch)
    monkeypatch.setattr(methods_page, "median_run", lambda runs: runs[seed])
    assert _gallery("--out", str(tmp_path), "--runs", str(made / "runs"), "--draws", "2").exit_code == 0
    assert len(drawn) == len(few)
    for method, (window, probability, points, labelled, description) in zip(few, drawn, strict=True):
        recipe = RECIPES[f"moons/{method}"]
        folder = made / "runs" / recipe.name / f"seed-{seed}"
        data = recipe.data.source.load(made)
        assert np.array_equal(points.places, data.test.images.numpy())
        state = run(recipe, seed=seed, out=folder, data=data, resume=True).restored()
        at_points = gallery.probability(recipe, state, points.places)
        undecided = np.abs(at_points - 0.5) < 1e-4  # by how the machine rounds
        wrong = ((at_points > 0.5) != points.classes).mean()
        assert wrong == pytest.approx(load_record(folder / "record.json").error("test"), abs=undecided.mean() + 1e-9)
        assert undecided.mean() < 0.05
        assert np.array_equal(probability, gallery.probability(recipe, state, window.grid()))
        rows = Split.load(folder / "split.txt").labelled
        assert np.array_equal(labelled.places, data.train.images[rows].numpy())
        assert labelled.classes.tolist() == data.train.labels[rows].tolist()
        assert f"draw {seed + 1}" in description


def _drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is given to be drawn from now on."""
    given: list[tuple[Any, ...]] = []
    draw = boundary.draw_boundary

    def remember(*arguments: Any) -> str:
        given.append(arguments)
        return draw(*arguments)

    monkeypatch.setattr(boundary, "draw_boundary", remember)
    return given


def test_probability_is_that_of_the_predictor_without_noise_behind_its_normaliser():
    class Network(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return torch.stack([torch.zeros(len(x)), 10 * x[:, 1]], 1)

    class State:
        def normalise(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(1)

        def predictor(self, method: object) -> torch.nn.Module:
            assert method is RECIPES["moons/vat"].training.method
            return Network().train()

    places = np.array([[[-1.0, 5.0], [1.0, 5.0]], [[-1.0, -5.0], [1.0, -5.0]]])
    probability = gallery.probability(RECIPES["moons/vat"], State(), places)
    assert probability.round().tolist() == [[0, 1], [0, 1]]


def test_ctrl_c_in_training_saves_and_going_on_ends_the_same(
    tmp_path: Path, made: Path, few: list[str], monkeypatch: pytest.MonkeyPatch
):
    _signal_in(monkeypatch, experiment, "run", call=3)
    stopped = _gallery(*_folders(tmp_path), "--draws", "2")
    assert stopped.exit_code == 75, stopped.output
    command = f"python docs/tools/gallery.py --out {tmp_path / 'docs'} --runs {tmp_path / 'runs'} --draws 2"
    assert f"nothing is lost. Resume with:\n  {command}" in stopped.output
    assert not _files(tmp_path / "docs")
    assert len(list((tmp_path / "runs").rglob("record.json"))) == 2
    assert len(list((tmp_path / "runs").rglob("step_*"))) == 3
    assert _gallery(*command.split()[2:]).exit_code == 0
    resumed, whole = (
        {
            (run.method, run.seed): run.errors
            for run in load_gathered(folder / "docs" / "methods" / "records.json")
            if run.method in few
        }
        for folder in (tmp_path, made)
    )
    assert resumed == whole


def test_ctrl_c_while_drawing_writes_nothing(tmp_path: Path, few: list[str], monkeypatch: pytest.MonkeyPatch):
    _signal_in(monkeypatch, boundary, "draw_boundary", call=1)
    stopped = _gallery(*_folders(tmp_path), "--draws", "2")
    assert stopped.exit_code == 75, stopped.output
    assert not _files(tmp_path / "docs")
    assert _gallery(*_folders(tmp_path), "--draws", "2").exit_code == 0


def _signal_in(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, call: int) -> None:
    """Press Ctrl-C at the start of one of the calls of a function."""
    original: Callable[..., Any] = getattr(module, name)
    calls = itertools.count(1)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, interrupted)


def test_runs_of_another_recipe_are_refused_and_kept(made: Path, monkeypatch: pytest.MonkeyPatch):
    changed = RECIPES["moons/vat"].varied(steps=13)
    monkeypatch.setitem(RECIPES, "moons/vat", changed)
    before = _files(made)
    failed = _gallery(*_folders(made), "--draws", "2")
    assert failed.exit_code == 2
    assert "holds another run, which differs in: steps" in failed.output
    assert "another folder with --runs" in failed.output
    assert _files(made) == before


def test_a_folder_that_cannot_be_written_is_known_before_training(tmp_path: Path):
    (tmp_path / "docs").write_text("a file")
    failed = _gallery(*_folders(tmp_path), "--draws", "2")
    assert failed.exit_code == 2
    assert "Give another folder with --out" in failed.output
    assert not (tmp_path / "runs").exists()


def test_draws_beyond_those_of_the_recipes_are_refused(tmp_path: Path):
    """The weights of the methods may have been chosen on them."""
    n_draws = {len(recipe.seeds) for recipe in toy.MOONS}
    assert n_draws == {10}
    assert _gallery(*_folders(tmp_path), "--draws", "11").exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_program_says_what_it_does_when_run_as_a_file():
    program = Path(gallery.__file__)
    words = [sys.executable, str(program), "--help"]
    shown = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE, env=child_environment())
    assert "--page-only" in shown.stdout
