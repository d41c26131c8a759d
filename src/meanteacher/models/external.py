"""Any network of timm or torchvision by name, if the library is installed."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem, check_choice
from meanteacher.models.layers import Outputs, channels_of, check_outputs
from meanteacher.passes import Logits

Library = Literal["timm", "torchvision"]


@dataclass(frozen=True, kw_only=True)
class ExternalSpec:
    """A classification network built from its name, without pretrained weights.

    timm and torchvision are not dependencies of this package: they are imported when a network is built.
    """

    library: Library
    name: str
    outputs: Outputs = 1

    def __post_init__(self) -> None:
        check_choice("library", self.library, get_args(Library))
        check_outputs(self.outputs)

    def build(self, problem: Problem) -> nn.Module:
        n_channels = channels_of(problem, f"{self.library}'s {self.name}")
        n_logits = self.outputs * problem.n_classes
        if self.library == "timm":
            timm = _imported("timm", self.library)
            self._check_name(timm.list_models())
            network = timm.create_model(self.name, pretrained=False, in_chans=n_channels, num_classes=n_logits)
        else:
            models = _imported("torchvision.models", self.library)
            # Those of the module itself; its submodules have networks for other tasks than classification.
            self._check_name(models.list_models(module=models))
            network = models.get_model(self.name, weights=None, num_classes=n_logits)
            _take_channels(network, n_channels)
        return ExternalNetwork(network, problem.n_classes, self)

    def _check_name(self, known: list[str]) -> None:
        if self.name not in known:
            near = get_close_matches(self.name, known, n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"It has {len(known)} others."
            raise InputError(f"{self.library} has no classification network {self.name!r}. {hint}")


class ExternalNetwork(nn.Module):
    """The network of the other library; checks that it returns logits as this package expects."""

    def __init__(self, network: nn.Module, n_classes: int, spec: ExternalSpec) -> None:
        super().__init__()
        self.network = network
        self.n_classes = n_classes
        self.spec = spec

    def forward(self, x: Tensor) -> Logits:
        """With two outputs, the two halves of one last layer of twice the size, which share no weight."""
        logits = self.network(x)
        expected = (len(x), self.spec.outputs * self.n_classes)
        if not isinstance(logits, Tensor) or logits.shape != expected:
            got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(
                f"{self.spec.library}'s {self.spec.name} returns {got} where a tensor of logits of shape {expected} is "
                "expected. Choose a network without further outputs."
            )
        if self.spec.outputs == 1:
            return logits
        return logits[:, : self.n_classes], logits[:, self.n_classes :]


def _imported(module: str, library: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:
        # A build for another torch fails in many ways: RuntimeError, OSError, AttributeError.
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{library} cannot be imported ({type(error).__name__}: {reason}). Install it to match this torch with "
            f"`{_install_command(library, torch.__version__)}`; meanteacher's own networks work without it."
        ) from error


def _install_command(library: str, torch_version: str) -> str:
    """A command that keeps the installed torch, and replaces a torchvision built for another.

    >>> _install_command("timm", "2.13.0+cpu")
    'pip install -U timm torchvision torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu'
    """
    version, _, build = torch_version.partition("+")
    packages = "timm torchvision" if library == "timm" else "torchvision"
    has_index = re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", build)
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if has_index else ""
    return f"pip install -U {packages} torch=={version}{index}"


def _take_channels(network: nn.Module, n_channels: int) -> None:
    """torchvision's networks take three channels; make the first convolution take another number of them."""
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    if first.in_channels == n_channels:
        return
    first.in_channels = n_channels
    first.weight = nn.Parameter(first.weight.new_empty(first.out_channels, n_channels, *first.kernel_size))
    first.reset_parameters()
