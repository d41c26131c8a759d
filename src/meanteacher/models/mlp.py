"""A multilayer perceptron, and the generators of the improved GAN."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from meanteacher.core import InputError, Problem
from meanteacher.models.layers import Outputs, check_width, last_layer


@dataclass(frozen=True, kw_only=True)
class MlpSpec:
    """Fully connected layers with ReLU, and dropout before every layer but the first.

    >>> import torch
    >>> network = MlpSpec(hidden=(64, 64)).build(Problem(n_classes=10, n_examples=1, input_shape=(20,)))
    >>> network(torch.rand(2, 20)).shape
    torch.Size([2, 10])
    """

    hidden: tuple[int, ...] = (256, 256)
    dropout: float = 0.0
    outputs: Outputs = 1

    def build(self, problem: Problem) -> nn.Module:
        sizes = (prod(problem.input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(self.dropout)]
        return nn.Sequential(*layers, last_layer(self.outputs, lambda: nn.Linear(sizes[-1], problem.n_classes)))


@dataclass(frozen=True, kw_only=True)
class PointGeneratorSpec:
    """A fully connected generator for points and tables.

    >>> import torch
    >>> generator = PointGeneratorSpec(n_noise=8).build(Problem(n_classes=2, n_examples=1, input_shape=(20,)))
    >>> generator(torch.randn(5, 8)).shape
    torch.Size([5, 20])
    """

    n_noise: int = 8
    hidden: tuple[int, int] = (64, 64)

    def build(self, problem: Problem) -> nn.Module:
        first, second = self.hidden
        return nn.Sequential(
            nn.Linear(self.n_noise, first),
            nn.ReLU(),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, prod(problem.input_shape)),
            nn.Unflatten(1, problem.input_shape),
        )


@dataclass(frozen=True, kw_only=True)
class ImageGeneratorSpec:
    """A generator of 32x32 images: transposed convolutions with batch normalisation (Salimans et al. 2016, Sec. 6).

    >>> import torch
    >>> problem = Problem(n_classes=10, n_examples=1, input_shape=(3, 32, 32))
    >>> ImageGeneratorSpec(width=0.1).build(problem)(torch.randn(5, 100)).shape
    torch.Size([5, 3, 32, 32])
    """

    n_noise: int = 100
    width: float = 1.0

    def build(self, problem: Problem) -> nn.Module:
        n_channels, *size = problem.input_shape
        if size != [32, 32]:
            raise InputError(
                f"ImageGenerator generates images of 32x32 pixels, but the data have shape {problem.input_shape}. Use "
                "PointGeneratorSpec, or a generator of your own."
            )
        check_width(self.width, "ImageGenerator")
        n512, n256, n128 = (max(1, round(n * self.width)) for n in (512, 256, 128))

        def up(n_in: int, n_out: int) -> list[nn.Module]:
            return [
                nn.ConvTranspose2d(n_in, n_out, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(n_out),
                nn.ReLU(),
            ]

        return nn.Sequential(
            nn.Linear(self.n_noise, n512 * 16, bias=False),
            nn.BatchNorm1d(n512 * 16),
            nn.ReLU(),
            nn.Unflatten(1, (n512, 4, 4)),
            *up(n512, n256),
            *up(n256, n128),
            nn.ConvTranspose2d(n128, n_channels, 4, stride=2, padding=1),
        )
