"""Gaussian noise on the input."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Noise:
    """Add independent N(0, deviation²) to every value, after the images have been normalised (Table 5)."""

    deviation: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return images.add(noise, alpha=self.deviation)
