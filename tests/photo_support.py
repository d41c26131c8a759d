"""Image files made up in a moment, for tests of what people's folders hold."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(seed: int = 0, width: int = 8, height: int = 8) -> Image.Image:
    """Smooth noise in colour, so that a lossy format keeps it nearly as it is."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.convert("RGB"))


def save(path: Path, seed: int = 0, width: int = 8, height: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, width, height).save(path)
    return path


def folder_of(root: Path, *names: str) -> Path:
    """A folder with a small image under each of the names."""
    root.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        save(root / name, seed)
    return root
