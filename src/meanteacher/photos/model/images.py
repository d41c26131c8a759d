"""The images that a model can be given: a folder, an .npz file, image files, PIL images or arrays."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from meanteacher.core import InputError
from meanteacher.files.images import decode
from meanteacher.photos.folder.find import EXTENSIONS, images_below
from meanteacher.photos.folder.tables import read_npz

Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8]
"""One image: a file, a PIL image, or an array [H, W, 3] or [H, W]."""
ImagesLike = Picture | Sequence[Picture]
"""What `Classifier.predict` takes: a folder, an .npz file, one image, a list of images, or an array of images."""

_ACCEPTED = "a folder, an .npz file, an image file, a list of those files, PIL images, or a uint8 array"
_loading = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images by name, each decoded when it is needed."""

    names: Sequence[str]
    picture: Callable[[int], Path | Image.Image | NDArray[np.uint8]]
    """The image at a position: its file, or the image itself."""
    root: Path | None = None
    """The folder that the names are below; None if the images were not given as a folder."""
    n_ignored: int = 0
    """Number of files in that folder that are no photos by their names."""

    def __len__(self) -> int:
        return len(self.names)

    def pixels(self, position: int, size: int) -> NDArray[np.uint8]:
        """[size, size, 3]: the same for a picture in a file, as a PIL image and as an array."""
        picture = self.picture(position)
        # Pillow reads a file on first use, and the same image may be in the list twice.
        with _loading if isinstance(picture, Image.Image) else nullcontext():
            return decode(picture, size)


def as_images(given: ImagesLike) -> Images:
    """The images of any source, in their order."""
    if isinstance(given, str | os.PathLike):
        return _of_path(Path(given))
    if isinstance(given, np.ndarray):
        return _of_array(given)
    if isinstance(given, Image.Image):
        return _of_list([given])
    if isinstance(given, Sequence):
        return _of_list(given)
    raise InputError(f"Images cannot be read from a {type(given).__name__}: give {_ACCEPTED}.")


def _of_path(path: Path) -> Images:
    if not path.exists():
        raise InputError(f"There is no folder or file {path}: give a folder of images, an .npz file or an image file.")
    if not path.is_dir():
        if path.suffix.lower() != ".npz":
            return _of_list([path])
        content = read_npz(path)
        return Images(content.names, content.images.__getitem__)
    names, n_ignored = images_below(path)
    if not names:
        raise InputError(f"There is no image in {path}: give a folder with images ({', '.join(sorted(EXTENSIONS))}).")
    return Images(names, lambda position: path / names[position], path, n_ignored)


def _of_array(array: NDArray[np.uint8]) -> Images:
    _check_bytes(array, "The array")
    shape = array.shape
    if array.ndim == 3 and shape[2] == 3:
        array = array[None]
    if array.ndim not in (3, 4) or array.shape[3:] not in ((), (3,)) or 0 in shape:
        first = "; transpose(0, 2, 3, 1) moves the channels to the end" if shape[1:2] == (3,) else ""
        raise InputError(
            f"The array has the shape {shape}: give [N, H, W, 3], [H, W, 3], or [N, H, W] for grey images{first}."
        )
    return Images([f"image {k}" for k in range(len(array))], array.__getitem__)


def _of_list(pictures: Sequence[Picture]) -> Images:
    if not pictures:
        raise InputError("The list of images is empty: give at least one image.")
    names: list[str] = []
    known: list[Path | Image.Image | NDArray[np.uint8]] = []
    for k, picture in enumerate(pictures):
        if isinstance(picture, str | os.PathLike):
            path = Path(picture)
            if not path.is_file():
                what = "is a folder: give it alone, without a list" if path.is_dir() else "does not exist"
                raise InputError(f"Image {k} of the list, {path}, {what}.")
            known.append(path)
            names.append(os.fspath(picture))
            continue
        if isinstance(picture, np.ndarray):
            _check_bytes(picture, f"Image {k} of the list")
            if picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (3,)) or 0 in picture.shape:
                raise InputError(
                    f"Image {k} of the list has the shape {picture.shape}: give [H, W, 3], or [H, W] for a grey image."
                )
        elif not isinstance(picture, Image.Image):
            raise InputError(
                f"Image {k} of the list is a {type(picture).__name__}: give paths of image files, PIL images, or "
                "uint8 arrays [H, W, 3]."
            )
        known.append(picture)
        names.append(f"image {k}")
    return Images(names, known.__getitem__)


def _check_bytes(array: NDArray[np.generic], what: str) -> None:
    if array.dtype != np.uint8:
        how = "; for values from 0 to 1: (255 * array).round().astype(numpy.uint8)" if array.dtype.kind == "f" else ""
        raise InputError(f"{what} is of {array.dtype}: give uint8, from 0 to 255{how}.")
