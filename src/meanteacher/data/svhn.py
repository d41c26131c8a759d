"""Street View House Numbers (Netzer et al., 2011), the cropped digits, from the official MATLAB files."""

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.data.download import Progress, fetch
from meanteacher.files import open_regular
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


def _read(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """The named variables and no other: an unlabelled image's label is not even read."""
    try:
        content = _read_variables(path, names)
    except (OSError, ValueError) as fault:
        raise _foreign(path, f"it cannot be read ({fault})") from fault
    for name in names:
        if name not in content:
            raise _foreign(path, f"the variable {name} is missing")
    return content


def _images(path: Path, content: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """[N, 3, 32, 32], not copied yet: MATLAB's order of the axes is the reverse of ours."""
    images = content["X"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or not images.shape[3]:
        raise _foreign(path, f"X is {images.dtype} {images.shape}, expected uint8 (32, 32, 3, N)")
    return images.transpose(3, 2, 0, 1)


def _labelled(path: Path) -> tuple[NDArray[np.uint8], torch.Tensor]:
    content = _read(path, "X", "y")
    images, labels = _images(path, content), content["y"]
    if labels.dtype.kind not in "iu" or labels.shape != (len(images), 1):
        raise _foreign(path, f"y is {labels.dtype} {labels.shape}, expected whole numbers ({len(images)}, 1)")
    if labels.min() < 1 or labels.max() > _N_CLASSES:
        raise _foreign(path, f"y runs from {labels.min()} to {labels.max()}, expected 1 to 10 (10 is the digit 0)")
    return images, torch.from_numpy(labels.ravel().astype(np.int64) % _N_CLASSES)


# MATLAB files of version 5 are read by hand. A general reader, such as scipy's, builds whatever a file describes and
# crashes on some damaged ones. This one knows plain numeric arrays, and compares every size with what the file can hold
# before memory is allocated.
_HEADER_BYTES = 128
_LITTLE_ENDIAN = b"\x00\x01IM"
_COMPRESSED, _MATRIX, _INT8, _INT32, _UINT32 = 15, 14, 1, 5, 6
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Type of an element -> of its numbers."""
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Class of a variable -> what its numbers become; they may be stored in a smaller type."""
_COMPLEX, _LOGICAL = 0x08, 0x02
_MAX_NAME = 64
_MAX_DIMENSIONS = 8
_MAX_VARIABLES = 1000
_PIECE = 1 << 20
_MOST_COMPRESSED, _FREE = 20, 1 << 20
"""Compressed data may become twenty times as large, and a megabyte more. Photos shrink by a fifth."""


def _read_variables(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The variables with these names, as far as they are there; the others are skipped.

    Raises:
        ValueError: it is no MATLAB file of version 5, it is damaged, or such a variable is no array of real numbers.
        OSError: it cannot be read.
    """
    found: dict[str, NDArray[Any]] = {}
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if file.read(_HEADER_BYTES)[-4:] != _LITTLE_ENDIAN:
            raise ValueError("it is no MATLAB file of version 5")
        at = _HEADER_BYTES
        for _ in range(_MAX_VARIABLES):
            if at == n_bytes or len(found) == len(names):
                return found
            file.seek(at)
            tag = _Tag.read(_Raw(file, 8))
            if at + 8 + tag.n_bytes > n_bytes:
                raise ValueError("its end is missing")
            source: _Raw = _Raw(file, tag.n_bytes)
            if tag.kind == _COMPRESSED:
                source = _Inflated(file, tag.n_bytes)
                inner = _Tag.read(source)
                source.left = min(source.left, inner.n_bytes)
                kind = inner.kind
            else:
                kind = tag.kind
            if kind == _MATRIX:
                _read_matrix(source, names, found)
            # MATLAB writes no padding after a compressed element.
            at += 8 + tag.n_bytes
    raise ValueError("it has too many variables")


class _Raw:
    """The next so many bytes of a file."""

    def __init__(self, file: IO[bytes], n_bytes: int) -> None:
        self.file, self.left = file, n_bytes

    def read(self, n: int) -> bytes:
        """Exactly n bytes."""
        if n > self.left:
            raise ValueError("an element is longer than what contains it")
        self.left -= n
        content = self._next(n)
        if len(content) < n:
            raise ValueError("its end is missing")
        return content

    def _next(self, n: int) -> bytes:
        return self.file.read(n)


class _Inflated(_Raw):
    """What the next so many bytes of a file are, decompressed."""

    def __init__(self, file: IO[bytes], n_bytes: int) -> None:
        super().__init__(file, _MOST_COMPRESSED * n_bytes + _FREE)
        self._stored, self._inflate = n_bytes, zlib.decompressobj()

    def _next(self, n: int) -> bytes:
        content = b""
        try:
            while len(content) < n and not self._inflate.eof:
                piece = self._inflate.unconsumed_tail
                if not piece:
                    piece = self.file.read(min(_PIECE, self._stored))
                    self._stored -= len(piece)
                more = self._inflate.decompress(piece, n - len(content))
                if not piece and not more:
                    break
                content += more
        except zlib.error as error:
            raise ValueError("its compressed data are damaged") from error
        return content


class _Tag(NamedTuple):
    """What comes next: its type, its length, and the content itself where it is at most four bytes."""

    kind: int
    n_bytes: int
    small: bytes | None

    @staticmethod
    def read(source: _Raw) -> "_Tag":
        content = source.read(8)
        kind, n_bytes = struct.unpack("<II", content)
        if kind >> 16:
            if kind >> 16 > 4:
                raise ValueError("a damaged element")
            return _Tag(kind & 0xFFFF, kind >> 16, content[4 : 4 + (kind >> 16)])
        return _Tag(kind, n_bytes, None)


def _element(source: _Raw, kind: int, most: int) -> bytes:
    """The content of a small element of this type."""
    tag = _Tag.read(source)
    if tag.kind != kind or tag.n_bytes > most:
        raise ValueError("a damaged variable")
    if tag.small is not None:
        return tag.small
    content = source.read(tag.n_bytes)
    source.read(-tag.n_bytes % 8)
    return content


def _read_matrix(source: _Raw, names: Sequence[str], found: dict[str, NDArray[Any]]) -> None:
    flags = _element(source, _UINT32, 8)
    if len(flags) != 8:
        raise ValueError("a damaged variable")
    dimensions = _element(source, _INT32, 4 * _MAX_DIMENSIONS)
    shape = struct.unpack(f"<{len(dimensions) // 4}i", dimensions[: len(dimensions) // 4 * 4])
    name = _element(source, _INT8, _MAX_NAME).decode("latin1")
    if name not in names:
        return
    if flags[0] not in _CLASSES or flags[1] & (_COMPLEX | _LOGICAL):
        raise ValueError(f"the variable {name} is no array of real numbers")
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"the shape of {name} is damaged")
    tag = _Tag.read(source)
    stored = np.dtype("<" + _STORED.get(tag.kind, "V1"))
    is_whole = math.prod(shape) * stored.itemsize == tag.n_bytes
    if tag.kind not in _STORED or not is_whole or (tag.small is None and tag.n_bytes > source.left):
        raise ValueError(f"the numbers of {name} are not all there")
    values = np.frombuffer(tag.small, np.uint8) if tag.small is not None else _filled(source, tag.n_bytes)
    # The order of MATLAB's axes, without a copy.
    array = values.view(stored).reshape(shape, order="F")
    found[name] = array.astype("<" + _CLASSES[flags[0]], order="F", copy=False)


def _filled(source: _Raw, n_bytes: int) -> NDArray[np.uint8]:
    values = np.empty(n_bytes, np.uint8)
    for start in range(0, n_bytes, _PIECE):
        piece = source.read(min(_PIECE, n_bytes - start))
        values[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
    return values
