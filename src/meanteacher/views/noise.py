"""Gaussian noise on the input."""

from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import InputError


@dataclass(frozen=True)
class Noise:
    """Add independent N(0, deviation²) to every value, after the images have been normalised (Table 5)."""

    deviation: float

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise InputError(f"Noise needs a deviation of at least 0; got {self.deviation}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return images.add(noise, alpha=self.deviation)
