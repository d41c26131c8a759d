"""Geometric views for segmentation: images, their labels and the predictions for them move together."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.views.geometry import rotation, warped

_INSIDE = 0.999
"""Lowest share of a value that comes from pixels of the image, for the value to count as inside it."""


class Move:
    """The movements that `Warp.draw` drew for the images of a batch. Its functions are deterministic.

    Args:
        source: affine map of each image [B, 2, 3], as in `warped`
        size: height and width of the images
    """

    def __init__(self, source: Tensor, size: tuple[int, int]) -> None:
        self.source, self.size = source, size

    def __call__(self, x: Tensor) -> Tensor:
        """The moved images, or logits of them, [B, C, H, W], with bilinear interpolation and zeros outside.

        Logits with another resolution than the images move by the same share of their width and height.
        """
        return warped(x, self._scaled(x.shape[-2:]).to(x.dtype))

    def labels(self, labels: Tensor) -> Tensor:
        """The moved labels [B, H, W] as int64, with the nearest label at each pixel and `UNLABELLED` outside."""
        source = self._scaled(labels.shape[-2:])
        # `warped` fills with zero, so the labels are shifted until zero means `UNLABELLED`.
        moved = warped((labels.long() - UNLABELLED)[:, None].to(source.dtype), source, between="nearest")
        return moved[:, 0].long() + UNLABELLED

    def seen(self, size: tuple[int, int] | None = None) -> Tensor:
        """Mask [B, H, W] of the pixels that show the image and not the space around it."""
        height, width = size or self.size
        ones = self.source.new_ones(len(self.source), 1, height, width)
        return self(ones)[:, 0] > _INSIDE

    def _scaled(self, size: torch.Size) -> Tensor:
        height, width = size
        ratio = self.source.new_tensor([width / self.size[1], height / self.size[0]])
        turned = self.source[:, :, :2] * (ratio[:, None] / ratio)
        return torch.cat([turned, self.source[:, :, 2:] * ratio[:, None]], 2)


@dataclass(frozen=True, kw_only=True)
class Warp:
    """Flip, translate, rotate and crop each image at random, together with its labels and predictions.

    The teacher sees the original images, and its predictions are moved like the student's images::

        move = Warp(translate=4, degrees=15).draw(images, generator)
        logits = student(move(images))
        target = move(teacher(images))
        cost = classification_cost(logits, move.labels(labels))
        cost = cost + weight * softmax_mse(logits, target, rows=move.seen())

    `Warp()(images, generator)` is an ordinary view: it returns the moved images.

    >>> Warp(degrees=15)(torch.zeros(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    flip: bool = True
    """Whether images are mirrored left to right with probability one half."""
    translate: float = 0.0
    """Largest shift along each axis, in pixels."""
    degrees: float = 0.0
    """Largest angle of the rotation about the centre, in either direction."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Smallest and largest share of the image's area in the crop, which is shown at the size of the image."""

    def __post_init__(self) -> None:
        if not 0 <= self.translate < math.inf:
            raise InputError(f"Warp's translate is a number of pixels, at least 0; got {self.translate}.")
        if not 0 <= self.degrees <= 180:
            raise InputError(f"Warp's degrees range from 0 to 180; got {self.degrees}.")
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
        # The centre of a box inside the image is at most (1 - its share) of half the image away from its centre.
        room = (1 - zoom) / 2
        right = either_way[3] * self.translate + either_way[4] * room * width
        down = either_way[5] * self.translate + either_way[6] * room * height
        return Move(torch.cat([linear, torch.stack([right, down], 1)[:, :, None]], 2), (height, width))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.draw(images, generator)(images)
