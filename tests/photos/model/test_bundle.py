"""A shipped model is read as data, to the bit, or refused in one sentence."""

import dataclasses
import json
import pickle
import re
import sys
import types
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, InputError, Problem
from meanteacher.models import Conv13Spec, ExternalSpec, FastNetSpec, LiteSpec, ModelSpec, WideResNetSpec
from meanteacher.photos.model.bundle import Classifier, Seen, load
from meanteacher.photos.model.predict import Known
from meanteacher.views import Normaliser, PerChannel, PerImage, Zca

NAMES = ("cat", "dog", 'naïve = "owl"', "\udcff")
SIZE = 16
FAST = FastNetSpec(width=0.125)
CHANNELS = PerChannel()


def images(n: int, size: int = SIZE, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=draws)


def made(
    spec: ModelSpec = FAST, normaliser: Normaliser = CHANNELS, *, size: int = SIZE, names: tuple[str, ...] = NAMES
) -> Classifier:
    """A network that has seen a batch, with channels last in memory as training leaves it."""
    torch.manual_seed(0)
    network = spec.build(Problem(len(names), 100, (3, size, size)))
    normalise = normaliser.fit(images(20, size))
    if isinstance(network, InitialisesFromData):
        network.initialise_from(normalise(images(20, size)))
    network(normalise(images(20, size)))
    network = network.to(memory_format=torch.channels_last).eval()
    about = {"error": 0.25, "made": ["2026", None]}
    return Classifier(network, normalise, names, size, 1.3, about, spec=spec, normaliser=normaliser)


def state(model: Classifier) -> dict[str, Tensor]:
    return {**model.network.state_dict(prefix="network."), **model.normalise.state_dict(prefix="normalise.")}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return made().save(tmp_path / "model")


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "model.json").read_text())
    change(content)
    (folder / "model.json").write_text(json.dumps(content))


def replace_weights(folder: Path, content: bytes) -> None:
    """As one would who knows the format: with the right sha256."""
    (folder / "weights.safetensors").write_bytes(content)
    rewrite(folder, lambda c: c.update(sha256=sha256(content).hexdigest()))


def refused(folder: Path, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        load(folder)


@pytest.mark.parametrize(
    ("spec", "normaliser"),
    [
        (FAST, PerChannel()),
        (FAST, PerImage()),
        (FAST, Zca(contrast=True, epsilon=0.1)),
        (WideResNetSpec(depth=10, widen=1, outputs=2), PerChannel()),
        (LiteSpec(width=0.25, depth=0.5), PerChannel()),
    ],
    ids=repr,
)
def test_round_trip_is_exact_to_the_bit(spec: ModelSpec, normaliser: Normaliser, tmp_path: Path):
    model = made(spec, normaliser)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert state(loaded).keys() == state(model).keys()
    for name, tensor in state(model).items():
        assert torch.equal(state(loaded)[name], tensor), name
        assert state(loaded)[name].dtype == tensor.dtype
    for field in ("class_names", "size", "temperature", "about", "spec", "normaliser"):
        assert getattr(loaded, field) == getattr(model, field)
    assert not any(module.training for module in loaded.network.modules())
    assert torch.equal(loaded.module()(images(9)), model.module()(images(9)))


def test_probabilities_are_the_softmax_of_the_tempered_logits():
    model = made()
    logits = model.network(model.normalise(images(5)))
    expected = (logits / 1.3).softmax(1)
    torch.testing.assert_close(model.module()(images(5)), expected)
    squares = images(5).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(model.predict_proba(squares), expected.detach(), rtol=1e-4, atol=1e-5)
    warm = dataclasses.replace(model, temperature=5.0).module()(images(5))
    assert (warm.amax(1) < expected.amax(1)).all()


def test_folder_holds_two_files_and_saving_again_writes_the_same_bytes(tmp_path: Path):
    for name in ("a", "b"):
        made().save(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["a", "b", *["model.json", "weights.safetensors"] * 2]
    )
    for name in ("model.json", "weights.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


SEEN = Seen(labelled=bytes(range(48)), unlabelled=bytes(range(100, 132)))


@pytest.fixture
def with_seen(tmp_path: Path) -> Path:
    return dataclasses.replace(made(), seen=SEEN).save(tmp_path / "seeing")


@pytest.mark.parametrize("seen", [SEEN, Seen(), None], ids=repr)
def test_what_the_model_has_seen_is_kept(seen: Seen | None, tmp_path: Path):
    dataclasses.replace(made(), seen=seen).save(tmp_path / "model")
    assert load(tmp_path / "model").seen == seen
    assert (tmp_path / "model" / "seen.bin").exists() == (seen is not None)


def test_a_model_may_not_know_what_it_has_seen(with_seen: Path):
    rewrite(with_seen, lambda content: content.update(seen=None))
    (with_seen / "seen.bin").unlink()
    assert load(with_seen).seen is None


def test_what_the_model_has_seen_may_be_deleted(with_seen: Path):
    (with_seen / "seen.bin").unlink()
    assert load(with_seen).seen is None


@pytest.mark.parametrize("content", [b"", bytes(80), bytes(range(48)), bytes(10_000)], ids=len)
def test_damaged_digests_are_noticed(content: bytes, with_seen: Path):
    (with_seen / "seen.bin").write_bytes(content)
    refused(with_seen, "seen.bin is damaged: its sha256 is not the one in model.json")


@pytest.mark.parametrize(
    "change",
    [{"n_labelled": -1}, {"n_unlabelled": 1 << 40}, {"n_labelled": 2.5}, {"n_labelled": "3"}, {"n_labelled": None}],
    ids=repr,
)
def test_counts_of_images_that_cannot_be_believed_are_refused(change: dict[str, Any], with_seen: Path):
    rewrite(with_seen, lambda content: content["seen"].update(change))
    refused(with_seen, "at `$.seen.")


def test_folder_of_a_fit_is_accepted(saved: Path):
    assert load(saved.parent).class_names == NAMES


def test_loading_leaves_the_random_numbers_alone(saved: Path):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    load(saved)
    assert torch.equal(torch.rand(3), expected)


def test_existing_model_is_replaced_only_when_asked(saved: Path):
    before = (saved / "model.json").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        made().save(saved)
    assert (saved / "model.json").read_bytes() == before
    dataclasses.replace(made(), temperature=2.0).save(saved, overwrite=True)
    assert load(saved).temperature == 2.0
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_folder_that_is_no_model_is_never_replaced(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.jpg").write_bytes(b"dear to me")
    with pytest.raises(InputError, match="not a model, so it is not replaced"):
        made().save(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "mine.jpg").read_bytes() == b"dear to me"


def test_failed_saving_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meanteacher.photos.model.bundle.write_atomic", full)
    with pytest.raises(InputError, match="No space left on device"):
        made().save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_of_a_model_is_gone_after_the_next(tmp_path: Path):
    for name in (".writing-model-0123abcd", ".old-model-89abcdef"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(b"half")
    made().save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_network_that_is_not_of_its_spec_is_not_saved(tmp_path: Path):
    with pytest.raises(InputError, match="do not fit"):
        dataclasses.replace(made(), spec=FastNetSpec(width=0.25)).save(tmp_path / "model")
    for spec in (Conv13Spec(), None):
        with pytest.raises(
            InputError, match=r"cannot be saved with a model, which holds one of FastNet, WideResNet, Eff"
        ):
            dataclasses.replace(made(), spec=spec).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_is_no_model_folder_is_refused(tmp_path: Path):
    for path in (tmp_path, tmp_path / "nowhere"):
        refused(path, f"{path} is not a model: there is no model.json in it")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pkl", ".bin", ".PT"])
def test_pickle_is_refused_by_its_name(suffix: str, tmp_path: Path):
    (tmp_path / f"model{suffix}").write_bytes(b"")
    refused(tmp_path / f"model{suffix}", "Reading a pickle can run any code in it, so it is refused")


class _Harm:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return (Path.write_text, (Path("harm"), "done"))


@pytest.mark.parametrize("kind", ["pickle", "torch", "old torch"])
def test_pickle_inside_is_refused_and_not_run(kind: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    if kind == "pickle":
        replace_weights(saved, pickle.dumps(_Harm()))
    else:
        torch.save(_Harm(), tmp_path / "w", _use_new_zipfile_serialization=kind == "torch")
        assert zipfile.is_zipfile(tmp_path / "w") == (kind == "torch")
        replace_weights(saved, (tmp_path / "w").read_bytes())
    refused(saved, "holds a pickle under another name")
    assert not (tmp_path / "harm").exists()


def test_weights_whose_header_begins_like_a_pickle_are_read(saved: Path):
    content = safetensors.save(safetensors.load((saved / "weights.safetensors").read_bytes()))
    length = int.from_bytes(content[:8], "little")
    longer = (length | 0xFF) + 0x81 + (-length % 8 * 0)
    assert longer % 256 == 0x80
    padded = longer.to_bytes(8, "little") + content[8 : 8 + length] + b" " * (longer - length) + content[8 + length :]
    replace_weights(saved, padded)
    assert load(saved).size == SIZE


def test_damaged_weights_are_noticed(saved: Path):
    content = bytearray((saved / "weights.safetensors").read_bytes())
    content[-5] ^= 1
    (saved / "weights.safetensors").write_bytes(content)
    refused(saved, "damaged: its sha256 is not the one in model.json")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\x10" + bytes(7) + b'{"a": 3}        ', b"\xff" * 64])
def test_weights_that_are_no_safetensors_are_refused(content: bytes, saved: Path):
    replace_weights(saved, content)
    refused(saved, "weights.safetensors is damaged (")


def test_missing_weights_are_said(saved: Path):
    (saved / "weights.safetensors").unlink()
    refused(saved, "The weights of the model cannot be read")


def test_weights_much_longer_than_their_network_are_not_even_read(saved: Path):
    with (saved / "weights.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # a hole: takes no room on the disk
    refused(saved, "is longer than its network")


@pytest.mark.parametrize("content", [b"{", b"[]", b'"text"', b"\xff\xfe\x00", b"[" * 100_000, b""])
def test_damaged_json_is_refused(content: bytes, saved: Path):
    (saved / "model.json").write_bytes(content)
    refused(saved, "model.json: ")


@pytest.mark.parametrize(
    "key", ["network", "normalise", "class_names", "size", "temperature", "sha256", "about", "seen"]
)
def test_missing_part_is_named(key: str, saved: Path):
    rewrite(saved, lambda c: c.pop(key))
    refused(saved, f"model.json: Object missing required field `{key}`")


def external(**changes: object) -> dict[str, Any]:
    return {"kind": "External", "fields": {"library": "timm", "name": "resnet18", "outputs": 1} | changes}


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda c: c.update(format="x"), "Invalid enum value 'x' - at `$.format`"),
    "another schema": (lambda c: c.update(schema=2), "the schema is 2, this version reads 1"),
    "unknown kind": (
        lambda c: c["network"].update(kind="os.system"),
        "'os.system' is none of FastNet, WideResNet, EfficientNetLite, EfficientNetLitePair, Pooled, External",
    ),
    "kind of another type": (
        lambda c: c["network"].update(kind=["FastNet"]),
        "Expected `str`, got `array` - at `$.network.kind`",
    ),
    "unknown normaliser": (lambda c: c["normalise"].update(kind="Exec"), "'Exec' is none of PerChannel, PerImage, Zca"),
    "unknown field": (lambda c: c["network"]["fields"].update(depht=3), "unexpected keyword argument 'depht'"),
    "field of another type": (lambda c: c["network"]["fields"].update(width="1"), "its width is '1'"),
    "text in another network": (
        lambda c: c["network"]["fields"].update(name="x"),
        "unexpected keyword argument 'name'",
    ),
    "another library": (lambda c: c.update(network=external(library="os")), "its library is 'os'"),
    "library of another type": (lambda c: c.update(network=external(library=3)), "its library is 3"),
    "name with a blank": (lambda c: c.update(network=external(name="a b")), "matching regex"),
    "name on two lines": (lambda c: c.update(network=external(name="resnet18\n")), "matching regex"),
    "long name": (lambda c: c.update(network=external(name="a" * 101)), "matching regex"),
    "no name": (lambda c: c.update(network=external(name="")), "matching regex"),
    "text for a number": (lambda c: c.update(network=external(outputs="1")), "its outputs is '1'"),
    "fields of another type": (
        lambda c: c["network"].update(fields=[1]),
        "Expected `object`, got `array` - at `$.network.fields`",
    ),
    "network of another type": (lambda c: c.update(network="FastNet"), "Expected `object`, got `str` - at `$.network`"),
    "normaliser of another type": (lambda c: c.update(normalise=["PerChannel"]), "Expected `object`, got `array`"),
    "width not a number": (lambda c: c["network"]["fields"].update(width=float("nan")), "at `$.network.fields[...]`"),
    "enormous width": (lambda c: c["network"]["fields"].update(width=1e9), "Expected `float` <= 1000"),
    "large width": (lambda c: c["network"]["fields"].update(width=900), "its weights would take"),
    "large depth": (
        lambda c: c.update(network={"kind": "WideResNet", "fields": {"depth": 1000}}),
        "at most 100",
    ),
    "enormous depth": (
        lambda c: c.update(network={"kind": "WideResNet", "fields": {"depth": 6 * 10**9 + 4}}),
        "Expected `int` <= 1000",
    ),
    "network that cannot be": (lambda c: c["network"]["fields"].update(width=-1), "cannot be built"),
    "half a layer": (lambda c: c.update(network={"kind": "WideResNet", "fields": {"widen": 1.5}}), "cannot be built"),
    "tiny size": (lambda c: c.update(size=7), "Expected `int` >= 8 - at `$.size`"),
    "large size": (lambda c: c.update(size=1025), "Expected `int` <= 1024 - at `$.size`"),
    "size of another type": (lambda c: c.update(size="32"), "Expected `int`, got `str` - at `$.size`"),
    "half a pixel": (lambda c: c.update(size=16.5), "Expected `int`, got `float` - at `$.size`"),
    "whitening of large images": (
        lambda c: c.update(size=1024, normalise={"kind": "Zca", "fields": {"contrast": True, "epsilon": 0.1}}),
        "its weights would take",
    ),
    "temperature of zero": (lambda c: c.update(temperature=0), "Expected `float` >= 1e-06 - at `$.temperature`"),
    "endless temperature": (lambda c: c.update(temperature=float("inf")), "- at `$.temperature`"),
    "no classes": (lambda c: c.update(class_names=[]), "of length >= 2 - at `$.class_names`"),
    "class without a name": (lambda c: c.update(class_names=["a", "b", "c", ""]), "at `$.class_names[3]`"),
    "class that is a number": (lambda c: c.update(class_names=["a", "b", "c", 4]), "got `int` - at `$.class_names[3]`"),
    "class twice": (lambda c: c.update(class_names=["a", "b", "c", "a"]), "Expected class names that differ"),
    "class too few": (lambda c: c["class_names"].pop(), "3 classes are named, but the last layer has 4"),
    "class too many": (lambda c: c["class_names"].append("e"), "5 classes are named, but the last layer has 4"),
    "another width": (lambda c: c["network"]["fields"].update(width=0.25), "is expected"),
    "another network": (lambda c: c.update(network={"kind": "WideResNet", "fields": {"depth": 10}}), "is missing"),
    "another normaliser": (
        lambda c: c.update(normalise={"kind": "PerImage", "fields": {}}),
        "has no normalise.deviation",
    ),
    "about of another type": (lambda c: c.update(about=3), "Expected `object`, got `int` - at `$.about`"),
}


@pytest.mark.parametrize("what", BAD)
def test_json_that_cannot_be_believed_is_refused(what: str, saved: Path):
    change, words = BAD[what]
    rewrite(saved, change)
    refused(saved, words)


CHANGED: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "tensor too many": (lambda t: t.update({"network.extra": torch.zeros(2)}), "has no network.extra"),
    "tensor of no part": (lambda t: t.update({"extra": torch.zeros(2)}), "has no extra"),
    "tensor missing": (lambda t: t.pop("network.whitening.weight"), "network.whitening.weight of FastNet"),
    "tensor of another shape": (
        lambda t: t.update({"network.whitening.weight": torch.zeros(24, 3, 3, 3)}),
        "network.whitening.weight is ((24, 3, 3, 3), torch.float32) where ((24, 3, 2, 2), torch.float32) is expected",
    ),
    "tensor of another type": (
        lambda t: t.update({"network.whitening.weight": torch.zeros(24, 3, 2, 2, dtype=torch.float64)}),
        "torch.float64",
    ),
    "statistics of another shape": (lambda t: t.update({"normalise.mean": torch.zeros(3)}), "normalise.mean is ((3,)"),
    "not a number": (lambda t: t["network.head.weight"][0].fill_(torch.nan), "not finite"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_weights_that_do_not_fit_are_refused(what: str, saved: Path):
    change, words = CHANGED[what]
    tensors = safetensors.load((saved / "weights.safetensors").read_bytes())
    change(tensors)
    replace_weights(saved, safetensors.save(tensors))
    refused(saved, words)


class OfTimm(nn.Module):
    """With an operation that only torch computes."""

    def __init__(self, n_channels: int, n_logits: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(n_channels, 4, 3, stride=2), nn.BatchNorm2d(4), nn.GELU())
        self.fc = nn.Linear(4, n_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((2, 3)))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A stand-in for timm; whether pretrained weights were asked for, at each call."""
    asked: list[bool] = []

    def create_model(name: str, *, pretrained: bool, in_chans: int, num_classes: int) -> nn.Module:
        asked.append(pretrained)
        return OfTimm(in_chans, num_classes)

    module = types.ModuleType("timm")
    module.list_models = lambda: ["resnet18"]
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)
    return asked


def test_network_of_another_library_is_saved_and_read(timm: list[bool], tmp_path: Path):
    model = made(ExternalSpec(library="timm", name="resnet18"))
    loaded = load(model.save(tmp_path / "model"))
    assert (loaded.spec, set(timm)) == (model.spec, {False})
    for name, tensor in state(model).items():
        assert torch.equal(state(loaded)[name], tensor), name
    squares = images(5).permute(0, 2, 3, 1).numpy()
    expected = model.module()(images(5)).detach()
    np.testing.assert_allclose(loaded.predict_proba(squares, device="cpu"), expected, atol=1e-5)


@pytest.mark.usefixtures("timm")
def test_library_that_is_missing_or_has_no_such_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = made(ExternalSpec(library="timm", name="resnet18")).save(tmp_path / "model")
    rewrite(folder, lambda c: c.update(network=external(name="resnet34")))
    refused(folder, "has a network of another library. timm has no classification network 'resnet34'. Did you mean")
    monkeypatch.setitem(sys.modules, "timm", None)
    refused(folder, "model.json has a network of another library. timm cannot be imported")


def test_network_is_not_built_before_its_weights_are_seen(saved: Path, monkeypatch: pytest.MonkeyPatch):
    devices = []
    build = FastNetSpec.build

    def watched(self: FastNetSpec, problem: Problem) -> nn.Module:
        network = build(self, problem)
        devices.append(next(network.parameters()).device.type)
        return network

    monkeypatch.setattr(FastNetSpec, "build", watched)
    rewrite(saved, lambda c: c["network"]["fields"].update(width=8))
    refused(saved, "is expected")
    assert set(devices) == {"meta"}


def test_photos_to_compare_with_are_kept_to_the_bit(tmp_path: Path):
    directions = torch.nn.functional.normalize(torch.randn(5, 1280, generator=torch.Generator().manual_seed(1)))
    model = dataclasses.replace(made(LiteSpec(width=0.25, depth=0.5)), known=Known(directions, 0.375))
    model.save(tmp_path / "model")
    found = load(tmp_path / "model").known
    assert found is not None
    assert torch.equal(found.features, directions)
    assert found.strange_above == 0.375


@pytest.mark.parametrize("spec", [FAST, WideResNetSpec(depth=10, widen=1, outputs=2)], ids=repr)
def test_photos_to_compare_with_are_refused_for_a_network_without_pooled_features(spec: ModelSpec, tmp_path: Path):
    folder = made(spec).save(tmp_path / "model")
    rewrite(folder, lambda c: c.update(known={"n": 5, "strange_above": 0.5}))
    refused(folder, "has no pooled features to compare photos by")
