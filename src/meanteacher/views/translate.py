"""Random translation: every image its own shift."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
        top, left = (shift[:, :, 0] + self.pixels).unbind()
        padded = F.pad(images, (self.pixels,) * 4, mode="reflect")
        # Every window is a view of the padded images, [B, C, tops, lefts, H, W]; only the chosen ones are copied.
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(n, device=images.device), :, top, left]
