"""Normalisation of images, fitted to the training images and the same for every role."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from meanteacher.core import Images, InputError, parts
from meanteacher.passes import at_least_float32

_VALUES = 1 << 24
"""Values that `PerChannel` converts to float at a time, so that a large set is never float as a whole."""


class Normaliser(Protocol):
    """The part of a recipe that builds the normalisation from the training images.

    >>> class Centred:
    ...     def fit(self, images, index=None):
    ...         return nn.Identity()
    >>> Centred().fit(torch.rand(4, 3, 8, 8))
    Identity()
    """

    def fit(self, images: Images, index: Tensor | None = None) -> nn.Module:
        """The normalisation, fitted to these images, or to those at the positions `index` [N]."""
        ...


def to_float(images: Tensor) -> Tensor:
    """Bytes scaled to [0, 1], half precision as float32; other floating point is unchanged.

    >>> to_float(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return at_least_float32(images) if images.is_floating_point() else images.float().div_(255)


class ToFloat(nn.Module):
    """The normalisation of images that come normalised: `to_float`."""

    def forward(self, images: Tensor) -> Tensor:
        return to_float(images)


@dataclass(frozen=True)
class PerImage:
    """Scale each image to zero mean and unit variance over all its pixels and channels (SVHN, App. B.1.2).

    >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    >>> bool(PerImage().fit(images)(images).mean().abs() < 1e-5)
    True
    """

    def fit(self, images: Images, index: Tensor | None = None) -> nn.Module:
        return _PerImageModule()


class _PerImageModule(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        x = to_float(images)
        axes = tuple(range(1, x.ndim))
        variance, mean = torch.var_mean(x, dim=axes, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + 1e-12)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Scale bytes to the range from -`limit` to `limit`, without statistics of the images.

    Miyato et al. (2017) use a limit of 0.5, Salimans et al. (2016) of 1. Floating-point images must be in [0, 1].

    >>> Scaled(limit=1.0).fit(torch.zeros(1))(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-1.,  1.])
    """

    limit: float

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise InputError(f"Scaled needs a limit above 0; got {self.limit}.")

    def fit(self, images: Images, index: Tensor | None = None) -> nn.Module:
        return _ScaledModule(self.limit)


class _ScaledModule(nn.Module):
    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, images: Tensor) -> Tensor:
        return (to_float(images) - 0.5) * (2 * self.limit)


@dataclass(frozen=True)
class PerChannel:
    """Scale each channel, or each feature of a table, to zero mean and unit variance over the training data.

    >>> images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    >>> bool(PerChannel().fit(images)(images).mean((0, 2, 3)).abs().max() < 1e-5)
    True
    """

    def fit(self, images: Images, index: Tensor | None = None) -> nn.Module:
        # Sums of differences from one value of each channel are precise also for a large mean, and exactly zero for a
        # constant channel.
        origin = _by_channel(next(parts(images, index, 1)))[0, :, :1]
        total = torch.zeros(images.shape[1], dtype=torch.float64)
        squares = torch.zeros_like(total)
        for chunk in parts(images, index, max(1, _VALUES // math.prod(images.shape[1:]))):
            x = _by_channel(chunk) - origin
            total += x.sum((0, 2))
            squares += x.square().sum((0, 2))
        count = (len(images) if index is None else len(index)) * math.prod(images.shape[2:])
        offset = total / count
        deviation = (squares / count - offset.square()).clamp_min(0).sqrt()
        # A constant channel becomes zero; it must not be divided by zero.
        deviation[deviation == 0] = 1
        mean = origin[:, 0] + offset
        shape = (1, -1, *[1] * (len(images.shape) - 2))
        return _PerChannelModule(mean.float().view(shape), deviation.float().view(shape))


def per_channel(mean: Sequence[float], deviation: Sequence[float]) -> nn.Module:
    """The module of `PerChannel` for known statistics of images with values in [0, 1]."""
    return _PerChannelModule(*(torch.tensor(values).view(1, -1, 1, 1) for values in (mean, deviation)))


def _by_channel(images: Tensor) -> Tensor:
    """The images as [N, C, values of a channel], in double precision."""
    return to_float(images).double().reshape(len(images), images.shape[1], -1)


class _PerChannelModule(nn.Module):
    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, images: Tensor) -> Tensor:
        return (to_float(images) - self.mean) / self.deviation


_CHUNK = 4096
_CONTRAST_NORM = 55.0
"""Length that each image is scaled to. With sqrt(3072) = 55.4 the pixels have about unit variance."""


@dataclass(frozen=True, kw_only=True)
class Zca:
    """Whiten with the statistics of the training images.

    `Zca(contrast=True, epsilon=0.1)` is the authors' code, which first centres each image and scales it to one length.
    `Zca(contrast=False, epsilon=1e-5)` is the code of Laine & Aila. The paper states neither.

    >>> images = torch.randint(256, (20, 1, 2, 2), dtype=torch.uint8)
    >>> Zca(contrast=False, epsilon=1e-5).fit(images)(images).shape
    torch.Size([20, 1, 2, 2])
    """

    contrast: bool
    epsilon: float
    """Addend to the diagonal of the covariance, which limits the scale of directions with little variance."""

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InputError(f"Zca needs an epsilon of at least 0; got {self.epsilon}.")

    def fit(self, images: Images, index: Tensor | None = None) -> nn.Module:
        n_values = math.prod(images.shape[1:])
        total = torch.zeros(n_values, dtype=torch.float64)
        products = torch.zeros(n_values, n_values, dtype=torch.float64)
        for chunk in parts(images, index, _CHUNK):
            x = _flat(chunk, contrast=self.contrast)
            total += x.sum(0, dtype=torch.float64)
            products += (x.T @ x).double()
        n = len(images) if index is None else len(index)
        mean = total / n
        covariance = products / n - mean.outer(mean)
        covariance.diagonal().add_(self.epsilon)
        values, vectors = torch.linalg.eigh(covariance)
        whiten = (vectors * values.clamp_min(1e-12).rsqrt()) @ vectors.T
        return _ZcaModule(mean.float(), whiten.float(), contrast=self.contrast)


class _ZcaModule(nn.Module):
    mean: Tensor
    whiten: Tensor

    def __init__(self, mean: Tensor, whiten: Tensor, *, contrast: bool) -> None:
        super().__init__()
        self.contrast = contrast
        self.register_buffer("mean", mean)
        self.register_buffer("whiten", whiten)

    def forward(self, images: Tensor) -> Tensor:
        x = _flat(images, contrast=self.contrast)
        return ((x - self.mean) @ self.whiten).view(images.shape)


def _flat(images: Tensor, *, contrast: bool) -> Tensor:
    x = to_float(images).flatten(1)
    if contrast:
        x = x - x.mean(1, keepdim=True)
        # A difference of one byte has length 0.004. A smaller length is rounding in an image without contrast.
        x = x * (_CONTRAST_NORM / x.norm(dim=1, keepdim=True).clamp_min(1e-3))
    return x
