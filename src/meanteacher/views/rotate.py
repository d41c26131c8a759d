"""Random rotation, and the sampling that every change of geometry shares."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import InputError


@dataclass(frozen=True)
class Rotate:
    """Turn each image about its centre by an angle uniform within ±`degrees` (10 on ImageNet, App. B.2.2).

    What turns in from outside the image is zero, the mean of normalised data.
    """

    degrees: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.degrees <= 180:
            raise InputError(f"Rotate turns by up to 0 to 180 degrees either way; got {self.degrees}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draw = torch.rand(len(images), generator=generator, device=images.device, dtype=images.dtype)
        return warped(images, rotation((2 * draw - 1) * math.radians(self.degrees)))


def rotation(angle: Tensor) -> Tensor:
    """[B, 2, 3]: what `warped` needs to turn each image counter-clockwise by its angle in radians."""
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([cosine, -sine, zero, sine, cosine, zero], 1).view(-1, 2, 3)


def warped(images: Tensor, source: Tensor) -> Tensor:
    """Each image as its own affine map shows it, bilinear, zero where the map leads outside the image.

    `source` is [B, 2, 3]: it takes a place (x, y, 1) of the result to the place of the image that is seen
    there, both in pixels right of and below the centre.

    >>> right = torch.tensor([[[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]])
    >>> warped(torch.tensor([[[[1.0, 2.0, 3.0]]]]), right)
    tensor([[[[0., 1., 2.]]]])
    """
    height, width = images.shape[2:]
    # torch measures each axis in halves of the image, which would shear a rotated image that is not square.
    half = source.new_tensor([width / 2, height / 2])
    scaled = source * torch.cat([half, half.new_ones(1)]) / half[:, None]
    grid = F.affine_grid(scaled, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
