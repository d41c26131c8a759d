"""Views that mirror, move, rotate, crop or cover an image, or add noise to it; and moves of labels with their image."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import UNLABELLED, Augment, InputError
from meanteacher.seeding import drawn


class RowWise:
    """A view that computes each image by itself, and draws with `seeding.drawn`: it can be given some rows of a batch.

    A process that trains together with others then computes its own rows only. Other views compute all rows.
    """

    by_rows: ClassVar[bool] = True


@dataclass(frozen=True)
class Chain:
    """Apply several views in turn. An empty chain leaves the images unchanged.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Chain((Flip(), Noise(0.1)))(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    augments: tuple[Augment, ...] = ()

    @property
    def by_rows(self) -> bool:
        """Whether it can be given some rows of a batch, see `RowWise`."""
        return all(getattr(augment, "by_rows", False) for augment in self.augments)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for augment in self.augments:
            images = augment(images, generator)
        return images


@dataclass(frozen=True)
class Flip(RowWise):
    """Mirror each image left to right with probability one half. Not for digits or text.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> flipped = Flip()(images, draws)
    >>> all(bool((one == seen).all() or (one.flip(-1) == seen).all()) for one, seen in zip(images, flipped))
    True
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        heads = drawn(torch.rand, [len(images)], generator, device=images.device) < 0.5
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
class Translate(RowWise):
    """Shift each image by up to `pixels` whole pixels along each axis; the border is reflected (Table 6).

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
        shifts = partial(torch.randint, -self.pixels, self.pixels + 1)
        shift = drawn(shifts, [2, n, 1], generator, axis=1, device=images.device)
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
class Noise(RowWise):
    """Add independent noise from N(0, deviation²) to every value of the normalised images (Table 6).

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Noise(0.15)(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    deviation: float

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise InputError(f"Noise needs a deviation of at least 0; got {self.deviation}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        noise = drawn(torch.randn, images.shape, generator, device=images.device, dtype=images.dtype)
        return images.add(noise, alpha=self.deviation)


@dataclass(frozen=True)
class FeatureDropout(RowWise):
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
        kept = drawn(torch.rand, images.shape, generator, device=images.device) >= self.rate
        return images * kept


@dataclass(frozen=True)
class Rotate(RowWise):
    """Rotate each image about its centre by an angle uniform within ±`degrees` (10 on ImageNet, App. B.2.2).

    Pixels outside the image are zero, the mean of normalised data.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Rotate(10.0)(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    degrees: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.degrees <= 180:
            raise InputError(f"Rotate's degrees range from 0 to 180; got {self.degrees}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draw = drawn(torch.rand, [len(images)], generator, device=images.device, dtype=images.dtype)
        return warped(images, rotation((2 * draw - 1) * math.radians(self.degrees)))


def rotation(angle: Tensor) -> Tensor:
    """Affine maps [B, 2, 3] for `warped` that rotate each image counter-clockwise by its angle in radians."""
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([cosine, -sine, zero, sine, cosine, zero], 1).view(-1, 2, 3)


def warped(
    images: Tensor,
    source: Tensor,
    *,
    size: tuple[int, int] | None = None,
    beyond: Literal["zeros", "border"] = "zeros",
    between: Literal["bilinear", "nearest"] = "bilinear",
) -> Tensor:
    """Each image after its own affine map.

    Args:
        images: [B, C, H, W]
        source: [B, 2, 3]; maps a position (x, y, 1) of the result to the position in the image that is shown there,
            both in pixels right of and below the centre
        size: height and width of the result; None for those of the images
        beyond: values outside the image
        between: interpolation between pixels

    >>> right = torch.tensor([[[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]])
    >>> warped(torch.tensor([[[[1.0, 2.0, 3.0]]]]), right)
    tensor([[[[0., 1., 2.]]]])
    """
    y, x = (
        torch.arange(length, device=source.device, dtype=source.dtype) - (length - 1) / 2
        for length in size or images.shape[2:]
    )
    # torch measures positions in halves of the image.
    source = source / (source.new_tensor([images.shape[3], images.shape[2]])[:, None] / 2)
    across = source[:, :, :1, None] * x
    down = (source[:, :, 1:2] * y + source[:, :, 2:])[..., None]
    # All x come before all y, which is several times as fast to add as affine_grid's pairs, and as fast to sample.
    grid = (across + down).permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, mode=between, padding_mode=beyond, align_corners=False)


@dataclass(frozen=True)
class Crop(RowWise):
    """Show a random box of each image at one size (ImageNet, App. B.2.2).

    The box's share of the image's area is uniform in `scale`. Its ratio of width to height is log-uniform among the
    ratios in `aspect` that fit into the image. Its position is uniform among those inside the image. If the image is
    so long that no allowed ratio reaches the larger shares, these shares are not drawn.

    Values between pixels are bilinear, without smoothing. Reduce images that are far larger than `size` first, because
    the crop would skip most of their pixels.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Crop(size=4)(images, draws).shape
    torch.Size([2, 3, 4, 4])
    """

    size: int | None = None
    """Height and width of the result; None for those of the input."""
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
        draw = drawn(torch.rand, [4, n], generator, axis=1, device=images.device, dtype=images.dtype)
        share_width, share_height = self._box(draw[0], draw[1], height / width)
        # The centre of a box inside the image is at most (1 - its share) of half the image away from its centre.
        right = (draw[2] - 0.5) * (1 - share_width) * width
        down = (draw[3] - 0.5) * (1 - share_height) * height
        rows, columns = self.size or height, self.size or width
        zero = torch.zeros_like(right)
        source = [share_width * (width / columns), zero, right, zero, share_height * (height / rows), down]
        # An enlarged box at the edge of the image needs values up to half a pixel beyond the centre of the last pixel.
        return warped(images, torch.stack(source, 1).view(n, 2, 3), size=(rows, columns), beyond="border")

    def _box(self, area: Tensor, shape: Tensor, tall: float) -> tuple[Tensor, Tensor]:
        """Each box's share of the image's width and of its height, from draws uniform in [0, 1)."""
        # A box of ratio r fits if its area is at most r · tall and 1 / (r · tall).
        narrowest, widest = (ratio * tall for ratio in self.aspect)
        largest = min(1.0, widest, 1 / narrowest)
        low, high = (min(share, largest) for share in self.scale)
        area = low + (high - low) * area
        log_low = area.log().clamp_min(math.log(narrowest))
        log_high = -area.log().clamp_min(-math.log(widest))
        # Width over height, in units of the image's own.
        ratio = torch.exp(log_low + (log_high - log_low) * shape)
        return (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)


_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""bytes per value -> integer type of that size."""


@dataclass(frozen=True)
class Cutout(RowWise):
    """Set a square of `size` pixels to zero, the mean of normalised data (DeVries & Taylor, 2017).

    Its centre is uniform over the pixels of the image, so it may extend past the border.

    >>> images, draws = torch.ones(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> bool((Cutout(4)(images, draws) == 0).any())
    True
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError(f"Cutout needs a size of at least 0 pixels; got {self.size}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        # Clearing all bits gives zero. It is faster than filling by a mask, and unlike a product it also clears values
        # that are not finite.
        bits = images.view(_INTEGER[images.element_size()])
        rows = self._kept(bits, images.shape[2], generator)
        columns = self._kept(bits, images.shape[3], generator)
        return (bits & (rows[:, :, None] | columns[:, None, :])[:, None]).view(images.dtype)

    def _kept(self, bits: Tensor, length: int, generator: torch.Generator) -> Tensor:
        """Bit masks [B, length] of the rows, or of the columns: all bits are set outside the square, none inside."""
        centre = drawn(partial(torch.randint, length), [len(bits), 1], generator, device=bits.device)
        offset = torch.arange(length, device=bits.device) - (centre - self.size // 2)
        return -((offset < 0) | (offset >= self.size)).to(bits.dtype)


_INSIDE = 0.999
"""Lowest share of a value that comes from pixels of the image, for the value to count as inside it."""


class Move:
    """The movements that `Warp.draw` drew for the images of a batch. Its functions are deterministic.

    `source` [B, 2, 3] are the affine maps of the images for `warped`, `size` is their height and width.
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
class Warp(RowWise):
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
        draws = drawn(torch.rand, [7, n], generator, axis=1, device=images.device, dtype=kind)
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
