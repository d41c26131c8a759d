"""Random changes of colour for normalised images, drawn per image."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meanteacher.core import InputError

_MEAN_ABOVE_BLACK = 2.0
"""In deviations, of photographs: CIFAR-10's channels have 1.7 to 2.0, ImageNet's 1.8 to 2.1."""

_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], dtype=torch.float64)
_LUMA = _YIQ[0]
_GREY = torch.ones(3, 1, dtype=torch.float64) * _LUMA
"""Every channel becomes the luma."""
_COLOUR = torch.eye(3, dtype=torch.float64) - _GREY
"""The luma taken away."""
_QUARTER = torch.linalg.inv(_YIQ) @ torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64) @ _YIQ
"""The colour turned by a quarter of the hue circle, the luma taken away."""
_PARTS = torch.stack([_GREY, _COLOUR, _QUARTER]).flatten(1)
"""Every change of colour is a linear combination of these."""


@dataclass(frozen=True)
class Jitter:
    """Change brightness, contrast, saturation and hue of each image (ImageNet, App. B.2.2).

    The defaults are those of the authors' code, and mean about the same on normalised photographs:
    `brightness` moves the image's mean as multiplying its bytes by 1 ± brightness does, `contrast` and
    `saturation` are factors 1 ± the value, `hue` is a share of the hue circle either way. Every draw is
    uniform. The order does not matter, see `recoloured`.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1

    def __post_init__(self) -> None:
        for name, limit in [("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0.5)]:
            if not 0 <= getattr(self, name) <= limit:
                raise InputError(f"Jitter's {name} lies between 0 and {limit}; got {getattr(self, name)}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draw = 2 * torch.rand(4, len(images), generator=generator, device=images.device, dtype=images.dtype) - 1
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
    """Each image with its own change of colour: every argument is [B] or one for all, and zero changes nothing.

    - brightness b adds 2b to every value, which is how far the mean of photographs moves when their bytes are
      multiplied by 1 + b.
    - contrast c scales all differences from the image's mean luma by 1 + c.
    - saturation s scales every pixel's difference from its own luma by 1 + s.
    - hue h turns that difference by h of a full circle, from I towards Q of television's YIQ colours, which
      leaves the luma alone.

    Each keeps what the others refer to, so the four commute. Grey is where the normalised channels are equal.
    Saturation and hue do nothing to images without three channels, whose luma is the mean of their channels.
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
