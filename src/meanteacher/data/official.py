"""Files of a benchmark: the official ones, compared with their sha256 at every load, or arrays in their place."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import InputError
from meanteacher.files import open_regular
from meanteacher.files.arrays import read_arrays

SHAPE = (3, 32, 32)
"""Channels, height and width of an image of SVHN and of CIFAR-10."""
N_CLASSES = 10


@contextmanager
def verified(path: Path, sha256: str, *, arrays: Path) -> Iterator[IO[bytes]]:
    """Open an official file, after its content was compared with its sha256. Only then may it be unpickled.

    For a file that cannot be read or is another one, an InputError names `arrays`, in which other images may be given.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): make it readable, or delete it.") from error
    with file:
        found = hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
        if found != sha256:
            raise InputError(
                f"{path} is not the official file, because its sha256 is {found} instead of {sha256}: delete it to "
                f"download the official one, or give other images as arrays in {arrays}."
            )
        file.seek(0)
        yield file


def read_labelled(arrays: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [N, 3, 32, 32] and labels [N] of one part: the arrays PART_images [N, 32, 32, 3] and PART_labels [N]."""
    names = f"{part}_images", f"{part}_labels"
    images, labels = read_arrays(arrays, names).values()
    pixels = _checked_images(arrays, names[0], images)
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise InputError(
            f"{arrays}: {names[1]} is {labels.dtype} {labels.shape}, expected whole numbers ({len(images)},): one "
            "label for each image."
        )
    if labels.min() < 0 or labels.max() >= N_CLASSES:
        raise InputError(
            f"{arrays}: {names[1]} runs from {labels.min()} to {labels.max()}, expected 0 to {N_CLASSES - 1}: "
            "correct the labels."
        )
    return pixels, labels.astype(np.int64)


def read_unlabelled(arrays: Path, part: str) -> NDArray[np.uint8]:
    """Images [N, 3, 32, 32] of one part: the array PART_images."""
    name = f"{part}_images"
    return _checked_images(arrays, name, read_arrays(arrays, [name])[name])


def _checked_images(arrays: Path, name: str, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    if images.dtype != np.uint8 or images.shape[1:] != (*SHAPE[1:], SHAPE[0]) or not len(images):
        raise InputError(
            f"{arrays}: {name} is {images.dtype} {images.shape}, expected uint8 (N, 32, 32, 3): convert the images."
        )
    return cast(NDArray[np.uint8], images).transpose(0, 3, 1, 2)
