"""Random translation: every image its own shift."""

from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import InputError


@dataclass(frozen=True)
class Translate:
    """Shift each image by up to `pixels` along each axis, whole pixels, the border reflected (Table 5).

    The reflection does not repeat the edge pixel.
    """

    pixels: int

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = images.shape
        if self.pixels >= min(height, width):
            raise InputError(
                f"A shift of up to {self.pixels} pixels reflects beyond images of {height}x{width}. "
                f"Shift by at most {min(height, width) - 1}."
            )
        shift = torch.randint(-self.pixels, self.pixels + 1, (2, n, 1), generator=generator, device=images.device)
        rows = _reflected(torch.arange(height, device=images.device) + shift[0], height)
        columns = _reflected(torch.arange(width, device=images.device) + shift[1], width)
        each = torch.arange(n, device=images.device)[:, None, None]
        # Indexing around the channel slice moves it last: [B, H, W, C].
        return images[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _reflected(position: Tensor, size: int) -> Tensor:
    return (size - 1) - ((size - 1) - position.abs()).abs()
