"""The ONNX file computes what the model computes, or is not there."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

from meanteacher.core import InputError, Problem
from meanteacher.files import images as decoder
from meanteacher.models import FastNetSpec, LiteSpec, ModelSpec, WideResNetSpec
from meanteacher.photos.model import export
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.views import Normaliser, PerChannel, PerImage, Zca

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
        monkeypatch.setattr(decoder, "FILTER", Image.Resampling[name.upper()])
        with Image.open(tmp_path / "image.png") as image:
            expected = np.asarray(image.resize((SIZE, SIZE), Image.Resampling[name.upper()], reducing_gap=2.0))
        assert np.array_equal(decoder.decode(tmp_path / "image.png", SIZE), expected)
    monkeypatch.undo()
    assert export.FILTER is decoder.FILTER


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

        def get_inputs(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(name="images")]

        def run(self, names: None, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [fault(model.module()(torch.from_numpy(given["images"])).numpy())]

    monkeypatch.setattr(onnxruntime, "InferenceSession", WrongSession)


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_export_leaves_no_file(model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str):
    fails_with(model, FAULTS[fault], monkeypatch)
    with pytest.raises(InputError, match=r"does not compute the same as this one.*so nothing was written"):
        model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_other_class_is_noticed_however_close(model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unsure = dataclasses.replace(model, temperature=1e4)
    fails_with(unsure, lambda p: p[:, ::-1].copy(), monkeypatch)
    with pytest.raises(InputError, match="of 72 images get another class"):
        unsure.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_equally_probable_classes_may_be_told_apart_otherwise(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rounding decides between them, and differs from machine to machine: no reason to refuse the export."""
    tied = dataclasses.replace(model, temperature=1e9)
    fails_with(tied, lambda p: p + np.array([0, 0, 1e-7], np.float32), monkeypatch)
    tied.export(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").exists()


def test_existing_file_is_not_replaced_unasked(model: Classifier, tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already"):
        model.export(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == b"mine"
    model.export(tmp_path / "model.onnx", overwrite=True)
    assert len((tmp_path / "model.onnx").read_bytes()) > 1000


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_missing_package_is_said_with_the_command_that_installs_it(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"the package {package}, .* pip install 'meanteacher\[photos\]'$"):
        model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def foreign(model: Classifier) -> Classifier:
    """With an operation that only torch's own exporter knows."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 3), nn.Softsign())
    return dataclasses.replace(model, network=network.eval().requires_grad_(False))


def test_a_network_that_only_torch_can_export_names_the_reason_and_the_package(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"because it uses abs.default .* Install it with `pip install onnxscript`"):
        foreign(model).export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_torch_exports_is_compared_like_everything_else(
    model: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A stand-in for torch's exporter, which needs another package: the file of a different network."""
    written = export.to_onnx(
        model.module(), (3, SIZE, SIZE), np.uint8, input_name="images", output_name="probabilities"
    )
    monkeypatch.setattr(export, "find_spec", lambda name: True)
    monkeypatch.setattr(torch.onnx, "export", lambda *given, **options: SimpleNamespace(model_proto=written))
    with pytest.raises(InputError, match="does not compute the same"):
        foreign(model).export(tmp_path / "model.onnx")

    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("no translation\nand many more lines")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(InputError, match=r"cannot be exported by torch either: no translation\. predict takes any"):
        foreign(model).export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spec", "normaliser", "size"),
    [
        (LiteSpec(width=0.25, depth=0.5), PerChannel(), 47),
        (LiteSpec(width=0.25, depth=0.5), PerImage(), 32),
        (WideResNetSpec(depth=10, widen=1, outputs=2), Zca(contrast=True, epsilon=0.1), SIZE),
    ],
    ids=repr,
)
def test_every_kind_of_network_and_normalisation_is_exported(
    spec: ModelSpec, normaliser: Normaliser, size: int, tmp_path: Path
):
    """`export` compares with torch, and `predict` computes the graph that it writes."""
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(0)
    batch = torch.randint(0, 256, (20, 3, size, size), dtype=torch.uint8, generator=draws)
    normalise = normaliser.fit(batch)
    network = spec.build(Problem(3, 1, (3, size, size)))
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # after one batch the statistics are those of the batch
    network(normalise(batch))
    with torch.no_grad():
        for weight in list(network.parameters())[-2:]:
            weight.mul_(10)
    model = Classifier(network.eval(), normalise, NAMES, size, 1.7, {}, spec=spec, normaliser=normaliser)
    loaded = load(model.save(tmp_path / "model"))
    with torch.no_grad():
        expected = model.module()(batch).numpy()
    assert expected.std(0).min() > 1e-3
    session = onnxruntime.InferenceSession(loaded.export(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(probabilities(session, batch), expected, atol=1e-4)
    squares = batch.permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(loaded.predict_proba(squares, device="cpu"), expected, atol=1e-4)


def test_network_is_left_as_it_was(model: Classifier, exported: Path):
    assert isinstance(model.network, nn.Module)
    assert not model.network.training
    assert model.network.whitening.weight.is_contiguous(memory_format=torch.channels_last)
