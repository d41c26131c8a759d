"""From bytes to the numbers a network sees: fitted once on training images, then the same for every role.

A normaliser is a frozen value with `fit`, which returns a module. The module's tensors are saved with the
weights: a network is of no use without the normalisation it was trained behind.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

_CHUNK = 4096
"""Images made float at a time while fitting, so that a large set is never float as a whole."""


class Normaliser(Protocol):
    """The part of a recipe that becomes a module once the training images are known."""

    def fit(self, images: Tensor) -> nn.Module: ...


def to_float(images: Tensor) -> Tensor:
    """Bytes as [0, 1]; floating point as it is.

    >>> to_float(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return images if images.is_floating_point() else images.float().div_(255)


@dataclass(frozen=True)
class PerImage:
    """Each image to zero mean and unit variance over all its pixels and channels (SVHN, App. B.1.2)."""

    def fit(self, images: Tensor) -> nn.Module:
        return _PerImageModule()


class _PerImageModule(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        x = to_float(images)
        axes = tuple(range(1, x.ndim))
        variance, mean = torch.var_mean(x, dim=axes, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + 1e-12)


@dataclass(frozen=True)
class PerChannel:
    """Each channel, or each feature of a table, to zero mean and unit variance over the training data."""

    def fit(self, images: Tensor) -> nn.Module:
        total = torch.zeros(images.shape[1], dtype=torch.float64)
        squares = torch.zeros_like(total)
        for chunk in images.split(_CHUNK):
            x = to_float(chunk).flatten(2) if chunk.ndim > 2 else to_float(chunk)[:, :, None]
            total += x.sum((0, 2), dtype=torch.float64)
            squares += x.double().square().sum((0, 2))
        count = images.numel() // images.shape[1]
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        # A channel that never varies carries nothing; dividing by its zero would make it infinite.
        deviation[deviation < 1e-8] = 1
        shape = (1, -1, *[1] * (images.ndim - 2))
        return _PerChannelModule(mean.float().view(shape), deviation.float().view(shape))


class _PerChannelModule(nn.Module):
    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, images: Tensor) -> Tensor:
        return (to_float(images) - self.mean) / self.deviation
