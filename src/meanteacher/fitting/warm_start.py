"""Start from the model of an earlier fit: what is read from its folder, and the network that continues it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from meanteacher.classifier.bundle import Seen, load
from meanteacher.classifier.manifest import read_manifest
from meanteacher.core import InputError, Problem
from meanteacher.models import FastNetSpec
from meanteacher.report import read_fit


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The network of `start`; the rows of its last layer are copied class by class."""

    network: FastNetSpec
    start: str
    """The folder of the model."""
    sha256: str
    """Of its weights: another model makes another run."""
    class_names: tuple[str, ...]
    """Of the new run. A class that the earlier model does not have starts as a new row."""

    def build(self, problem: Problem) -> nn.Module:
        old = load(self.start)
        old_weights = old.network.state_dict()
        network = self.network.build(problem)
        weights = network.state_dict()
        for name, tensor in old_weights.items():
            if name != "head.weight":
                if tensor.shape != weights[name].shape:
                    raise InputError(
                        f"The model in {self.start} has a {name} of shape {tuple(tensor.shape)}, the network to train "
                        f"has {tuple(weights[name].shape)}. Train a new one, without start (--start)."
                    )
                weights[name].copy_(tensor)
        with torch.no_grad():
            for row, class_name in enumerate(self.class_names):
                if class_name in old.class_names:
                    weights["head.weight"][row] = old_weights["head.weight"][old.class_names.index(class_name)]
        return network


@dataclass(frozen=True, slots=True)
class EarlierFit:
    """What a new fit needs of an earlier one."""

    folder: Path
    network: FastNetSpec
    size: int
    sha256: str
    held_out: frozenset[str]
    """Names of the images that evaluated it and were not trained on; empty where it was evaluated with folds."""
    seen: Seen
    """The images it was trained on."""

    def continued(self, class_names: tuple[str, ...]) -> Continued:
        return Continued(network=self.network, start=str(self.folder), sha256=self.sha256, class_names=class_names)


def read_earlier_fit(folder: Path) -> EarlierFit:
    """Read the folder of a finished fit.

    Raises:
        InputError: it holds none, or a model that cannot be continued.
    """
    held_out = frozenset(read_fit(folder)["held_out"])
    # Loaded whole, so that a damaged model is refused now and not after minutes.
    seen = load(folder).seen or Seen(complete=False)
    manifest = read_manifest(folder / "model" / "model.json")
    if not isinstance(manifest.spec, FastNetSpec):
        raise InputError(
            f"The model in {folder} is a {type(manifest.spec).__name__}; only a FastNet can be continued. "
            "Train a new one, without start (--start)."
        )
    return EarlierFit(folder, manifest.spec, manifest.size, manifest.sha256, held_out, seen)
