"""What must hold of a model as files: saved, read, used and judged, each number computed again from its weights."""

import csv
import dataclasses
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import fit_world
import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from catalogue import refused
from fit_world import softmax, under, wilson
from PIL import Image
from safetensors.torch import load_file

from meanteacher.core import Problem
from meanteacher.models import FastNetSpec
from meanteacher.photos.model import predict as prediction
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.photos.model.export import metadata
from meanteacher.views import PerChannel

NAMES = ("pear", "apple", "fig")
"""Not sorted: a model's classes are in the order of its outputs."""
_TEMPERATURE = 0.37
_SIZE = 32
_BROKEN = "apple/02.png"


@dataclasses.dataclass(frozen=True)
class Model:
    """A saved model, photos that it has never seen, and what it must say of them."""

    folder: Path
    photos: Path
    names: tuple[str, ...]
    """Of the photos, sorted; one cannot be read."""
    probabilities: np.ndarray
    """[N, n_classes], computed from the weights."""


@cache
def model() -> Model:
    """Drawn at random, with scales of both signs: nothing about it is special, so nothing can be right by chance."""
    folder = fit_world.scratch() / "classifier"
    photos = folder / "photos"
    draws = np.random.default_rng(3)
    for k in range(24):
        # No picture of fig: the classes of the folder have other numbers than the model's.
        label = ("pear", "apple")[k % 2]
        path = photos / label / f"{k // 2:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        tint = draws.integers(0, 256, 3)
        coarse = draws.integers(0, 256, (4, 4, 3)) // 2 + tint // 2
        Image.fromarray(coarse.astype(np.uint8)).resize((48 + k, 40), Image.Resampling.BICUBIC).save(path)
    (photos / _BROKEN).write_bytes(b"not an image")
    _drawn().save(folder / "model")
    weights = load_file(folder / "model" / "weights.safetensors")
    names = tuple(sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png")))
    pixels = np.stack([_pixels(photos / name) for name in names])
    logits = fit_world.forward(under("network.", weights), under("normalise.", weights), pixels, len(NAMES))
    return Model(folder / "model", photos, names, softmax(logits / _TEMPERATURE))


def _pixels(path: Path) -> np.ndarray:
    if path.as_posix().endswith(_BROKEN):
        return np.zeros((3, _SIZE, _SIZE), np.uint8)
    return fit_world.decoded(path, _SIZE).transpose(2, 0, 1)


def _drawn() -> Classifier:
    generator = torch.Generator().manual_seed(0)
    network = FastNetSpec(width=0.125).build(Problem(len(NAMES), 1, (3, _SIZE, _SIZE)))
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            drawn = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(drawn.abs() + 0.5 if "running_var" in name else drawn * (0.3 if "conv" in name else 1.0))
    noise = torch.randint(0, 180, (40, 3, 4, 4), dtype=torch.uint8, generator=generator)
    normalise = PerChannel().fit(noise)
    # What all images have in common is taken out of the last layer, and the rest brought to the scale of logits.
    features: list[torch.Tensor] = []
    hook = network.head.register_forward_pre_hook(lambda _, given: features.append(given[0]))
    with torch.no_grad():
        network.eval()(F.interpolate(normalise(noise), size=(_SIZE, _SIZE), mode="bilinear"))
        hook.remove()
        mean = features[0].mean(0)
        head = network.head.weight
        head -= (head @ mean / mean.square().sum())[:, None] * mean
        head /= (features[0] @ head.T).std(0)[:, None]
    parts = {"spec": FastNetSpec(width=0.125), "normaliser": PerChannel()}
    return Classifier(network, normalise, NAMES, _SIZE, _TEMPERATURE, {}, **parts)


def a_model_is_read_as_it_was_saved() -> None:
    given = _drawn()
    with tempfile.TemporaryDirectory() as folder:
        given.save(Path(folder) / "model")
        read = load(Path(folder) / "model")
        content = json.loads((Path(folder) / "model" / "model.json").read_text())
    assert read.class_names == NAMES == tuple(content["class_names"]), "the classes are in another order"
    assert (read.size, read.temperature) == (_SIZE, _TEMPERATURE), "another size or temperature"
    for part in ("network", "normalise"):
        before, after = getattr(given, part).state_dict(), getattr(read, part).state_dict()
        assert all(after[name].equal(before[name]) for name in before), f"{part}: other tensors"


def damaged_weights_are_refused() -> None:
    source = model().folder
    with tempfile.TemporaryDirectory() as folder:
        for name in ("model.json", "weights.safetensors"):
            (Path(folder) / name).write_bytes((source / name).read_bytes())
        weights = Path(folder) / "weights.safetensors"
        content = bytearray(weights.read_bytes())
        content[-3] ^= 1  # one bit of one weight: still a number
        weights.write_bytes(content)
        refused(lambda: load(folder), "a weight that has changed")


def probabilities_are_softmax_at_the_models_temperature() -> None:
    known = model()
    pixels = np.stack([_pixels(known.photos / name) for name in known.names])
    found = load(known.folder).module()(torch.from_numpy(pixels)).numpy()
    assert np.allclose(found, known.probabilities, atol=1e-3), "other probabilities than the weights give"


def every_photo_is_predicted_under_its_name() -> None:
    known = model()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "_CHUNK", 5)
        out = Path(folder) / "predictions.csv"
        predictions = load(known.folder).predict(known.photos, out=out, device="cpu")
        rows = list(csv.DictReader(out.read_text(encoding="utf-8-sig").splitlines()))
    assert [row["path"] for row in rows] == list(known.names), "rows are missing, or in another order"
    for row, p in zip(rows, known.probabilities, strict=True):
        if row["path"] == _BROKEN:
            assert (row["guess"], bool(row["problem"])) == ("", True), "a file that is no image has a guess"
            continue
        for k, guess in zip(np.argsort(-p), ("guess", "second", "third"), strict=True):
            confidence = float(row["confidence" if guess == "guess" else f"{guess}_confidence"])
            assert confidence == pytest.approx(p[k], abs=2e-3), f"{row['path']}: {guess}"
            assert p[NAMES.index(row[guess])] == pytest.approx(p[k], abs=2e-3), f"{row['path']}: {guess}"
    said = [row["guess"] for row in rows]
    assert list(predictions) == said, "the labels differ from those in the file"
    assert predictions.counts == {name: said.count(name) for name in NAMES}, "classes are counted wrong"
    assert list(predictions.problems) == [_BROKEN]


def a_model_is_judged_by_the_true_class() -> None:
    known = model()
    told = load(known.folder).evaluate(known.photos, device="cpu")
    readable = [k for k, name in enumerate(known.names) if name != _BROKEN]
    truth = np.array([NAMES.index(known.names[k].split("/")[0]) for k in readable])
    p = known.probabilities[readable]
    guess = p.argmax(1)
    table = fit_world.confusion(truth, guess, len(NAMES))
    assert table != np.transpose(table).tolist(), "the table is symmetric, so this tells nothing"
    assert told["confusion"] == table, "the confusion matrix is another"
    _same_error(told, int((guess != truth).sum()), len(truth))
    for k, row in enumerate(told["per_class"]):
        assert row["name"] == NAMES[k]
        assert row["n_predicted"] == sum(line[k] for line in table), f"{NAMES[k]}: n_predicted"
        _same_error(row, sum(table[k]) - table[k][k], sum(table[k]))
    assert told["calibration"]["error"] == pytest.approx(fit_world.calibration_error(p, truth), abs=0.01)


def _same_error(told: dict[str, Any], wrong: int, n: int) -> None:
    assert (told["n_judged"], told["wrong"]) == (n, wrong), "errors are counted wrong"
    if n:
        expected = (wrong / n, *wilson(wrong, n))
        assert np.allclose([told[key] for key in ("error", "low", "high")], expected, atol=1e-6), "another interval"


def metadata_name_the_classes_in_the_order_of_the_outputs() -> None:
    told = metadata(_drawn())
    assert tuple(told["class_names"]) == NAMES, "the classes of the ONNX file are in another order"
    assert told["size"] == _SIZE
    assert told["resize_filter"] == "bilinear", "another filter than images are resized with"


def an_exported_model_says_what_the_weights_give() -> None:
    known = model()
    pixels = np.stack([_pixels(known.photos / name) for name in known.names])
    with tempfile.TemporaryDirectory() as folder:
        file = load(known.folder).export(Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {session.get_inputs()[0].name: pixels})
    assert np.allclose(found, known.probabilities, atol=1e-3), "other probabilities than the weights give"


DETECTORS = (
    a_model_is_read_as_it_was_saved,
    damaged_weights_are_refused,
    probabilities_are_softmax_at_the_models_temperature,
    every_photo_is_predicted_under_its_name,
    a_model_is_judged_by_the_true_class,
    metadata_name_the_classes_in_the_order_of_the_outputs,
)
EXPORT = (an_exported_model_says_what_the_weights_give,)
