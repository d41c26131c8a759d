"""The views of the paper's ConvNet experiments (flip, translation and noise), and the dropout of features."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import Augment, InputError


@dataclass(frozen=True)
class Chain:
    """Apply several views in turn. An empty chain leaves the images unchanged.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Chain((Flip(), Noise(0.1)))(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    augments: tuple[Augment, ...] = ()

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for augment in self.augments:
            images = augment(images, generator)
        return images


@dataclass(frozen=True)
class Flip:
    """Mirror each image left to right with probability one half. Not for digits or text.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> flipped = Flip()(images, draws)
    >>> all(bool((one == seen).all() or (one.flip(-1) == seen).all()) for one, seen in zip(images, flipped))
    True
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        heads = torch.rand(len(images), generator=generator, device=images.device) < 0.5
        mirrored = images.flip(-1)
        # A CPU selects one value at a time. Selecting several values viewed as one int64, in place, is faster.
        wide = _widest_dtype(images)
        chosen = mirrored.view(wide)
        torch.where(heads[:, None, None, None], chosen, images.view(wide), out=chosen)
        return mirrored


def _widest_dtype(images: Tensor) -> torch.dtype:
    """int64 if every row of the images begins and ends at a multiple of 8 bytes, otherwise their own dtype."""
    starts = (images.storage_offset(), *images.stride()[:-1])  # an axis of length 1 may have any stride
    aligned = images.is_contiguous() and all(start * images.element_size() % 8 == 0 for start in starts)
    return torch.int64 if aligned else images.dtype


@dataclass(frozen=True)
class Translate:
    """Shift each image by up to `pixels` whole pixels along each axis; the border is reflected (Table 5).

    The reflection does not repeat the edge pixel.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Translate(2)(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    pixels: int

    def __post_init__(self) -> None:
        if self.pixels < 0:
            raise InputError(f"Translate shifts by at least 0 pixels; got {self.pixels}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        n, channels, height, width = images.shape
        if self.pixels >= min(height, width):
            raise InputError(
                f"A shift of up to {self.pixels} pixels is too large to reflect images of {height}x{width}. "
                f"Shift by at most {min(height, width) - 1}."
            )
        shift = torch.randint(-self.pixels, self.pixels + 1, (2, n, 1), generator=generator, device=images.device)
        top, left = (shift[:, :, 0] + self.pixels).unbind()
        padded = F.pad(images.contiguous(), (self.pixels,) * 4, mode="reflect")
        if images.device.type != "cpu":
            return _gathered(padded, top, left, height, width)
        # Every window is a strided view of the padded images; only the chosen ones are copied.
        image, channel, row, _ = padded.stride()
        n_windows = (n - 1) * image + 2 * self.pixels * (row + 1) + 1 if n else 0
        windows = padded.as_strided((n_windows, channels, height, width), (1, channel, row, 1))
        return windows.index_select(0, torch.arange(n, device=images.device) * image + top * row + left)


def _gathered(padded: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """The same windows by indexing, because a selection from overlapping views may copy all of them on a GPU."""
    n, channels = padded.shape[:2]
    image, channel, row, column = (torch.arange(size, device=padded.device) for size in (n, channels, height, width))
    return padded[
        image[:, None, None, None],
        channel[:, None, None],
        (top[:, None] + row)[:, None, :, None],
        (left[:, None] + column)[:, None, None, :],
    ]


@dataclass(frozen=True)
class Noise:
    """Add independent noise from N(0, deviation²) to every value of the normalised images (Table 5).

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Noise(0.15)(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    deviation: float

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise InputError(f"Noise needs a deviation of at least 0; got {self.deviation}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
        return images.add(noise, alpha=self.deviation)


@dataclass(frozen=True)
class FeatureDropout:
    """Set each value to zero, which is the mean of a standardised feature, with probability `rate`.

    Unlike in a dropout layer, the other values keep their scale, because a view is a row that could have been measured.

    >>> FeatureDropout(0.5)(torch.ones(2, 100), torch.Generator().manual_seed(0)).unique()
    tensor([0., 1.])
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise InputError(f"FeatureDropout needs a rate from 0 to below 1; got {self.rate}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        kept = torch.rand(images.shape, generator=generator, device=images.device) >= self.rate
        return images * kept
