"""Strong views: colour jitter, and a set of random operations as in RandAugment."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import InputError, check_choice
from meanteacher.seeding import drawn
from meanteacher.views.basic import RowWise, rotation, warped

_MEAN_ABOVE_BLACK = 2.0
"""Mean of photographs above black, in standard deviations: 1.7 to 2.0 in CIFAR-10, 1.8 to 2.1 in ImageNet."""

_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], dtype=torch.float64)
_LUMA = _YIQ[0]
_GREY = torch.ones(3, 1, dtype=torch.float64) * _LUMA
"""Replaces every channel by the luma."""
_COLOUR = torch.eye(3, dtype=torch.float64) - _GREY
"""Subtracts the luma."""
_QUARTER = torch.linalg.inv(_YIQ) @ torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64) @ _YIQ
"""Subtracts the luma and rotates the colour by a quarter of the hue circle."""
_PARTS = torch.stack([_GREY, _COLOUR, _QUARTER]).flatten(1)
"""Basis of all changes of colour, which are linear combinations of these maps."""


@dataclass(frozen=True)
class Jitter(RowWise):
    """Change brightness, contrast, saturation and hue of each image (ImageNet, App. B.2.2).

    The defaults are those of the authors' code, and have about the same effect on normalised photographs:
    `brightness` changes the image's mean as much as a factor of 1 ± brightness on its bytes, `contrast` and
    `saturation` are factors of 1 ± the value, `hue` is a share of the hue circle in either direction. Every draw is
    uniform. The order does not matter, see `recoloured`.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> Jitter()(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1

    def __post_init__(self) -> None:
        for name, limit in [("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0.5)]:
            if not 0 <= getattr(self, name) <= limit:
                raise InputError(f"Jitter's {name} ranges from 0 to {limit}; got {getattr(self, name)}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        size, device, dtype = [4, len(images)], images.device, images.dtype
        draw = 2 * drawn(torch.rand, size, generator, axis=1, device=device, dtype=dtype) - 1
        return recoloured(
            images,
            brightness=self.brightness * draw[0],
            contrast=self.contrast * draw[1],
            saturation=self.saturation * draw[2],
            hue=self.hue * draw[3],
        )


def recoloured(
    images: Tensor,
    *,
    brightness: Tensor | float = 0.0,
    contrast: Tensor | float = 0.0,
    saturation: Tensor | float = 0.0,
    hue: Tensor | float = 0.0,
) -> Tensor:
    """Each image after its own change of colour. Every argument is [B] or one for all; zero changes nothing.

    - brightness b adds 2b to every value, like the change of the mean of photographs whose bytes are multiplied by
      1 + b.
    - contrast c scales all differences from the image's mean luma by 1 + c.
    - saturation s scales every pixel's difference from its own luma by 1 + s.
    - hue h rotates that difference by h of a full circle, from I towards Q in the YIQ colour space, which keeps the
      luma.

    Each keeps the reference values of the others, so the four commute. Grey means that the normalised channels are
    equal. Saturation and hue have no effect on images without three channels, whose luma is the mean of their channels.
    """
    channels, flat, zero = images.shape[1], images.flatten(2), images.new_zeros(len(images))
    gain = zero + (1 + contrast)
    luma = _LUMA.to(images) if channels == 3 else images.new_full((channels,), 1 / channels)
    offset = (_MEAN_ABOVE_BLACK * brightness + (1 - gain) * (flat.mean(2) @ luma))[:, None, None]
    if channels != 3:
        return (offset + gain[:, None, None] * flat).view(images.shape)
    vivid, turn = gain * (1 + saturation), zero + 2 * math.pi * hue
    mix = torch.stack([gain, vivid * turn.cos(), vivid * turn.sin()], 1) @ _PARTS.to(images)
    return torch.baddbmm(offset, mix.view(-1, 3, 3), flat).view(images.shape)


Operation = Callable[[Tensor, Tensor], Tensor]
"""Images [B, C, H, W] and strengths [B] within ±1 -> changed images. A strength of zero changes nothing."""
Move = Callable[[Tensor, int, int], Tensor]
"""Strengths [B] within ±1, height, width -> affine maps [B, 2, 3] for `warped`."""


# --- values of pixels ---------------------------------------------------------------------------


def _sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Move away from the mean of the 3x3 neighbourhood, or towards it if the strength is negative."""
    blurred = F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    return torch.lerp(images, blurred, _each(-0.9 * strength))


def _solarise(images: Tensor, strength: Tensor) -> Tensor:
    """Mirror the brightest part of the image's range. A strength of one gives the negative."""
    low, high = _range(images)
    threshold = high - _each(strength.abs()) * (high - low)
    return torch.where(images > threshold, low + high - images, images)


def _posterise(images: Tensor, strength: Tensor) -> Tensor:
    """Round to the middles of steps of up to an eighth of the image's range."""
    low, high = _range(images)
    step = _each(strength.abs()) * (high - low) / 8
    count = ((images - low) / step).floor()
    # The step is zero if the strength is zero or the image is blank.
    return torch.where(step > 0, (low + (count + 0.5) * step).minimum(high), images)


def _autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """Stretch each channel to the range of the whole image, which removes a colour cast."""
    low, high = _range(images)
    bottom, top = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    # A channel with almost no contrast would become noise if it were stretched.
    blank = top - bottom <= 0.01 * (high - low)
    stretched = low + (images - bottom) * ((high - low) / (top - bottom))
    return torch.lerp(images, torch.where(blank, images, stretched), _each(strength.abs()))


def _equalise(images: Tensor, strength: Tensor) -> Tensor:
    """Spread the values of each channel evenly over its range, in 256 levels."""
    flat = images.flatten(2)
    bottom, top = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    span = top - bottom
    level = ((flat - bottom) * (255 / span.where(span > 0, 1))).long().clamp_max(255)
    histogram = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, level, torch.ones_like(flat))
    # The rank of each value: 0 at the lowest level, 1 at the highest.
    below = histogram.cumsum(2) - histogram[:, :, :1]
    rank = below.gather(2, level) / below[:, :, -1:].clamp_min(1)
    spread = (bottom + span * rank).view(images.shape)
    return torch.lerp(images, spread, _each(strength.abs()))


def _each(strength: Tensor) -> Tensor:
    return strength[:, None, None, None]


def _range(images: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each image, because normalised images have no fixed black and white."""
    return images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)


# --- moves of pixels -----------------------------------------------------------------------------


def _moved(row: int, column: int, entry: Tensor) -> Tensor:
    """The identity map except for one entry [B]."""
    source = torch.eye(2, 3).to(entry).repeat(len(entry), 1, 1)
    source[:, row, column] = entry
    return source


VALUES: dict[str, Operation] = {
    "brightness": lambda images, strength: recoloured(images, brightness=0.9 * strength),
    "contrast": lambda images, strength: recoloured(images, contrast=0.9 * strength),
    "saturation": lambda images, strength: recoloured(images, saturation=0.9 * strength),
    "hue": lambda images, strength: recoloured(images, hue=0.25 * strength),
    "sharpness": _sharpness,
    "solarise": _solarise,
    "posterise": _posterise,
    "autocontrast": _autocontrast,
    "equalise": _equalise,
}
MOVES: dict[str, Move] = {
    "rotate": lambda strength, height, width: rotation(math.radians(30) * strength),
    "shear_x": lambda strength, height, width: _moved(0, 1, 0.3 * strength),
    "shear_y": lambda strength, height, width: _moved(1, 0, 0.3 * strength),
    "translate_x": lambda strength, height, width: _moved(0, 2, 0.3 * width * strength),
    "translate_y": lambda strength, height, width: _moved(1, 2, 0.3 * height * strength),
}
OPERATIONS = ("identity", *VALUES, *MOVES)


@dataclass(frozen=True)
class RandAugment(RowWise):
    """Apply `n` operations to each image, drawn with repetition (after Cubuk et al., 2020).

    Each operation has its own strength, uniform within ±`magnitude`, as in FixMatch, rather than one strength for all.
    Operations without a direction use its absolute value. Pixels outside the image are zero, the mean of normalised
    data.

    The moves of an image are composed and applied after its changes of value, so that it is interpolated only once and
    the blank border does not enter the range that solarise and similar operations use.

    >>> images, draws = torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)
    >>> RandAugment(n=2, operations=("rotate", "brightness"))(images, draws).shape
    torch.Size([2, 3, 8, 8])
    """

    n: int = 2
    magnitude: float = 1.0
    """Largest strength, from 0 to 1. A strength of 1 rotates by 30 degrees, shears by 0.3, shifts by 0.3 of the image,
    turns the hue by a quarter of its circle, and uses factors of 1 ± 0.9."""
    operations: tuple[str, ...] = OPERATIONS
    """Operations to draw from. Leave out those that change the class, such as `rotate` for arrows."""

    def __post_init__(self) -> None:
        if self.n < 0:
            raise InputError(f"RandAugment applies n >= 0 operations to each image; got {self.n}.")
        if not 0 <= self.magnitude <= 1:
            raise InputError(f"RandAugment's magnitude ranges from 0 to 1; got {self.magnitude}.")
        if not self.operations:
            raise InputError(f"RandAugment needs operations to draw from: any of {', '.join(OPERATIONS)}; got none.")
        for name in self.operations:
            check_choice("An operation of RandAugment", name, OPERATIONS)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        size, device = (self.n, len(images)), images.device
        # The draws determine shapes, so they are read here, all at once to wait for the device only once.
        choice_of = partial(torch.randint, len(self.operations))
        choices = drawn(choice_of, size, generator, axis=1, device=device).tolist()
        draws = drawn(torch.rand, size, generator, axis=1, device=device, dtype=images.dtype)
        strengths = self.magnitude * (2 * draws - 1)
        height, width = images.shape[2:]
        images = images.clone()
        source = torch.eye(3).to(images).repeat(len(images), 1, 1)
        moved: set[int] = set()
        for choice, strength in zip(choices, strengths, strict=True):
            for k, name in enumerate(self.operations):
                # Each operation is computed only for the images that drew it.
                drew_it = [row for row, drawn in enumerate(choice) if drawn == k]
                if not drew_it or name == "identity":
                    continue
                rows = torch.tensor(drew_it, device=device)
                if name in VALUES:
                    images[rows] = VALUES[name](images[rows], strength[rows])
                else:
                    # The map goes from the result back to the image, so the later move is applied first.
                    source[rows, :2] = source[rows, :2] @ _square(MOVES[name](strength[rows], height, width))
                    moved.update(drew_it)
        if moved:
            rows = torch.tensor(sorted(moved), device=device)
            images[rows] = warped(images[rows], source[rows, :2])
        return images


def _square(source: Tensor) -> Tensor:
    """Affine maps as matrices [B, 3, 3], so that they can be composed."""
    return torch.cat([source, source.new_tensor([[[0, 0, 1]]]).expand(len(source), 1, 3)], 1)
