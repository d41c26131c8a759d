"""A network that goes on from a shipped model, with more classes where there are new ones."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from meanteacher.core import InputError, Problem
from meanteacher.fit.bundle import load_bundle
from meanteacher.models import FastNet


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The network of `start`, its last layer's rows carried over class by class."""

    network: FastNet
    start: str
    """The folder of the model."""
    sha256: str
    """Of its weights: another model makes another run."""
    class_names: tuple[str, ...]
    """Of the new run; a class that the model does not know starts as a new row."""

    def build(self, problem: Problem) -> nn.Module:
        old = load_bundle(Path(self.start))
        network = self.network.build(problem)
        weights = network.state_dict()
        for name, tensor in old.network.state_dict().items():
            if name != "head.weight":
                if tensor.shape != weights[name].shape:
                    raise InputError(
                        f"The model in {self.start} has a {name} of shape {tuple(tensor.shape)}, the network to go on "
                        f"with {tuple(weights[name].shape)}. Start anew, without --from."
                    )
                weights[name].copy_(tensor)
        with torch.no_grad():
            for row, class_name in enumerate(self.class_names):
                if class_name in old.class_names:
                    weights["head.weight"][row] = old.network.state_dict()["head.weight"][
                        old.class_names.index(class_name)
                    ]
        return network
