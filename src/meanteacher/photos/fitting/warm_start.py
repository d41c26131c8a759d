"""Start from the model of an earlier fit: what is read from its folder, and the network that continues it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models import FastNetSpec, ModelSpec
from meanteacher.photos.model.bundle import Seen, load
from meanteacher.photos.model.manifest import read_manifest
from meanteacher.records import read_fit


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The network of `start`; the rows of its last layer are copied class by class."""

    network: FastNetSpec
    start: str
    """The folder of the model."""
    sha256: str
    """Digest of its weights, because another model makes another run."""
    class_names: tuple[str, ...]
    """Classes of the new run. A class that the earlier model does not have starts as a new row."""

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
    network: ModelSpec
    size: int
    sha256: str
    held_out: frozenset[str]
    """Names of the images that evaluated it and were not trained on; empty where it was evaluated with folds."""
    seen: Seen
    """The images it was trained on."""
    backbone: str
    """The pretrained network that it stands on; empty from scratch."""
    cut: int
    """How many of its first layers were frozen."""

    def continued(self, class_names: tuple[str, ...]) -> Continued:
        assert isinstance(self.network, FastNetSpec)
        return Continued(network=self.network, start=str(self.folder), sha256=self.sha256, class_names=class_names)

    def tail(self, class_names: tuple[str, ...]) -> dict[str, Tensor]:
        """The weights behind the cut and those of the classifier, in which a class that is new has zeros."""
        old = load(self.folder)
        layers = old.network
        assert isinstance(layers, nn.Sequential)
        tensors = nn.Sequential(*list(layers)[self.cut : -1]).state_dict()  # the tail counts its layers from 0
        last = layers[-1].state_dict()
        known = [name for name in class_names if name in old.class_names]
        rows, old_rows = ([names.index(name) for name in known] for names in (class_names, old.class_names))
        for name in ("weight", "bias"):
            tensors[f"head.{name}"] = torch.zeros(len(class_names), *last[name].shape[1:])
            tensors[f"head.{name}"][rows] = last[name][old_rows]
        return {name: tensor.clone() for name, tensor in tensors.items()}


def read_earlier_fit(folder: Path) -> EarlierFit:
    """Read the folder of a finished fit, and refuse a model that cannot be continued."""
    content = read_fit(folder)
    # Loaded whole, so that a damaged model is refused now and not after minutes.
    seen = load(folder).seen or Seen(complete=False)
    manifest = read_manifest(folder / "model" / "model.json")
    backbone = content.backbone.name if content.backbone else ""
    if not backbone and not isinstance(manifest.spec, FastNetSpec):
        raise InputError(
            f"The model in {folder} is a {type(manifest.spec).__name__}; only a FastNet or a network on a known "
            "backbone can be continued. Train a new one, without start (--start)."
        )
    about, held_out = manifest.content, frozenset(content.held_out)
    return EarlierFit(folder, manifest.spec, about.size, about.sha256, held_out, seen, backbone, content.plan.cut)
