"""From image files to batches: decoding, keeping what was decoded, reading it back."""

import itertools
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.setup import BATCH, made_up, stream
from benchmarks.timing import interleaved
from meanteacher.data import Dataset
from meanteacher.photos.cache import decode_all
from meanteacher.photos.decode import decode
from meanteacher.photos.find import find_photos

SIZE = 64
_PHOTO = (640, 480)
_N_DECODED = 50


def rates(*, rounds: int, announce: Callable[[str], None], n_photos: int = 1000) -> dict[str, Any]:
    """Images per second, of photos of 640x480 pixels that become 64x64.

    One by one on one core, as `fit` decodes them and as PIL does; a whole folder decoded and kept, on all cores; the
    same found unchanged; and batches, drawn, normalised and viewed twice, of the kept images and of images in memory.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        announce(f"writing {n_photos} photos")
        _write_photos(folder / "photos", n_photos)
        photos = find_photos(folder / "photos")
        some = [photos.path(k) for k in range(min(_N_DECODED, n_photos))]
        kept = decode_all(photos, SIZE, folder / "kept")
        images, labels = torch.from_numpy(kept.images), torch.from_numpy(photos.labels)
        on_disk = stream(Dataset(images, labels, photos.class_names, on_disk=True))
        in_memory = stream(Dataset(images.clone(), labels, photos.class_names))
        number = itertools.count()
        counted: dict[str, tuple[int, Callable[[], object]]] = {
            "decoded": (len(some), lambda: [decode(path, SIZE) for path in some]),
            "decoded_by_pil": (len(some), lambda: [_by_pil(path) for path in some]),
            "kept": (n_photos, lambda: decode_all(photos, SIZE, folder / f"kept-{next(number)}")),
            "found_again": (n_photos, lambda: decode_all(photos, SIZE, folder / "kept")),
            "streamed_from_disk": (BATCH, lambda: on_disk[next(number)]),
            "streamed_from_memory": (BATCH, lambda: in_memory[next(number)]),
        }
        timings = interleaved({name: call for name, (_, call) in counted.items()}, rounds=rounds, announce=announce)
    return {f"{name}_per_second": n / timings[name].median for name, (n, _) in counted.items()}


def _write_photos(folder: Path, n: int) -> None:
    """Smooth, as photos are: noise would take a decoder several times as long."""
    for k, pixels in enumerate(made_up(n).images.permute(0, 2, 3, 1).numpy()):
        file = folder / str(k % 10) / f"{k}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize(_PHOTO, Image.Resampling.BICUBIC).save(file, quality=90)


def _by_pil(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
