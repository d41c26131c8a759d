"""Street View House Numbers (Netzer et al., 2011), the cropped digits, from the official MATLAB files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError, Progress, imported
from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.data.download import fetch
from meanteacher.data.official import N_CLASSES, SHAPE, read_labelled, read_unlabelled, verified
from meanteacher.seeding import generator

_NAMES = tuple(str(digit) for digit in range(N_CLASSES))
_ARRAYS = "svhn.npz"
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Svhn:
    """73257 training and 26032 test digits of 32 x 32, and up to 531131 more without their labels.

    If none of the official files is in the data folder but svhn.npz is, its arrays are used instead.
    """

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

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        # The extra set is 1.3 GB, so it is downloaded only if it is used.
        files = {part: folder / f"{part}_32x32.mat" for part in self.sha256 if part != "extra" or self.extra}
        official = any(path.exists() for path in files.values()) or not (folder / _ARRAYS).exists()
        if official:
            for part, path in files.items():
                if not path.exists():
                    fetch(self.url + path.name, path, sha256=self.sha256[part], progress=progress)

        def labelled(part: str) -> tuple[NDArray[np.uint8], torch.Tensor]:
            images, labels = self._official(files[part]) if official else read_labelled(folder / _ARRAYS, part)
            return images, torch.from_numpy(labels)

        images, labels = labelled("test")
        test = Dataset(torch.from_numpy(np.ascontiguousarray(images)), labels, _NAMES)
        images, labels = labelled("train")
        n_labelled = len(images)
        # Allocated at its final size: with the extra set, a second copy would take two gigabytes.
        train = np.empty((n_labelled + self.extra, *SHAPE), np.uint8)
        train[:n_labelled] = images
        if self.extra:
            del images
            images = self._official(files["extra"])[0] if official else read_unlabelled(folder / _ARRAYS, "extra")
            self._copy_extra(images, train[n_labelled:])
            labels = torch.cat([labels, torch.full((self.extra,), UNLABELLED)])
        return TrainTest(Dataset(torch.from_numpy(train), labels, _NAMES), test, official=official)

    def _official(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images [N, 3, 32, 32], not copied yet, and labels [N]."""
        loadmat = imported("scipy.io", "The data set SVHN", extra="sklearn").loadmat  # importing it takes 0.3 s
        with verified(path, self.sha256[path.name.partition("_")[0]], arrays=path.with_name(_ARRAYS)) as file:
            content = loadmat(file)
        # The official files have the digit 0 as class 10.
        return content["X"].transpose(3, 2, 0, 1), content["y"][:, 0].astype(np.int64) % N_CLASSES

    def _copy_extra(self, images: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        if self.extra > len(images):
            raise InputError(
                f"extra={self.extra}, but the extra set has {len(images)} images: ask for at most that many."
            )
        order = torch.randperm(len(images), generator=generator(0, "svhn/extra"))[: self.extra].numpy()
        for start in range(0, self.extra, _ROWS_AT_ONCE):
            rows = order[start : start + _ROWS_AT_ONCE]
            out[start : start + len(rows)] = images[rows]
