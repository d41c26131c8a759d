"""A blank square in every image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import InputError

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of as many bytes."""


@dataclass(frozen=True)
class Cutout:
    """Set a square of `size` pixels to zero, the mean of normalised data (DeVries & Taylor, 2017).

    Its middle is uniform over the pixels of the image, so it may extend past the border.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError(f"Cutout needs a size of at least 0 pixels; got {self.size}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        # Zero has no bit set. To clear bits is faster than to fill where a mask is set, and unlike a product it
        # hides what is not finite.
        bits = images.view(_WHOLE[images.element_size()])
        rows = self._kept(bits, images.shape[2], generator)
        columns = self._kept(bits, images.shape[3], generator)
        return (bits & (rows[:, :, None] | columns[:, None, :])[:, None]).view(images.dtype)

    def _kept(self, bits: Tensor, length: int, generator: torch.Generator) -> Tensor:
        """[B, length]: all bits set for the rows, or the columns, that the square leaves alone, none for the others."""
        middle = torch.randint(length, (len(bits), 1), generator=generator, device=bits.device)
        beyond = torch.arange(length, device=bits.device) - (middle - self.size // 2)
        return -((beyond < 0) | (beyond >= self.size)).to(bits.dtype)
