"""CIFAR-10 (Krizhevsky, 2009) from its official archive of Python batches."""

import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import InputError, Progress
from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.data.download import fetch
from meanteacher.data.official import SHAPE, read_labelled, verified

_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FOLDER = "cifar-10-batches-py"


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """50000 training and 10000 test photos of 32 x 32 in ten classes.

    They are read from the official archive, which stays packed: its sha256 is compared first, so that no other pickle
    is ever read. If the archive is not in the data folder but cifar10.npz is, its arrays are used instead.
    """

    url: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    sha256: ClassVar[str] = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        archive, arrays, unpacked = folder / "cifar-10-python.tar.gz", folder / "cifar10.npz", folder / _FOLDER
        if not archive.exists():
            if unpacked.exists():
                raise InputError(
                    f"{unpacked} is unpacked, and only the archive {archive.name} can be compared with the official "
                    f"one: put the archive into {folder}, or delete {_FOLDER} to download it, or give other images as "
                    f"arrays in {arrays}."
                )
            if arrays.exists():
                train, test = (_dataset(*read_labelled(arrays, part)) for part in ("train", "test"))
                return TrainTest(train, test, official=False)
            fetch(self.url, archive, sha256=self.sha256, progress=progress)
        with verified(archive, self.sha256, arrays=arrays) as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
            batches = {Path(member.name).name: _batch(tar, member) for member in tar if "_batch" in member.name}
        images, labels = zip(*(batches[f"data_batch_{k}"] for k in range(1, 6)), strict=True)
        train = _dataset(np.concatenate(images), np.concatenate(labels))
        return TrainTest(train, _dataset(*batches["test_batch"]), official=True)


def _batch(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels of a batch in the verified archive."""
    file = tar.extractfile(member)
    assert file is not None
    content: dict[bytes, Any] = pickle.load(file, encoding="bytes")
    return content[b"data"].reshape(-1, *SHAPE), np.array(content[b"labels"])


def _dataset(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Dataset:
    return Dataset(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels), _NAMES)
