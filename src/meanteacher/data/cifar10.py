"""CIFAR-10 (Krizhevsky, 2009) from its official Python batches, without trusting them."""

import gzip
import pickletools
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import InputError
from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.data.download import Progress, fetch
from meanteacher.files import open_regular, read_regular

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


class _Array:
    """Stands in for `numpy.ndarray`: keeps the state instead of acting on it.

    Allowing the real class is not enough: a crafted dtype turns bytes of the file into object pointers.
    """

    state: object = None

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

    state: object = None

    def __init__(self, name: object = None) -> None:
        self.name = name


def _encoded(text: object = None, codec: object = None) -> bytes:
    """How Python 3 writes bytes for Python 2. Any other codec may take as long as it likes."""
    if not isinstance(text, str) or codec not in ("latin1", b"latin1"):
        raise ValueError("it asks for a codec that no official batch needs")
    return text.encode("latin1")


_KNOWN: dict[str, Callable[..., object]] = {
    "numpy.core.multiarray _reconstruct": lambda *_: _Array(),
    "numpy._core.multiarray _reconstruct": lambda *_: _Array(),
    "numpy ndarray": lambda *_: _Array(),
    "numpy dtype": lambda *arguments: _Dtype(*arguments[:1]),
    "_codecs encode": _encoded,
}
"""The names that occur in the batches, in numpy 1's spelling and in numpy 2's, and what stands in for them."""


class _Unpickler:
    """Reads what the official batches are made of: dicts, lists, tuples, numbers, bytes, and arrays of bytes.

    `pickle.Unpickler` with a list of allowed names is not enough: ten bytes make it allocate gigabytes, and a key of
    nested tuples keeps it busy for ever. Here a key is a text, and the number of instructions is limited.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[object, Any] = {}

    def load(self, content: bytes) -> object:
        for n, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if n == _MAX_INSTRUCTIONS:
                raise ValueError("it has more instructions than an official batch")
            if instruction.name not in _INSTRUCTIONS:
                raise ValueError(f"the instruction {instruction.name} occurs in no official batch")
            _INSTRUCTIONS[instruction.name](self, argument)
        return self.stack.pop()

    def push(self, value: object) -> None:
        self.stack.append(value)

    def remember(self, place: object) -> None:
        self.memo[place] = self.stack[-1]

    def append(self, items: list[Any]) -> None:
        _expected(self.stack[-1], list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = _expected(self.stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_expected(key, str | bytes)] = value

    def name(self, known: str) -> None:
        if known not in _KNOWN:
            raise ValueError(f"it asks for {known.replace(' ', '.')}, which no official batch needs")
        self.push(_KNOWN[known])

    def call(self) -> None:
        function, arguments = self.popped(2)
        if not any(function is known for known in _KNOWN.values()):
            raise ValueError("it calls what is no function")
        self.push(function(*_expected(arguments, tuple)))

    def build(self) -> None:
        (state,) = self.popped(1)
        _expected(self.stack[-1], _Array | _Dtype).state = state

    def popped(self, n: int) -> list[Any]:
        items, self.stack[-n:] = self.stack[-n:], []
        if len(items) < n:
            raise ValueError("it takes away more than there is")
        return items

    def since_mark(self) -> list[Any]:
        at = self.marks.pop()
        items, self.stack[at:] = self.stack[at:], []
        return items


_MAX_BYTES = 1 << 26
_MAX_INSTRUCTIONS = 1_000_000
"""An official batch has some sixty thousand."""
_MAX_UNPACKED, _MAX_MEMBERS = 1 << 28, 100
_VALUES = ("BININT", "BININT1", "BININT2", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINFLOAT")
_INSTRUCTIONS: dict[str, Callable[[_Unpickler, Any], None]] = {
    **dict.fromkeys(_VALUES, _Unpickler.push),
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), lambda self, text: self.push(text.encode("latin1"))),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Unpickler.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda self, place: self.push(self.memo[place])),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda self, _: None),
    "MEMOIZE": lambda self, _: self.remember(len(self.memo)),
    "MARK": lambda self, _: self.marks.append(len(self.stack)),
    "NONE": lambda self, _: self.push(None),
    "NEWTRUE": lambda self, _: self.push(True),
    "NEWFALSE": lambda self, _: self.push(False),
    "EMPTY_TUPLE": lambda self, _: self.push(()),
    "EMPTY_LIST": lambda self, _: self.push([]),
    "EMPTY_DICT": lambda self, _: self.push({}),
    "APPEND": lambda self, _: self.append(self.popped(1)),
    "APPENDS": lambda self, _: self.append(self.since_mark()),
    "SETITEM": lambda self, _: self.set_items(self.popped(2)),
    "SETITEMS": lambda self, _: self.set_items(self.since_mark()),
    "TUPLE": lambda self, _: self.push(tuple(self.since_mark())),
    "TUPLE1": lambda self, _: self.push(tuple(self.popped(1))),
    "TUPLE2": lambda self, _: self.push(tuple(self.popped(2))),
    "TUPLE3": lambda self, _: self.push(tuple(self.popped(3))),
    "GLOBAL": _Unpickler.name,
    "REDUCE": lambda self, _: self.call(),
    "BUILD": lambda self, _: self.build(),
}


def _expected(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} where no official batch has one")
    return value


def _foreign(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not a file of CIFAR-10's official Python version: {why}. Delete the folder {path.parent} "
        "to unpack or download it again."
    )


def _unpickle(path: Path) -> dict[object, object]:
    try:
        content = _Unpickler().load(read_regular(path, _MAX_BYTES))
    except FileNotFoundError as fault:
        raise _foreign(path, "it is missing") from fault
    # Bytes that are no pickle fail in many ways.
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as fault:
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


class _Inflated:
    """The content of a .gz file, of limited length."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = gzip.GzipFile(fileobj=file), _MAX_UNPACKED

    def read(self, n: int) -> bytes:
        content = self._file.read(n)
        self._left -= len(content)
        if self._left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {_MAX_UNPACKED:,} bytes")
        return content


def _unpack(archive: Path, batches: Path) -> None:
    """Unpack beside the target and move it into place, so that an interrupted unpacking leaves nothing."""
    try:
        with tempfile.TemporaryDirectory(dir=batches.parent, prefix=".cifar-10-") as scratch:
            unpacked = Path(scratch) / batches.name
            unpacked.mkdir()
            with open_regular(archive) as stored, tarfile.open(None, "r|", cast(IO[bytes], _Inflated(stored))) as tar:
                for n, member in enumerate(tar):
                    if n == _MAX_MEMBERS:
                        raise tarfile.ReadError("it has too many files")
                    # Only plain files right inside the one folder, under names of our own making: whatever else an
                    # archive holds, such as links or ways out of it, is not unpacked.
                    folder, _, name = member.name.removeprefix("./").partition("/")
                    plain = member.isfile() and not member.issparse() and folder == batches.name
                    content = tar.extractfile(member) if plain else None
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
