"""Geometric views for segmentation: images, their labels and the predictions for them move together."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.views.geometry import rotation, warped

_WHOLE = 0.999
"""From this share on, all pixels that a value is made of lie inside the image."""


class Move:
    """The movement of each image of a batch, as `Warp.draw` drew it. Nothing is drawn here.

    Args:
        source: [B, 2, 3], as `warped` takes it
        size: height and width of the images
    """

    def __init__(self, source: Tensor, size: tuple[int, int]) -> None:
        self.source, self.size = source, size

    def __call__(self, x: Tensor) -> Tensor:
        """Images, or logits for them, [B, C, H, W], each moved by its own movement; bilinear, zero from outside.

        Logits at another resolution than the images move by as much of their width and height.
        """
        return warped(x, self._scaled(x.shape[-2:]).to(x.dtype))

    def labels(self, labels: Tensor) -> Tensor:
        """Labels [B, H, W] as int64, each pixel the nearest; `UNLABELLED` from outside."""
        source = self._scaled(labels.shape[-2:])
        # What comes from outside is zero.
        moved = warped((labels.long() - UNLABELLED)[:, None].to(source.dtype), source, between="nearest")
        return moved[:, 0].long() + UNLABELLED

    def seen(self, size: tuple[int, int] | None = None) -> Tensor:
        """[B, H, W] of bool: the pixels that show the image, rather than what lies outside of it."""
        height, width = size or self.size
        ones = self.source.new_ones(len(self.source), 1, height, width)
        return self(ones)[:, 0] > _WHOLE

    def _scaled(self, size: torch.Size) -> Tensor:
        height, width = size
        ratio = self.source.new_tensor([width / self.size[1], height / self.size[0]])
        turned = self.source[:, :, :2] * (ratio[:, None] / ratio)
        return torch.cat([turned, self.source[:, :, 2:] * ratio[:, None]], 2)


@dataclass(frozen=True, kw_only=True)
class Warp:
    """Flip, translate, rotate and crop each image at random, and with it all that belongs to its pixels.

    The teacher sees the images as they are, and its prediction is moved as the student's image was::

        move = Warp(translate=4, degrees=15).draw(images, generator)
        logits = student(move(images))
        target = move(teacher(images))
        cost = classification_cost(logits, move.labels(labels))
        cost = cost + weight * softmax_mse(logits, target, rows=move.seen())

    As a view like any other, `Warp()(images, generator)` shows the moved images.

    >>> Warp(degrees=15)(torch.zeros(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    flip: bool = True
    """Mirror left to right with probability one half."""
    translate: float = 0.0
    """Shift by up to so many pixels along each axis."""
    degrees: float = 0.0
    """Rotate about the centre by an angle within ±`degrees`."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Show a box with this share of the image's area, from least to most, at the size of the image."""

    def __post_init__(self) -> None:
        if not 0 <= self.translate < math.inf:
            raise InputError(f"Warp's translate is a number of pixels, at least 0; got {self.translate}.")
        if not 0 <= self.degrees <= 180:
            raise InputError(f"Warp's degrees lie within 0 to 180; got {self.degrees}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"Warp's scale is two rising shares of the area within (0, 1]; got {self.scale}.")

    def draw(self, images: Tensor, generator: torch.Generator) -> Move:
        """A movement for each of the images [B, C, H, W].

        >>> move = Warp(flip=False, translate=1.0).draw(torch.zeros(4, 3, 8, 8), torch.Generator().manual_seed(0))
        >>> move.labels(torch.ones(4, 8, 8, dtype=torch.int64)).shape, move.seen().dtype
        (torch.Size([4, 8, 8]), torch.bool)
        """
        n, _, height, width = images.shape
        kind = torch.promote_types(images.dtype, torch.float32)
        draws = torch.rand(7, n, generator=generator, device=images.device, dtype=kind)
        either_way = 2 * draws - 1
        source = rotation(either_way[0] * math.radians(self.degrees))
        zoom = (self.scale[0] + (self.scale[1] - self.scale[0]) * draws[1]).sqrt()
        linear = source[:, :, :2] * zoom[:, None, None]
        if self.flip:
            mirror = torch.stack([(draws[2] < 0.5) * -2.0 + 1, torch.ones_like(zoom)], 1)
            linear = linear * mirror[:, None]
        # The middle of a box inside the image lies within ±(1 - its share) of half the image.
        room = (1 - zoom) / 2
        right = either_way[3] * self.translate + either_way[4] * room * width
        down = either_way[5] * self.translate + either_way[6] * room * height
        return Move(torch.cat([linear, torch.stack([right, down], 1)[:, :, None]], 2), (height, width))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.draw(images, generator)(images)
