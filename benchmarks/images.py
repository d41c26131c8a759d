"""Images: views of a batch against PIL image by image, and image files from decoding to batches.

The functions of PIL do what torchvision's transforms do to images in memory, without their checks. The draws come from
Python's generator, the cheapest for one number at a time.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from benchmarks.timing import Compare, ratio
from benchmarks.training import BATCH, random_images, stream
from meanteacher.core import Augment
from meanteacher.data import Dataset
from meanteacher.files.images import decode
from meanteacher.photos.folder.cache import decode_all
from meanteacher.photos.folder.find import find_photos
from meanteacher.seeding import generator
from meanteacher.views import Chain, Crop, Cutout, Flip, Jitter, Noise, Rotate, Translate

Change = Callable[[Image.Image, Random], Image.Image]
_BILINEAR = Image.Resampling.BILINEAR
_SIZE = 64
_PHOTO = (640, 480)
_N_DECODED = 50


def views(compare: Compare) -> dict[str, Any]:
    """Images per second of each view, on one core, against PIL image by image, made tensors and stacked."""
    pixels = random_images(BATCH).images
    images = pixels.float().div_(255)
    pictures = [Image.fromarray(p) for p in pixels.permute(0, 2, 3, 1).numpy()]
    draws = Random(0)

    def changed(change: Change) -> Callable[[Image.Image], Tensor]:
        return lambda picture: as_tensor(change(picture, draws))

    def all_of_cifar10(picture: Image.Image) -> Tensor:
        return noisy(as_tensor(translated(flipped(picture, draws), draws)))

    pairs: dict[str, tuple[Augment, Callable[[Image.Image], Tensor]]] = {
        "translate": (Translate(2), changed(translated)),
        "flip": (Flip(), changed(flipped)),
        "rotate": (Rotate(), changed(rotated)),
        "crop": (Crop(), changed(cropped)),
        "jitter": (Jitter(), changed(recoloured)),
        "cutout": (Cutout(8), lambda picture: cut_out(as_tensor(picture), draws)),
        "noise": (Noise(0.15), lambda picture: noisy(as_tensor(picture))),
        "flip, translate, noise": (Chain((Flip(), Translate(2), Noise(0.15))), all_of_cifar10),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _view(compare, images, pictures, *pair) for name, pair in pairs.items()}
    finally:
        torch.set_num_threads(threads)


def _view(
    compare: Compare,
    images: Tensor,
    pictures: list[Image.Image],
    ours: Augment,
    theirs: Callable[[Image.Image], Tensor],
) -> dict[str, float]:
    source = generator(0, "bench")
    timings = compare(
        {"batch": lambda: ours(images, source), "PIL": lambda: torch.stack([theirs(picture) for picture in pictures])}
    )
    return {
        "images_per_second": BATCH / timings["batch"].median,
        "pil_images_per_second": BATCH / timings["PIL"].median,
        "times_as_fast": ratio(timings, "PIL", "batch"),
    }


def as_tensor(picture: Image.Image) -> Tensor:
    """Channels first, 0 to 1, in the steps of ToTensor."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)


def translated(picture: Image.Image, draws: Random) -> Image.Image:
    """By up to two pixels, the border reflected. PIL cannot reflect, so numpy pads."""
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


def file_rates(compare: Compare, *, n_photos: int = 1000) -> dict[str, Any]:
    """Images per second, for photos of 640x480 pixels that become 64x64.

    Decoded one by one on one core, by `fit` and by PIL; a whole folder decoded into the cache on all cores; the same
    folder found unchanged in the cache; and batches with two views, from the cache and from memory.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder / "photos", n_photos)
        photos = find_photos(folder / "photos")
        some = [photos.path(k) for k in range(min(_N_DECODED, n_photos))]
        cached = decode_all(photos, _SIZE, folder / "cache")
        images, labels = torch.from_numpy(cached.images), torch.from_numpy(photos.labels)
        on_disk = stream(Dataset(images, labels, photos.class_names, on_disk=True))
        in_memory = stream(Dataset(images.clone(), labels, photos.class_names))
        number = itertools.count()
        counted: dict[str, tuple[int, Callable[[], object]]] = {
            "decoded": (len(some), lambda: [decode(path, _SIZE) for path in some]),
            "decoded_by_pil": (len(some), lambda: [_decode_by_pil(path) for path in some]),
            "cached": (n_photos, lambda: decode_all(photos, _SIZE, folder / f"cache-{next(number)}")),
            "found_in_cache": (n_photos, lambda: decode_all(photos, _SIZE, folder / "cache")),
            "streamed_from_disk": (BATCH, lambda: on_disk[next(number)]),
            "streamed_from_memory": (BATCH, lambda: in_memory[next(number)]),
        }
        timings = compare({name: call for name, (_, call) in counted.items()})
    return {f"{name}_per_second": n / timings[name].median for name, (n, _) in counted.items()}


def write_photos(folder: Path, n: int) -> None:
    """Smooth, as photos are: a decoder takes several times as long for noise."""
    for k, pixels in enumerate(random_images(n).images.permute(0, 2, 3, 1).numpy()):
        file = folder / str(k % 10) / f"{k}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize(_PHOTO, Image.Resampling.BICUBIC).save(file, quality=90)


def _decode_by_pil(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((_SIZE, _SIZE), _BILINEAR))
