"""Random crop of random size and shape, resized: every image its own box."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import InputError
from meanteacher.views.rotate import warped


@dataclass(frozen=True)
class Crop:
    """Show a box of each image at the size of the batch (ImageNet, App. B.2.2).

    The box's share of the image's area is uniform in `scale`; its width over its height is log-uniform among
    those in `aspect` that fit into the image; its place is uniform among those inside. Where the image is so
    long that no allowed shape covers the larger shares, they are not drawn.

    Values between pixels are bilinear, without smoothing: bring images far larger than `size` near it first,
    or the crop shows every few pixels only.
    """

    size: int | None = None
    """Height and width of the result; None keeps the input's."""
    scale: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise InputError(f"Crop needs a size of at least one pixel, or None to keep the input's; got {self.size}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"Crop's scale is two rising shares of the area within (0, 1]; got {self.scale}.")
        if not 0 < self.aspect[0] <= self.aspect[1] < math.inf:
            raise InputError(f"Crop's aspect is two rising ratios of width to height above 0; got {self.aspect}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = images.shape
        draw = torch.rand(4, n, generator=generator, device=images.device, dtype=images.dtype)
        share_width, share_height = self._box(draw[0], draw[1], height / width)
        # The middle of a box inside the image lies within ±(1 - its share) of half the image.
        right = (draw[2] - 0.5) * (1 - share_width) * width
        down = (draw[3] - 0.5) * (1 - share_height) * height
        rows, columns = self.size or height, self.size or width
        zero = torch.zeros_like(right)
        source = [share_width * (width / columns), zero, right, zero, share_height * (height / rows), down]
        # A box at the edge of the image, shown larger, asks for values up to half a pixel beyond the last centre.
        return warped(images, torch.stack(source, 1).view(n, 2, 3), size=(rows, columns), beyond="border")

    def _box(self, area: Tensor, shape: Tensor, tall: float) -> tuple[Tensor, Tensor]:
        """Each box's share of the image's width and of its height, from draws uniform in [0, 1)."""
        # A box of ratio r fits when its area is at most r · tall and 1 / (r · tall).
        narrowest, widest = (ratio * tall for ratio in self.aspect)
        largest = min(1.0, widest, 1 / narrowest)
        low, high = (min(share, largest) for share in self.scale)
        area = low + (high - low) * area
        log_low = area.log().clamp_min(math.log(narrowest))
        log_high = -area.log().clamp_min(-math.log(widest))
        # Width over height, in units of the image's own.
        ratio = torch.exp(log_low + (log_high - log_low) * shape)
        return (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
