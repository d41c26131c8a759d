"""The views of the paper's ConvNet experiments, flip, translation and noise, and the dropout of features."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import Augment, InputError


@dataclass(frozen=True)
class Chain:
    """Apply each in turn. An empty chain shows the images as they are.

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
        # A CPU selects one value at a time: several values viewed as one int64 are faster, and so is writing in place.
        wide = _widest(images)
        chosen = mirrored.view(wide)
        torch.where(heads[:, None, None, None], chosen, images.view(wide), out=chosen)
        return mirrored


def _widest(images: Tensor) -> torch.dtype:
    """int64 where every row of the images is a whole number of them, otherwise their own dtype."""
    starts = (images.storage_offset(), *images.stride()[:-1])  # also of an axis of one value, which may be any
    whole = images.is_contiguous() and all(start * images.element_size() % 8 == 0 for start in starts)
    return torch.int64 if whole else images.dtype


@dataclass(frozen=True)
class Translate:
    """Shift each image by up to `pixels` along each axis, whole pixels, the border reflected (Table 5).

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
                f"A shift of up to {self.pixels} pixels reflects beyond images of {height}x{width}. "
                f"Shift by at most {min(height, width) - 1}."
            )
        shift = torch.randint(-self.pixels, self.pixels + 1, (2, n, 1), generator=generator, device=images.device)
        top, left = (shift[:, :, 0] + self.pixels).unbind()
        padded = F.pad(images.contiguous(), (self.pixels,) * 4, mode="reflect")
        if images.device.type != "cpu":
            return _gathered(padded, top, left, height, width)
        # Every window is a strided view of the padded memory; only the chosen ones are copied.
        image, channel, row, _ = padded.stride()
        n_windows = (n - 1) * image + 2 * self.pixels * (row + 1) + 1 if n else 0
        windows = padded.as_strided((n_windows, channels, height, width), (1, channel, row, 1))
        return windows.index_select(0, torch.arange(n, device=images.device) * image + top * row + left)


def _gathered(padded: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """The same windows by indexing: selecting from overlapping views may copy all of them on a GPU."""
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
    """Add independent N(0, deviation²) to every value, after the images have been normalised (Table 5).

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
    """Set each value to zero with probability `rate`: a feature of a standardised table to its mean.

    The other values keep their scale, unlike behind a dropout layer: a view is a row that could have been measured.

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
