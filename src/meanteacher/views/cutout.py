"""A blank square in every image."""

from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import InputError


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
        rows = self._hidden(images, images.shape[2], generator)
        columns = self._hidden(images, images.shape[3], generator)
        return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)

    def _hidden(self, images: Tensor, length: int, generator: torch.Generator) -> Tensor:
        """[B, length]: which rows, or which columns, the square covers."""
        middle = torch.randint(length, (len(images), 1), generator=generator, device=images.device)
        beyond = torch.arange(length, device=images.device) - (middle - self.size // 2)
        return (beyond >= 0) & (beyond < self.size)
