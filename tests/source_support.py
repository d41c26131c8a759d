"""Files of official data sets made up in a moment, and ways to damage them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def random_bytes(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_web_page(path: Path) -> None:
    path.write_bytes(b"<html>Not found</html>" * 100)
