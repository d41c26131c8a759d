"""The ONNX file computes what the model computes, or is not there."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from meanteacher.classifier import export
from meanteacher.classifier.bundle import Classifier
from meanteacher.core import InputError, Problem
from meanteacher.models import FastNetSpec
from meanteacher.photos import decode
from meanteacher.views import PerChannel

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

SIZE = 16
NAMES = ("cat", "dog", "naïve \udcff")


def images(n: int, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=draws)


@pytest.fixture(scope="module")
def model() -> Classifier:
    torch.manual_seed(0)
    network = FastNetSpec(width=0.125).build(Problem(3, 1, (3, SIZE, SIZE)))
    normalise = PerChannel().fit(images(50))
    network.initialise_from(normalise(images(50)))
    for _ in range(50):  # until the running statistics are those of the images
        network(normalise(images(50)))
    with torch.no_grad():
        network.head.weight.mul_(5)
    network = network.to(memory_format=torch.channels_last).eval().requires_grad_(False)
    return Classifier(network, normalise, NAMES, SIZE, 1.7, {})


@pytest.fixture(scope="module")
def exported(model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.export(tmp_path_factory.mktemp("export") / "new" / "model.onnx")


@pytest.fixture
def quickly(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the graph that was exported before: making it takes seconds."""
    onnx = pytest.importorskip("onnx")
    monkeypatch.setattr(export, "_exported", lambda model: onnx.load(exported))


@pytest.fixture(scope="module")
def session(exported: Path) -> Any:
    return onnxruntime.InferenceSession(str(exported), providers=["CPUExecutionProvider"])


def probabilities(session: Any, batch: torch.Tensor) -> np.ndarray:
    return session.run(["probabilities"], {"images": batch.numpy()})[0]


def test_classes_are_the_same_on_a_thousand_images(model: Classifier, session: Any):
    batch = images(1000, seed=1)
    expected = model.module()(batch).numpy()
    assert len(np.unique(expected.argmax(1))) > 1
    got = probabilities(session, batch)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > 2e-4  # closer ones are decided by how each program rounds
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(got.argmax(1)[clear], expected.argmax(1)[clear])


@pytest.mark.parametrize("n", [1, 7])
def test_batch_may_have_any_size(model: Classifier, session: Any, n: int):
    np.testing.assert_allclose(probabilities(session, images(n)), model.module()(images(n)), atol=1e-4)


def test_file_takes_bytes_and_says_what_they_mean(session: Any):
    (given,) = session.get_inputs()
    (result,) = session.get_outputs()
    assert (given.name, given.type, given.shape[1:]) == ("images", "tensor(uint8)", [3, SIZE, SIZE])
    assert (result.name, result.type, result.shape[1:]) == ("probabilities", "tensor(float)", [3])
    assert isinstance(given.shape[0], str)
    about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert "squeezed" in about.pop("resize")
    assert about.pop("version").startswith("meanteacher 0.")
    assert tuple(about.pop("class_names")) == NAMES
    assert about == {
        "size": SIZE,
        "resize_filter": "bilinear",
        "resize_reducing_gap": 2.0,
        "background": "white",
        "colour_order": "RGB",
        "layout": "NCHW",
        "value_range": [0, 255],
        "normalisation": "inside",
        "temperature": 1.7,
    }


def test_the_filter_that_is_named_is_the_one_that_images_are_resized_with(tmp_path: Path, monkeypatch):
    """One value for both: a model whose file named another filter would be given other pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    for name in ("bilinear", "lanczos"):
        monkeypatch.setattr(decode, "FILTER", Image.Resampling[name.upper()])
        with Image.open(tmp_path / "image.png") as image:
            expected = np.asarray(image.resize((SIZE, SIZE), Image.Resampling[name.upper()], reducing_gap=2.0))
        assert np.array_equal(decode.decode(tmp_path / "image.png", SIZE), expected)
    monkeypatch.undo()
    assert export.FILTER is decode.FILTER


def test_one_file_stands_alone_and_names_no_place_of_this_machine(exported: Path):
    assert [path.name for path in exported.parent.iterdir()] == ["model.onnx"]
    content = exported.read_bytes()
    assert str(Path(torch.__file__).parent).encode() not in content
    assert b".py" not in content


FAULTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "all alike": lambda p: np.full_like(p, 1 / 3),
    "a little off": lambda p: p * np.float32(0.999),
    "no number where the class is": lambda p: np.where(p == p.max(1, keepdims=True), np.float32(np.nan), p),
    "a class too few": lambda p: p[:, :2],
}


def fails_with(model: Classifier, fault: Callable[[np.ndarray], np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an onnxruntime with a fault in its place."""

    class WrongSession:
        def __init__(self, *arguments: object, **options: object) -> None: ...

        def run(self, names: list[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [fault(model.module()(torch.from_numpy(given["images"])).numpy())]

    monkeypatch.setattr(onnxruntime, "InferenceSession", WrongSession)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_export_leaves_no_file(model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str):
    fails_with(model, FAULTS[fault], monkeypatch)
    with pytest.raises(InputError, match=r"does not compute the same as this one.*so nothing was written"):
        model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("quickly")
def test_other_class_is_noticed_however_close(model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unsure = dataclasses.replace(model, temperature=1e4)
    fails_with(unsure, lambda p: p[:, ::-1].copy(), monkeypatch)
    with pytest.raises(InputError, match="of 72 images get another class"):
        unsure.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("quickly")
def test_equally_probable_classes_may_be_told_apart_otherwise(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rounding decides between them, and differs from machine to machine: no reason to refuse the export."""
    tied = dataclasses.replace(model, temperature=1e9)
    fails_with(tied, lambda p: p + np.array([0, 0, 1e-7], np.float32), monkeypatch)
    tied.export(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.usefixtures("quickly")
def test_existing_file_is_not_replaced_unasked(model: Classifier, tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already"):
        model.export(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == b"mine"
    model.export(tmp_path / "model.onnx", overwrite=True)
    assert len((tmp_path / "model.onnx").read_bytes()) > 1000


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_package_is_said_with_the_command_that_installs_it(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install 'meanteacher\[onnx\]'"):
        model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_network_is_left_as_it_was(model: Classifier, exported: Path):
    assert isinstance(model.network, nn.Module)
    assert not model.network.training
    assert model.network.whitening.weight.is_contiguous(memory_format=torch.channels_last)
