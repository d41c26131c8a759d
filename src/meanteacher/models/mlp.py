"""A multilayer perceptron, for points, tables and very small images."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from meanteacher.core import Problem
from meanteacher.models.layers import Outputs, last_layer


@dataclass(frozen=True, kw_only=True)
class MlpSpec:
    """Fully connected layers with ReLU, and dropout before each but the first."""

    hidden: tuple[int, ...] = (256, 256)
    dropout: float = 0.0
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        sizes = (prod(problem.input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(self.dropout)]
        return nn.Sequential(*layers, last_layer(self.outputs, lambda: nn.Linear(sizes[-1], problem.n_classes)))
