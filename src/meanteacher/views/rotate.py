"""Random rotation, and the sampling that every change of geometry shares."""

import math
from dataclasses import dataclass
from typing import Literal

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


def warped(
    images: Tensor,
    source: Tensor,
    *,
    size: tuple[int, int] | None = None,
    beyond: Literal["zeros", "border"] = "zeros",
) -> Tensor:
    """Each image as its own affine map shows it, bilinear.

    Args:
        images: [B, C, H, W]
        source: [B, 2, 3], takes a place (x, y, 1) of the result to the place of the image that is seen there,
            both in pixels right of and below the centre
        size: height and width of the result; those of the images by default
        beyond: what is seen where the map leads outside the image

    >>> right = torch.tensor([[[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]])
    >>> warped(torch.tensor([[[[1.0, 2.0, 3.0]]]]), right)
    tensor([[[[0., 1., 2.]]]])
    """
    y, x = (
        torch.arange(length, device=source.device, dtype=source.dtype) - (length - 1) / 2
        for length in size or images.shape[2:]
    )
    # torch measures places in halves of the image.
    source = source / (source.new_tensor([images.shape[3], images.shape[2]])[:, None] / 2)
    across = source[:, :, :1, None] * x
    down = (source[:, :, 1:2] * y + source[:, :, 2:])[..., None]
    # All x, then all y: several times as fast to add, and as fast to sample by, as the pairs of affine_grid.
    grid = (across + down).permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=beyond, align_corners=False)
