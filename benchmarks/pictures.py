"""The views as they are usually made: with PIL, picture by picture, each made a tensor of its own.

It is what torchvision's transforms do to pictures in memory, without what they check on the way. The draws come
from Python's generator, the cheapest for one number at a time.
"""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

Change = Callable[[Image.Image, Random], Image.Image]
_BILINEAR = Image.Resampling.BILINEAR


def as_tensor(picture: Image.Image) -> Tensor:
    """Channels first, 0 to 1, in the steps of ToTensor."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)


def translated(picture: Image.Image, draws: Random) -> Image.Image:
    """By up to two pixels, the border reflected: PIL cannot reflect, so the padding is numpy's, as everywhere."""
    padded = Image.fromarray(np.pad(np.asarray(picture), ((2, 2), (2, 2), (0, 0)), mode="reflect"))
    left, top = draws.randint(0, 4), draws.randint(0, 4)
    return padded.crop((left, top, left + picture.width, top + picture.height))


def flipped(picture: Image.Image, draws: Random) -> Image.Image:
    return ImageOps.mirror(picture) if draws.random() < 0.5 else picture


def rotated(picture: Image.Image, draws: Random) -> Image.Image:
    return picture.rotate(draws.uniform(-10, 10), resample=_BILINEAR)


def cropped(picture: Image.Image, draws: Random) -> Image.Image:
    """A box of 8 to 100 % of the area, shown at the picture's size."""
    share, ratio = draws.uniform(0.08, 1), math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3)))
    width = min(picture.width, round(picture.width * math.sqrt(share * ratio)))
    height = min(picture.height, round(picture.height * math.sqrt(share / ratio)))
    left, top = draws.randint(0, picture.width - width), draws.randint(0, picture.height - height)
    return picture.resize(picture.size, _BILINEAR, box=(left, top, left + width, top + height))


def recoloured(picture: Image.Image, draws: Random) -> Image.Image:
    """Brightness, contrast and saturation by up to 40 %, hue by up to a tenth of its circle."""
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        picture = enhancer(picture).enhance(draws.uniform(0.6, 1.4))
    hue, saturation, value = picture.convert("HSV").split()
    turned = Image.fromarray(np.asarray(hue) + np.uint8(draws.randint(-25, 25) % 256))
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


def cut_out(image: Tensor, draws: Random) -> Tensor:
    """A square of eight pixels set to zero, in place."""
    height, width = image.shape[1:]
    top, left = draws.randrange(height) - 4, draws.randrange(width) - 4
    image[:, max(0, top) : top + 8, max(0, left) : left + 8] = 0
    return image


def noisy(image: Tensor) -> Tensor:
    return image + 0.15 * torch.randn_like(image)
