"""Any network of timm or torchvision by name, with or without pretrained weights, if the library is installed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from meanteacher.core import InputError, MissingBackboneError, Problem, check_choice
from meanteacher.models.layers import Outputs, channels_of, check_outputs
from meanteacher.passes import Logits

Library = Literal["timm", "torchvision"]


@dataclass(frozen=True, kw_only=True)
class _LibrarySpec:
    library: Library
    name: str

    def __post_init__(self) -> None:
        check_choice("library", self.library, get_args(Library))

    def _create(self, problem: Problem, of_timm: dict[str, Any], of_torchvision: dict[str, Any]) -> nn.Module:
        """The network without pretrained weights, with these options of its library."""
        n_channels = channels_of(problem, f"{self.library}'s {self.name}")
        models = _models(self.library)
        _check_name(models, self.library, self.name)
        if self.library == "timm":
            network: nn.Module = models.create_model(self.name, pretrained=False, in_chans=n_channels, **of_timm)
        else:
            network = models.get_model(self.name, weights=None, **of_torchvision)
            _take_channels(network, n_channels)
        return network


@dataclass(frozen=True, kw_only=True)
class ExternalSpec(_LibrarySpec):
    """A classification network of another library by its name, without pretrained weights.

    timm and torchvision are not dependencies of this package. They are imported when a network is built.

    >>> ExternalSpec(library="timm", name="resnet18").outputs
    1
    """

    outputs: Outputs = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outputs(self.outputs)

    def build(self, problem: Problem) -> nn.Module:
        options = {"num_classes": self.outputs * problem.n_classes}
        return ExternalNetwork(self._create(problem, options, options), problem.n_classes, self)


class ExternalNetwork(nn.Module):
    """The network of the other library, with a check that it returns logits."""

    def __init__(self, network: nn.Module, n_classes: int, spec: ExternalSpec) -> None:
        super().__init__()
        self.network = network
        self.n_classes = n_classes
        self.spec = spec

    def forward(self, x: Tensor) -> Logits:
        """The logits; two outputs are the halves of one last layer of twice the size, which share no weight."""
        logits = _checked(self.network(x), "logits", (x.shape[0], self.spec.outputs * self.n_classes), self.spec)
        if self.spec.outputs == 1:
            return logits
        return logits[:, : self.n_classes], logits[:, self.n_classes :]


@dataclass(frozen=True, kw_only=True)
class PooledSpec(_LibrarySpec):
    """A network of another library as a sequence of two layers: its pooled features, and a linear classifier.

    It is built without pretrained weights; `pretrained_features` has the weights of the first layer.

    >>> PooledSpec(library="torchvision", name="resnet18").name
    'resnet18'
    """

    def build(self, problem: Problem) -> nn.Sequential:
        # A vision transformer has parameters for each position, and timm reads their number in the configuration.
        of_timm = {"num_classes": 0, "pretrained_cfg_overlay": {"input_size": problem.input_shape}}
        features = PooledFeatures(self._create(problem, of_timm, {}), self)
        return nn.Sequential(features, nn.Linear(features.n_features, problem.n_classes))


class PooledFeatures(nn.Module):
    """The network of the other library without its classifier, with a check that it returns [B, n_features]."""

    def __init__(self, network: nn.Module, spec: PooledSpec) -> None:
        super().__init__()
        if spec.library == "timm":
            # Some networks have one more layer between the pooling and the classifier.
            self.n_features = int(getattr(network, "head_hidden_size", None) or cast(Any, network).num_features)
        else:
            self.n_features = _cut_last_layer(network, spec)
        self.network = network
        self.spec = spec

    def forward(self, x: Tensor) -> Tensor:
        return _checked(self.network(x), "pooled features", (x.shape[0], self.n_features), self.spec)


def _checked(output: object, kind: str, expected: tuple[int, int], spec: ExternalSpec | PooledSpec) -> Tensor:
    if isinstance(output, Tensor) and output.shape == expected:
        return output
    got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    raise InputError(
        f"{spec.library}'s {spec.name} returns {got}, but {kind} of shape {expected} are expected. Choose another "
        "network, for instance one without further outputs."
    )


def pretrained_features(library: Library, name: str) -> tuple[PooledFeatures, dict[str, Any]]:
    """The pretrained network of this name in evaluation mode; for timm also "hf-hub:owner/name".

    The library downloads it on first use. The `spec` of the network builds it without weights and without a download.
    The second value has the library's information: size, mean, deviation, licence and trained_on.
    """
    check_choice("library", library, get_args(Library))
    models = _models(library)
    if library == "timm":
        if not name.startswith(_HUB):
            _check_name(models, library, name)
        network = _downloaded(library, name, lambda: models.create_model(name, pretrained=True, num_classes=0))
        about: Mapping[str, Any] = network.pretrained_cfg
        spec = PooledSpec(library=library, name=about["architecture"] if name.startswith(_HUB) else name)
        return PooledFeatures(network, spec).eval(), preprocessing(about) | _origin(about)
    _check_name(models, library, name)
    weights = models.get_model_weights(name).DEFAULT
    network = _downloaded(library, name, lambda: models.get_model(name, weights=weights))
    preset = weights.transforms()
    return PooledFeatures(network, PooledSpec(library=library, name=name)).eval(), {
        "size": preset.crop_size[0],
        "mean": _three(preset.mean),
        "deviation": _three(preset.std),
        # The metadata name a licence only if it differs from the library's.
        "licence": weights.meta.get("license", "BSD-3-Clause"),
        "trained_on": "ImageNet-1k",
    }


def preprocessing(about: Mapping[str, Any]) -> dict[str, Any]:
    """Size, mean and deviation of the images, from the configuration of a network of timm."""
    return {"size": int(about["input_size"][-1]), "mean": _three(about["mean"]), "deviation": _three(about["std"])}


_HUB = "hf-hub:"
_DATA = {
    "in1k": "ImageNet-1k",
    "in12k": "ImageNet-12k",
    "in21k": "ImageNet-21k",
    "in22k": "ImageNet-22k",
    "lvd142m": "LVD-142M",
    "laion2b": "LAION-2B",
}
"""part of a tag of timm -> name of the training data."""


def _origin(about: Mapping[str, Any]) -> dict[str, Any]:
    """Licence and training data, as far as timm knows them.

    >>> _origin({"license": "apache-2.0", "tag": "fb_in22k_ft_in1k"})
    {'licence': 'apache-2.0', 'trained_on': 'ImageNet-22k, ImageNet-1k'}
    """
    named = [_DATA[part] for part in (about.get("tag") or "").split("_") if part in _DATA]
    return {"licence": about.get("license") or "unknown", "trained_on": ", ".join(named) or "unknown"}


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = map(float, values)
    return red, green, blue


def _downloaded(library: Library, name: str, create: Callable[[], Any]) -> Any:
    try:
        return create()
    except Exception as error:
        # The libraries raise many types: for a missing connection, an unknown repository, a network without weights.
        reason = str(error).strip().partition("\n")[0]
        raise MissingBackboneError(
            f"{library} could not load pretrained weights of {name} ({type(error).__name__}: {reason}). They are "
            "downloaded on first use: check the name and the connection to the internet."
        ) from error


def _cut_last_layer(network: nn.Module, spec: PooledSpec) -> int:
    """Replace the last linear layer, the classifier, by the identity, and return its number of inputs."""
    linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise InputError(f"{spec.library}'s {spec.name} does not end in a linear layer. Choose another network.")
    parent, _, last = linear[-1].rpartition(".")
    n_features = int(cast(nn.Linear, network.get_submodule(linear[-1])).in_features)
    setattr(network.get_submodule(parent), last, nn.Identity())
    return n_features


def _check_name(models: Any, library: Library, name: str) -> None:
    # torchvision has networks for other tasks in submodules.
    known = models.list_models() if library == "timm" else models.list_models(module=models)
    # A name of timm may end in a tag, which identifies the training of the weights.
    if name.partition(".")[0] not in known:
        near = get_close_matches(name, known, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Choose one of its {len(known)} networks."
        raise InputError(f"{library} has no classification network {name!r}. {hint}")


def _models(library: Library) -> Any:
    """The library's module of networks."""
    try:
        return import_module("timm" if library == "timm" else "torchvision.models")
    except Exception as error:
        # A build for another torch raises a RuntimeError, an OSError, an AttributeError or others.
        reason = str(error).partition("\n")[0]
        raise MissingBackboneError(
            f"{library} cannot be imported ({type(error).__name__}: {reason}). Install it to match this torch with "
            f"`{_install_command(library, torch.__version__)}`; meanteacher's own networks work without it."
        ) from error


def _install_command(library: str, torch_version: str) -> str:
    """A command that keeps the installed torch and replaces a torchvision that was built for another one.

    >>> _install_command("timm", "2.13.0+cpu")
    'pip install -U timm torchvision torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu'
    """
    version, _, build = torch_version.partition("+")
    packages = "timm torchvision" if library == "timm" else "torchvision"
    has_index = re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", build)
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if has_index else ""
    return f"pip install -U {packages} torch=={version}{index}"


def _take_channels(network: nn.Module, n_channels: int) -> None:
    """Replace the weights of the first convolution if the images do not have the three channels of torchvision."""
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    if first.in_channels == n_channels:
        return
    first.in_channels = n_channels
    first.weight = nn.Parameter(first.weight.new_empty(first.out_channels, n_channels, *first.kernel_size))
    first.reset_parameters()
