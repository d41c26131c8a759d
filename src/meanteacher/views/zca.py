"""ZCA whitening: pixels decorrelated, the image still an image (CIFAR-10, App. B.1.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher.core import InputError
from meanteacher.views.normalise import parts, to_float

_CHUNK = 4096
_CONTRAST_NORM = 55.0
"""The length each image is scaled to: 55 = sqrt(3072) within a percent, so pixels have unit variance."""


@dataclass(frozen=True, kw_only=True)
class Zca:
    """Whiten with the statistics of the training images.

    `Zca(contrast=True, epsilon=0.1)` is the authors' code: each image centred and scaled to one length
    first. `Zca(contrast=False, epsilon=1e-5)` is that of Laine & Aila. The paper states neither.
    """

    contrast: bool
    epsilon: float
    """Added to the covariance's diagonal: how far directions of little variance are left alone."""

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise InputError(f"Zca adds an epsilon of at least 0 to the covariance; got {self.epsilon}.")

    def fit(self, images: Tensor, index: Tensor | None = None) -> nn.Module:
        n_values = images[0].numel()
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
        # One byte of difference has length 0.004; less is the rounding of an image without any contrast.
        x = x * (_CONTRAST_NORM / x.norm(dim=1, keepdim=True).clamp_min(1e-3))
    return x
