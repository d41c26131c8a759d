"""The whole of `meanteacher fit`, on made-up photos and a plan of a few steps."""

import csv
import dataclasses
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Iterator
from html import unescape
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import backbone_support
from meanteacher.cli import fit as commands
from meanteacher.cli.app import app
from meanteacher.core import InputError, Interrupted
from meanteacher.distributed.ranks import Ranks
from meanteacher.photos.fitting import crossval, training
from meanteacher.photos.fitting import fit as fitting
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.fit import fit
from meanteacher.photos.fitting.plan import Machine
from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.model.bundle import load
from meanteacher.records import Plan
from meanteacher.train import Callback, Evaluation, LogEntry
from pretend_gpu import NAME, pretend_gpu
from support import HashPasses, held_by_another_process

COLOURS = {"blue": (30, 60, 220), "green": (30, 190, 60), "red": (220, 40, 30)}


def run_fit(*given: Any, **options: Any) -> dict[str, Any]:
    """The content of fit.json that a fit returns."""
    fit = fitting.run_fit(*given, **options)
    assert fit is not None
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(fit)))
    return content


def short_plan(machine: Machine, **given: Any) -> Plan:
    """Four steps, however much time there is."""
    given = {name: given[name] for name in ("minutes", "size", "flip", "n_rounds")}
    (width,) = machine.seconds_per_step
    cost = machine.seconds_per_step[width]
    return Plan(**given, width=width, steps=4, weak_labelled_view=False, threads=1, seconds_per_step=cost, seconds=1.0)


def no_measuring(width: float | None, **given: Any) -> Machine:
    return Machine(threads=1, seconds_per_step={width or 0.125: {"supervised": 0.1, "mean-teacher": 0.1}})


@pytest.fixture(autouse=True, scope="module")
def _short_plan() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(fitting, "measure_machine", no_measuring)
        monkeypatch.setattr(training, "make_plan", short_plan)
        monkeypatch.setattr(training, "FEWEST_STEPS", 4)
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colours: 5 labelled images of each, 20 without a label, and one file that is no image."""
    root = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    for colour in COLOURS:
        for number in range(5):
            _paint(root / colour / f"{number}.png", colour, draws)
    for number in range(20):
        _paint(root / "unlabelled" / f"{number:02}.png", list(COLOURS)[number % 3], draws)
    (root / "unlabelled" / "broken.jpg").write_bytes(b"not an image")
    return root


def _paint(path: Path, colour: str, draws: np.random.Generator) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = np.array(COLOURS[colour]) + draws.normal(scale=25, size=(32, 32, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


class Recorder(Callback):
    """Remembers what it is told, and stops after so many steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.messages: list[str] = []
        self.trained: list[str] = []
        self.logged: set[str] = set()
        self.evaluated: set[str] = set()
        self._left = stop_after

    def on_message(self, sentence: str) -> None:
        self.messages.append(sentence)

    def on_run(self, name: str, steps: int) -> None:
        self.trained.append(name)

    def should_stop(self) -> bool:
        self._left = None if self._left is None else self._left - 1
        return self._left is not None and self._left < 0

    def on_log(self, entry: LogEntry) -> None:
        self.logged.add(self.trained[-1])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluated.add(self.trained[-1])


def config(photos: Path, out: Path, **changes: Any) -> FitConfig:
    return FitConfig(photos=photos, out=out, **{"minutes": 600.0, "backbone": "none", **changes})


def interrupt(given: FitConfig, *, after: int, callback: Recorder | None = None) -> None:
    """Stop a fit after so many steps."""
    with pytest.raises(Interrupted, match=r"resume=True \(--resume\)"):
        run_fit(given, callback or Recorder(stop_after=after))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def fitted(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fits") / "fit"
    run_fit(config(photos, out), Recorder())
    return out


@pytest.mark.parametrize("minutes", [0.3, 0.999, 0.0, -5.0, float("nan"), float("inf")])
def test_too_few_minutes_are_refused_before_anything_is_read(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1, got"):
        config(tmp_path / "not there", tmp_path / "out", minutes=minutes)
    assert config(tmp_path, tmp_path / "out", minutes=1).minutes == 1


def test_everything_that_is_promised_is_left_in_the_folder(fitted: Path, photos: Path) -> None:
    names = {
        "predictions.csv",
        "label-next.csv",
        "report.html",
        "MODEL_CARD.md",
        "fit.json",
        "plan.json",
        "model",
        "runs",
    }
    assert names <= {path.name for path in fitted.iterdir()}
    content = json.loads((fitted / "fit.json").read_text())
    assert content["data"]["n_labelled"] == 15
    assert content["data"]["labels_file"] is None
    assert content["data"]["photos"] == str(photos.resolve())
    assert content["folder"] == str(fitted.resolve())
    page = unescape((fitted / "report.html").read_text())
    assert shlex.join(["meanteacher", "label", str(photos.resolve()), "--run", str(fitted.resolve())]) in page
    assert content["data"]["n_unlabelled"] == 20
    assert content["data"]["n_unreadable"] == 1
    assert content["estimate"]["how"] == "folds"
    assert content["estimate"]["n"] == 15
    assert sum(map(sum, content["confusion"])) == 15


def test_predictions_have_a_row_an_image_in_the_order_of_the_names(fitted: Path, photos: Path) -> None:
    rows = table(fitted / "predictions.csv")
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*"))
    assert [row["path"] for row in rows] == names
    broken = next(row for row in rows if row["path"].endswith("broken.jpg"))
    assert broken["label"] == ""
    assert broken["problem"]
    assert all(row["label"] in COLOURS for row in rows if row is not broken)


def test_what_to_label_next_is_unlabelled_and_readable(fitted: Path) -> None:
    rows = table(fitted / "label-next.csv")
    assert len(rows) == 20
    assert all(row["path"].startswith("unlabelled/") and "broken" not in row["path"] for row in rows)
    assert all(row["reason"] for row in rows)


def test_the_shipped_model_gives_the_predictions(fitted: Path, photos: Path) -> None:
    bundle = load(fitted)
    assert bundle.class_names == tuple(COLOURS)
    images = np.load(fitted / "cache" / "images-32.npy")
    rows = table(fitted / "predictions.csv")
    readable = [i for i, row in enumerate(rows) if not row["problem"]]
    p = bundle.module()(torch.from_numpy(images[readable]))
    said = p[range(len(readable)), [bundle.class_names.index(rows[i]["label"]) for i in readable]]
    # Of two classes that are equally probable, rounding decides.
    assert np.allclose(said, p.max(1).values, atol=1e-3)
    assert np.allclose(said, [float(rows[i]["confidence"]) for i in readable], atol=1e-3)


def digests(out: Path, photos: Path, pattern: str) -> set[bytes]:
    """Of the images whose names match, from the pixels that the fit keeps."""
    names = [row["path"] for row in table(out / "predictions.csv")]
    images = np.load(out / "cache" / "images-32.npy")
    return {digest(image) for name, image in zip(names, images, strict=True) if Path(name).match(pattern)}


def split(content: bytes) -> set[bytes]:
    return {content[at : at + 16] for at in range(0, len(content), 16)}


def test_the_model_knows_the_images_that_taught_it(fitted: Path, photos: Path) -> None:
    """With folds every label teaches the shipped model; supervised-only learns nothing from the others."""
    seen = load(fitted).seen
    assert seen is not None
    assert seen.complete
    assert split(seen.labelled) == set().union(*(digests(fitted, photos, f"{colour}/*") for colour in COLOURS))
    shipped = json.loads((fitted / "fit.json").read_text())["answer"]["shipped"]
    unlabelled = digests(fitted, photos, "unlabelled/[0-9]*.png")
    assert len(unlabelled) == 20
    assert split(seen.unlabelled) == (unlabelled if shipped == "mean-teacher" else set())


@pytest.mark.parametrize("method", ["mean-teacher", "supervised"])
def test_unlabelled_images_have_been_seen_where_the_shipped_model_learnt_from_them(
    method: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossval, "better_method", lambda results: method)
    run_fit(config(photos, tmp_path / "fit"), Recorder())
    seen = load(tmp_path / "fit").seen
    assert seen is not None
    assert seen.n_unlabelled == (20 if method == "mean-teacher" else 0)


def test_judging_a_model_by_what_taught_it_gives_no_error(fitted: Path, photos: Path, tmp_path: Path) -> None:
    """Whatever the files are called: copies are known by their pixels. Others are judged."""
    scores = load(fitted).evaluate(photos)
    assert (scores["judged"], scores["error"], scores["seen"]["training"]["n_judged"]) == ("training", None, 15)
    elsewhere, draws = tmp_path / "elsewhere", np.random.default_rng(7)
    for colour in COLOURS:
        (elsewhere / colour).mkdir(parents=True)
        Image.open(photos / colour / "0.png").save(elsewhere / colour / "again.bmp")
        _paint(elsewhere / colour / "new.png", colour, draws)
    scores = load(fitted).evaluate(elsewhere)
    assert (scores["judged"], scores["n_judged"], scores["seen"]["training"]["n_judged"]) == ("new", 3, 3)


def _mirroring(out: Path) -> tuple[bool, bool, str]:
    """Whether it was planned, whether it was done, and what is said about it."""
    content = json.loads((out / "fit.json").read_text())
    (run,) = (out / "runs").glob("mean-teacher-fold-1")
    views = json.dumps(json.loads((run / "run.json").read_text())["recipe"]["training"]["views"])
    (sentence,) = [finding["sentence"] for finding in content["findings"] if finding["kind"] == "flip"]
    return content["plan"]["flip"], "Flip" in views, sentence


def test_what_is_said_about_mirroring_is_what_is_done(fitted: Path) -> None:
    planned, done, sentence = _mirroring(fitted)
    assert planned
    assert done
    assert sentence.startswith("Images are also shown mirrored during training")


def test_no_image_judges_a_model_that_it_taught(fitted: Path) -> None:
    for run in (fitted / "runs").glob("*fold*"):
        lines = (run / "split.txt").read_text().splitlines()
        taught, judged = (set(line.split()[1:]) for line in lines[2:4])
        assert taught
        assert judged
        assert not taught & judged


def test_an_interrupted_fit_is_resumed_to_the_same_bytes(fitted: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    interrupt(config(photos, out), after=6)
    run_fit(config(photos, out, resume=True), Recorder())
    for name in ("model/weights.safetensors", "model/seen.bin", "predictions.csv", "label-next.csv"):
        assert (out / name).read_bytes() == (fitted / name).read_bytes(), name


def test_the_same_call_starts_a_fit_continues_it_and_leaves_it_when_complete(
    fitted: Path, photos: Path, tmp_path: Path
) -> None:
    out, again = tmp_path / "fit", config(photos, tmp_path / "fit", resume=None)
    interrupt(again, after=6)
    recorder = Recorder()
    content = run_fit(again, recorder)
    assert recorder.logged
    assert (out / "predictions.csv").read_bytes() == (fitted / "predictions.csv").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    recorder = Recorder()
    assert run_fit(again, recorder) == json.loads(json.dumps(content))
    assert not recorder.trained
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("lost", ["report.html", "model"])
def test_a_fit_that_was_killed_while_its_results_were_written_writes_them_again(
    lost: str, fitted: Path, photos: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(fitted, tmp_path / "fit")
    shutil.rmtree(out / lost) if lost == "model" else (out / lost).unlink()
    (out / ".fit.json.0123abcd.part").write_text("{")
    run_fit(config(photos, out, resume=None), Recorder())
    assert (out / lost).exists()
    assert not list(out.glob(".*.part"))


def test_the_results_of_a_replaced_fit_are_not_those_of_the_interrupted_one(
    fitted: Path, photos: Path, tmp_path: Path
) -> None:
    out, recorder = shutil.copytree(fitted, tmp_path / "fit"), Recorder()
    interrupt(config(photos, out, overwrite=True, minutes=500.0), after=2)
    shutil.copytree(fitted / "model", out / "model")  # as if it had been killed when only that was written
    run_fit(config(photos, out, resume=None), recorder)
    assert recorder.logged


def test_a_fit_is_not_started_or_resumed_with_other_photos_or_with_overwrite(
    fitted: Path, photos: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(photos, tmp_path / "photos")
    (other / "red" / "0.png").unlink()
    with pytest.raises(InputError, match="The photos or their labels are not those"):
        run_fit(config(other, shutil.copytree(fitted, tmp_path / "fit"), resume=None), Recorder())
    with pytest.raises(InputError, match=r"\(--start-or-resume\) .* \(--overwrite\)"):
        config(photos, fitted, resume=None, overwrite=True)


def test_a_second_fit_in_one_folder_is_refused_and_replaces_nothing(fitted: Path, photos: Path, tmp_path: Path) -> None:
    out = shutil.copytree(fitted, tmp_path / "fit")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    with held_by_another_process(out / ".lock"), pytest.raises(InputError, match="Another process is fitting in"):
        run_fit(config(photos, out, overwrite=True), Recorder())
    assert {path: path.read_bytes() for path in before} == before


def test_going_on_from_a_model_that_does_not_say_what_it_has_seen_is_remembered(
    fitted: Path, photos: Path, tmp_path: Path
) -> None:
    old = shutil.copytree(fitted, tmp_path / "old")
    (old / "model" / "seen.bin").unlink()
    run_fit(config(photos, tmp_path / "more", start=old), Recorder())
    seen = load(tmp_path / "more").seen
    assert seen is not None
    assert not seen.complete
    assert seen.n_labelled == 15


def test_changed_photos_are_not_resumed(fitted: Path, tmp_path: Path, photos: Path) -> None:
    copy = tmp_path / "photos"
    for path in photos.rglob("*.*"):
        target = copy / path.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    out = tmp_path / "fit"
    interrupt(config(copy, out), after=2)
    (copy / "red" / "0.png").unlink()
    with pytest.raises(InputError, match="The photos or their labels are not those"):
        run_fit(config(copy, out, resume=True), Recorder())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({}, "holds a fit already"), ({"out": "empty", "resume": True}, "holds no fit to resume")],
)
def test_nothing_is_overwritten_unasked(
    fitted: Path, photos: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    out = tmp_path if "out" in changes else fitted
    with pytest.raises(InputError, match=message):
        run_fit(config(photos, out, resume=changes.get("resume", False)), Recorder())


def test_a_folder_with_other_files_is_left_alone(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds other files"):
            run_fit(config(photos, tmp_path, overwrite=overwrite), Recorder())
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_going_on_keeps_the_classes_and_adds_a_new_one(fitted: Path, photos: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\nunlabelled/00.png,navy\nunlabelled/03.png,navy\n")
    recorder = Recorder()
    more = config(photos, tmp_path / "more", labels=labels, start=fitted, flip=False)
    content = run_fit(more, recorder)
    assert content["data"]["class_names"] == ["blue", "green", "navy", "red"]
    assert content["data"]["labels_file"] == str(labels)
    assert _mirroring(tmp_path / "more") == (
        False,
        False,
        "Images are not mirrored during training, as requested by --no-flip.",
    )
    last = json.loads((tmp_path / "more" / "runs" / recorder.trained[-1] / "run.json").read_text())
    assert last["recipe"]["training"]["model"]["is"].endswith("Continued")
    # What taught the first model has taught this one.
    before, seen = load(fitted).seen, load(tmp_path / "more").seen
    assert before is not None
    assert seen is not None
    assert split(seen.labelled) == split(before.labelled) | digests(fitted, photos, "unlabelled/0[03].png")
    assert seen.complete
    # No error is told of the last training, which every label taught.
    assert recorder.logged == set(recorder.trained)
    assert recorder.evaluated == set(recorder.trained[:-1])
    # A model that every label has taught judges nothing: the folds start anew.
    first = json.loads((tmp_path / "more" / "runs" / recorder.trained[0] / "run.json").read_text())
    assert first["recipe"]["training"]["model"]["is"].endswith("FastNetSpec")


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_fit_is_not_resumed_on_another_kind_of_device(
    device: str, fitted: Path, photos: Path, tmp_path: Path
) -> None:
    plan = json.loads((fitted / "plan.json").read_text())
    assert plan["device"] == "cpu"
    (tmp_path / "plan.json").write_text(json.dumps(plan | {"device": "mps"}))
    with pytest.raises(InputError, match="was started on mps"):
        run_fit(config(photos, tmp_path, resume=True, device=device), Recorder())


def test_a_fit_on_a_gpu_leaves_the_same_model(fitted: Path, photos: Path, tmp_path: Path) -> None:
    with pretend_gpu():
        content = run_fit(config(photos, tmp_path, device="auto"), Recorder())
    assert (content["environment"]["device"], content["environment"]["device_name"]) == ("cuda", NAME)
    assert json.loads((tmp_path / "plan.json").read_text())["device"] == "cuda"
    here, there = load(fitted).network.state_dict(), load(tmp_path).network.state_dict()
    assert here.keys() == there.keys()
    for name, tensor in there.items():
        torch.testing.assert_close(tensor, here[name], rtol=1e-3, atol=1e-3)


def test_a_wrong_device_replaces_nothing(fitted: Path, photos: Path) -> None:
    before = sorted(fitted.rglob("*"))
    with pytest.raises(InputError, match="A device is auto, cpu"):
        run_fit(config(photos, fitted, overwrite=True, device="tpu"), Recorder())
    assert sorted(fitted.rglob("*")) == before


def test_a_fit_without_time_left_ends_with_a_model_and_says_what_it_left_out(photos: Path, tmp_path: Path) -> None:
    """The plan is of 4 steps a run; the minutes are over before the first of them."""
    recorder = Recorder()
    out = tmp_path / "fit"
    content = run_fit(config(photos, out, minutes=1.0), recorder, began=time.perf_counter() - 70)
    for run in (out / "runs").iterdir():
        record = json.loads((run / "record.json").read_text())
        assert record["skipped_steps"] == 3
        assert record["steps"] == 4
    assert load(out).class_names == tuple(COLOURS)
    assert "25.0 % of supervised-fold-1" in recorder.messages[-1]
    assert recorder.messages[-1] in content["planned"]


def test_a_fit_in_time_leaves_nothing_out(fitted: Path) -> None:
    records = [json.loads(path.read_text()) for path in (fitted / "runs").glob("*/record.json")]
    assert len(records) == 7
    assert {record["skipped_steps"] for record in records} == {0}


def test_time_spent_before_an_interruption_counts_when_the_fit_is_resumed(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    interrupt(config(photos, out), after=2)
    plan = json.loads((out / "plan.json").read_text())
    assert plan["spent"] > 0
    plan["spent"] = 60 * plan["plan"]["minutes"]
    (out / "plan.json").write_text(json.dumps(plan))
    run_fit(config(photos, out, resume=True), Recorder())
    last = json.loads((out / "runs" / "mean-teacher-fold-1" / "record.json").read_text())
    assert last["skipped_steps"] == 3


def test_a_resumed_fit_has_the_minutes_that_it_was_started_with(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "fit"
    interrupt(config(photos, out), after=2)
    plan = json.loads((out / "plan.json").read_text())
    (out / "plan.json").write_text(json.dumps(plan | {"spent": 120.0}))
    content = run_fit(config(photos, out, resume=True, minutes=1), Recorder())
    assert content["plan"]["minutes"] == 600
    records = [json.loads(path.read_text()) for path in (out / "runs").glob("*/record.json")]
    assert {record["skipped_steps"] for record in records} == {0}


@pytest.fixture
def short_plan_on_a_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linear classifier alone, four steps on two views."""
    monkeypatch.setattr(fitting, "measure_backbone", backbone_support.supposed_speed)
    monkeypatch.setattr(training, "make_backbone_plan", backbone_support.short_plan)


@pytest.mark.usefixtures("short_plan_on_a_backbone")
def test_a_resumed_fit_tries_no_other_network_than_when_it_was_started(photos: Path, tmp_path: Path) -> None:
    """The photos are small, so that with "auto" there would be a trial."""
    out, recorder = tmp_path / "fit", Recorder()
    interrupt(config(photos, out, backbone="lite0"), after=9)
    content = run_fit(config(photos, out, resume=True, backbone="auto"), recorder)
    assert content["backbone"]["name"] == "lite0"
    assert set(content["alternatives"]) == {"label-spreading", "probe", "tuned"}
    assert len(recorder.trained) == 7


def test_where_folds_would_be_too_short_a_part_is_held_out(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5 labels a class one or two judge, and each method is trained once; resuming keeps to that."""
    monkeypatch.setattr(training, "FEWEST_STEPS", 5)
    out, before, recorder = tmp_path / "fit", Recorder(stop_after=2), Recorder()
    interrupt(config(photos, out), after=2, callback=before)
    content = run_fit(config(photos, out, resume=True), recorder)
    assert content["estimate"]["how"] == "held-out"
    # The images that judge have not taught the model, and are new to it.
    seen = load(out).seen
    assert seen is not None
    assert content["estimate"]["n"] > 0
    assert seen.n_labelled == 15 - content["estimate"]["n"]
    for name in content["held_out"]:
        assert not digests(out, photos, name) & split(seen.labelled)
    scores = load(out).evaluate(photos)
    assert (scores["judged"], scores["n_judged"]) == ("new", content["estimate"]["n"])
    assert scores["wrong"] == content["estimate"]["errors"][content["answer"]["shipped"]]["wrong"]
    assert before.trained + recorder.trained == ["supervised", "supervised", "mean-teacher"]


def test_images_that_take_too_long_to_read_are_refused_at_once_and_later_no_more(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(fitting.Timing, "total", lambda self: float(next(clock)))
    (tmp_path / "a" / "runs").mkdir(parents=True)
    (tmp_path / "a" / "plan.json").write_text("of an earlier fit")
    with pytest.raises(InputError, match=r"Reading the 36 images would take .* \(--minutes\) to at least \d+"):
        run_fit(config(photos, tmp_path / "a", minutes=1, overwrite=True), Recorder())
    assert (tmp_path / "a" / "plan.json").read_text() == "of an earlier fit"  # nothing is lost by a refusal
    clock = iter(range(20, 10_000))
    run_fit(config(photos, tmp_path / "b", minutes=1), Recorder())


def test_a_fit_in_three_folds_hashes_the_pixels_twice(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for what a resumed fit must find unchanged, and once for the records of its seven runs."""
    passes = HashPasses(36 * 3 * 32 * 32)
    monkeypatch.setattr(hashlib, "sha256", passes.sha256)
    options = ["--out", str(tmp_path / "fit"), "--minutes", "600", "--backbone", "none"]
    done = CliRunner().invoke(app, ["fit", str(photos), *options])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "fit" / "runs").iterdir())) == 7
    assert len(np.load(tmp_path / "fit" / "cache" / "images-32.npy")) == 36
    assert passes.n == 2


def test_fit_from_python_returns_the_model_that_the_folder_holds(
    fitted: Path, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = fit(str(photos), out=str(tmp_path / "fit"), minutes=600, backbone="none")
    assert model.class_names == tuple(COLOURS)
    for name in ("model/weights.safetensors", "predictions.csv"):
        assert (tmp_path / "fit" / name).read_bytes() == (fitted / name).read_bytes(), name
    saved, here = load(tmp_path / "fit").network.state_dict(), model.network.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in here.items())
    printed = capfd.readouterr().err
    for part in ("Problem: ", "7 networks", "supervised-fold-1: step 4, error ", "mean-teacher-fold-3: 4 steps"):
        assert part in printed


def test_the_command_and_the_function_have_the_same_options_and_defaults() -> None:
    command, function = (
        {
            name: (str(option.default) if isinstance(option.default, Path) else option.default)
            for name, option in signature(each).parameters.items()
        }
        for each in (commands.fit, fit)
    )
    assert {name: function.pop(name) for name in ("callback", "began")} == {"callback": None, "began": None}
    assert command.pop("start_or_resume") is False  # resume=None of the function
    assert command == function
    fields = {field.name: field.default for field in dataclasses.fields(FitConfig) if field.name != "photos"}
    assert {name: str(value) for name, value in fields.items()} == {
        name: str(value) for name, value in function.items() if name != "photos"
    }


def test_a_fit_refuses_to_be_one_of_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "join", lambda: Ranks(rank=1, size=2))
    with pytest.raises(InputError, match="one process, but 2 were started"):
        fit(tmp_path / "photos", out=tmp_path / "fit")
    assert not (tmp_path / "fit").exists()


def test_every_option_of_the_function_reaches_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(fitting, "run_fit", lambda *args, **options: given.extend((*args, options)))
    monkeypatch.setattr(fitting, "load", lambda folder: folder)
    callback = Callback()
    options = {"minutes": 7, "flip": True, "resume": True, "overwrite": True, "device": "cpu", "backbone": "lite2"}
    out = fit("p", "l.csv", out=tmp_path, start="s", callback=callback, began=3.0, **options)  # type: ignore[arg-type]
    paths = {"photos": Path("p"), "labels": Path("l.csv"), "out": tmp_path, "start": Path("s")}
    assert given == [FitConfig(**paths, **options), callback, {"began": 3.0}]  # type: ignore[arg-type]
    assert out == tmp_path


def test_ctrl_c_leaves_a_fit_that_can_be_resumed_to_the_same_bytes(
    fitted: Path, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, spent = tmp_path / "fit", []

    class Interrupting(Recorder):
        def on_run(self, name: str, steps: int) -> None:
            spent.append(json.loads((out / "plan.json").read_text())["spent"])
            super().on_run(name, steps)

        def on_evaluation(self, evaluation: Evaluation) -> None:
            super().on_evaluation(evaluation)
            if self.trained[-1] == "mean-teacher-fold-2":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(photos, out=out, minutes=600, backbone="none", callback=Interrupting())
    assert json.loads((out / "plan.json").read_text())["spent"] > spent[0]
    recorder = Recorder()
    fit(photos, out=out, minutes=600, resume=True, callback=recorder)
    assert capfd.readouterr().err == ""  # with a callback of one's own nothing is printed
    assert "supervised-fold-1" not in recorder.logged
    assert recorder.logged
    assert (out / "model" / "weights.safetensors").read_bytes() == (
        fitted / "model" / "weights.safetensors"
    ).read_bytes()
