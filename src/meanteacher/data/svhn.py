"""Street View House Numbers (Netzer et al., 2011), the cropped digits, from the official MATLAB files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError, Problem
from meanteacher.data.dataset import Dataset, Outline, TrainTest
from meanteacher.data.download import Progress, fetch
from meanteacher.seeding import generator

_SHAPE = (3, 32, 32)
_N_CLASSES = 10
_NAMES = tuple(str(digit) for digit in range(_N_CLASSES))
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Svhn:
    """73257 training and 26032 test digits of 32 x 32, and up to 531131 more without their labels."""

    extra: int = 0
    """How many images of the extra set follow the training set, unlabelled: a smaller number is a prefix of a
    larger one."""

    url: ClassVar[str] = "https://ufldl.stanford.edu/housenumbers/"
    sha256: ClassVar[Mapping[str, str]] = {
        "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    }

    def __post_init__(self) -> None:
        if self.extra < 0:
            raise InputError(f"extra={self.extra}: give the number of extra images, 0 for none.")

    def download(self, folder: Path, progress: Progress | None = None) -> None:
        """Download the missing files. The extra set is 1.3 GB, so only if it is used."""
        for part in ("train", "test", "extra") if self.extra else ("train", "test"):
            path = _file(folder, part)
            if not path.exists():
                fetch(self.url + path.name, path, sha256=self.sha256[part], progress=progress)

    def outline(self) -> Outline:
        problem = Problem(_N_CLASSES, n_examples=73_257 + self.extra, input_shape=_SHAPE)
        return Outline(problem, stored_bytes=math.prod(_SHAPE))

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        self.download(folder, progress)
        test_images, test_labels = _labelled(_file(folder, "test"))
        test = Dataset(torch.from_numpy(np.ascontiguousarray(test_images)), test_labels, _NAMES)

        images, labels = _labelled(_file(folder, "train"))
        n_labelled = len(images)
        # Allocated at its final size: with the extra set, a second copy would take two gigabytes.
        train = np.empty((n_labelled + self.extra, *_SHAPE), np.uint8)
        train[:n_labelled] = images
        del images
        if self.extra:
            self._copy_extra(_file(folder, "extra"), train[n_labelled:])
            labels = torch.cat([labels, torch.full((self.extra,), UNLABELLED)])
        return TrainTest(train=Dataset(torch.from_numpy(train), labels, _NAMES), test=test)

    def _copy_extra(self, path: Path, out: NDArray[np.uint8]) -> None:
        images = _images(path, _read(path, "X"))
        if self.extra > len(images):
            raise InputError(f"extra={self.extra}, but {path} holds {len(images)} images: ask for at most that many.")
        order = torch.randperm(len(images), generator=generator(0, "svhn/extra"))[: self.extra].numpy()
        for start in range(0, self.extra, _ROWS_AT_ONCE):
            rows = order[start : start + _ROWS_AT_ONCE]
            out[start : start + len(rows)] = images[rows]


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}_32x32.mat"


def _foreign(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not SVHN's official file: {why}. Delete it to download it again.")


def _read(path: Path, *names: str) -> dict[str, Any]:
    """The named variables and no other: an unlabelled image's label is not even read."""
    # Importing scipy.io takes a while, and the other sources do without it.
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path, variable_names=names, appendmat=False)
    # A damaged file makes the reader fail in many ways: ValueError, TypeError, OSError, zlib.error ...
    except Exception as fault:
        raise _foreign(path, f"it cannot be read ({type(fault).__name__}: {fault})") from fault
    for name in names:
        if name not in content:
            raise _foreign(path, f"the variable {name} is missing")
    return content


def _images(path: Path, content: dict[str, Any]) -> NDArray[np.uint8]:
    """[N, 3, 32, 32], not copied yet: MATLAB's order of the axes is the reverse of ours."""
    images = content["X"]
    if not (
        isinstance(images, np.ndarray)
        and images.dtype == np.uint8
        and images.ndim == 4
        and images.shape[:3] == (32, 32, 3)
        and images.shape[3] > 0
    ):
        found = f"{getattr(images, 'dtype', type(images))} {getattr(images, 'shape', '')}"
        raise _foreign(path, f"X is {found}, expected uint8 (32, 32, 3, N)")
    return images.transpose(3, 2, 0, 1)


def _labelled(path: Path) -> tuple[NDArray[np.uint8], torch.Tensor]:
    content = _read(path, "X", "y")
    images, labels = _images(path, content), content["y"]
    if not (isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.shape == (len(images), 1)):
        found = f"{getattr(labels, 'dtype', type(labels))} {getattr(labels, 'shape', '')}"
        raise _foreign(path, f"y is {found}, expected whole numbers ({len(images)}, 1)")
    if labels.min() < 1 or labels.max() > _N_CLASSES:
        raise _foreign(path, f"y runs from {labels.min()} to {labels.max()}, expected 1 to 10 (10 is the digit 0)")
    return images, torch.from_numpy(labels.ravel().astype(np.int64) % _N_CLASSES)
