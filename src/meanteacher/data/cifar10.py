"""CIFAR-10 (Krizhevsky, 2009) from its official Python batches, without trusting them."""

import codecs
import gzip
import pickle
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import InputError, Problem
from meanteacher.data.dataset import Dataset, Outline, TrainTest
from meanteacher.data.download import Progress, fetch

_SHAPE = (3, 32, 32)
_N_PIXELS = 3 * 32 * 32
_N_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """50000 training and 10000 test photos of 32 x 32 in ten classes."""

    url: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    sha256: ClassVar[str] = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"

    def download(self, folder: Path, progress: Progress | None = None) -> Path:
        """The folder of the batches. Downloads and unpacks the archive if necessary."""
        batches = folder / "cifar-10-batches-py"
        if not batches.exists():
            archive = folder / "cifar-10-python.tar.gz"
            if not archive.exists():
                fetch(self.url, archive, sha256=self.sha256, progress=progress)
            _unpack(archive, batches)
        return batches

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        batches = self.download(folder, progress)
        names = _class_names(batches / "batches.meta")
        return TrainTest(
            train=_dataset([batches / f"data_batch_{i}" for i in range(1, 6)], names),
            test=_dataset([batches / "test_batch"], names),
        )

    def outline(self) -> Outline:
        return Outline(Problem(_N_CLASSES, n_examples=50_000, input_shape=_SHAPE), stored_bytes=_N_PIXELS)


class _Array:
    """Stands in for `numpy.ndarray` while unpickling: stores the state instead of acting on it.

    Allowing the real class is not enough: a crafted dtype turns bytes of the file into object pointers.
    """

    state: object = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.state = state

    def bytes_of(self) -> NDArray[np.uint8] | None:
        """The array, without a copy, if its state is the plain one of unsigned bytes."""
        match self.state:
            case (int(), (int(rows), int(columns)), _Dtype(name="u1" | b"u1"), is_fortran, bytes(raw)) if (
                rows > 0 and columns > 0 and rows * columns == len(raw)
            ):
                return np.frombuffer(raw, np.uint8).reshape(rows, columns, order="F" if is_fortran else "C")
        return None


class _Dtype:
    """Stands in for `numpy.dtype`."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None: ...


class _BatchUnpickler(pickle.Unpickler):
    """Knows the four names that occur in the batches, in numpy 1's spelling and in numpy 2's."""

    known: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        # How Python 3 writes bytes for Python 2.
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no official batch needs")
        return self.known[module, name]


def _foreign(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not a file of CIFAR-10's official Python version: {why}. Delete the folder {path.parent} "
        "to unpack or download it again."
    )


def _unpickle(path: Path) -> dict[object, object]:
    if not path.is_file():
        raise _foreign(path, "it is missing")
    try:
        with path.open("rb") as file:
            content = _BatchUnpickler(file, encoding="bytes").load()
    # Bytes that are no pickle can fail in any way: "other exceptions may also be raised", says its manual.
    except Exception as fault:
        raise _foreign(path, f"it cannot be read ({type(fault).__name__}: {fault})") from fault
    if not isinstance(content, dict):
        raise _foreign(path, f"it holds a {type(content).__name__}, expected a dict")
    return content


def _class_names(path: Path) -> tuple[str, ...]:
    names = _unpickle(path).get(b"label_names")
    if not isinstance(names, list) or len(names) != _N_CLASSES or not all(isinstance(n, bytes) for n in names):
        raise _foreign(path, f"b'label_names' should list {_N_CLASSES} names")
    return tuple(name.decode("ascii", errors="replace") for name in names)


def _batch(path: Path) -> tuple[NDArray[np.uint8], list[int]]:
    content = _unpickle(path)
    data, labels = content.get(b"data"), content.get(b"labels")
    rows = data.bytes_of() if isinstance(data, _Array) else None
    if rows is None or rows.shape[1] != _N_PIXELS:
        raise _foreign(path, f"b'data' should be an array of bytes of shape (N, {_N_PIXELS})")
    if not isinstance(labels, list) or len(labels) != len(rows):
        raise _foreign(path, f"b'labels' should list {len(rows)} labels, one per image")
    if not all(type(label) is int and 0 <= label < _N_CLASSES for label in labels):
        raise _foreign(path, f"b'labels' should be whole numbers from 0 to {_N_CLASSES - 1}")
    return rows, labels


def _dataset(paths: list[Path], names: tuple[str, ...]) -> Dataset:
    batches = [_batch(path) for path in paths]
    images = np.concatenate([rows for rows, _ in batches]).reshape(-1, *_SHAPE)
    labels = [label for _, labels in batches for label in labels]
    return Dataset(torch.from_numpy(images), torch.tensor(labels), names)


def _unpack(archive: Path, batches: Path) -> None:
    """Unpack beside the target and move it into place, so that an interrupted unpacking leaves nothing."""
    try:
        with tempfile.TemporaryDirectory(dir=batches.parent, prefix=".cifar-10-") as scratch:
            unpacked = Path(scratch) / batches.name
            unpacked.mkdir()
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    # Only plain files right inside the one folder, under names of our own making: whatever else an
                    # archive holds, such as links or ways out of it, is not unpacked.
                    folder, _, name = member.name.removeprefix("./").partition("/")
                    content = tar.extractfile(member) if member.isfile() and folder == batches.name else None
                    if content is not None and name and Path(name).name == name:
                        with content, (unpacked / name).open("wb") as file:
                            shutil.copyfileobj(content, file)
            if not any(unpacked.iterdir()):
                raise tarfile.ReadError(f"it holds no folder {batches.name}")
            try:
                unpacked.rename(batches)
            except OSError:
                # Another process may have unpacked it first; its folder is as good.
                if not batches.is_dir():
                    raise
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as fault:
        raise InputError(
            f"{archive} is not CIFAR-10's official archive, or not all of it: {fault}. Delete it to download it again."
        ) from fault
    except OSError as fault:
        raise InputError(
            f"Could not unpack {archive}: {fault}. Free some space or make the folder writable."
        ) from fault
