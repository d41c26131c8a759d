"""The index of a shard: name, place and label of every image in it, stored as JSON lines."""

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, overload

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.shards.tar import MAX_CLASSES, examples
from meanteacher.files import atomic_file, open_regular
from meanteacher.files.limits import MAX_BYTES

MAX_INDEX_BYTES = 1 << 30
MAX_BROKEN = 10_000
"""Examples of one shard that may be left out: with more, it is another kind of file."""

_FORMAT = "meanteacher shard index 1"
_MAX_LINE_BYTES = 1 << 24


class Names(Sequence[str]):
    """Many strings in little memory: their UTF-8 bytes in one piece."""

    def __init__(self) -> None:
        self._bytes, self._ends = bytearray(), array("q", [0])

    def append(self, name: str) -> None:
        self._bytes += name.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._bytes))

    def extend(self, others: "Names") -> None:
        start = len(self._bytes)
        self._bytes += others._bytes
        self._ends.extend(start + end for end in others._ends[1:])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self[k] for k in range(len(self))[position]]
        k = range(len(self))[position]
        return self._bytes[self._ends[k] : self._ends[k + 1]].decode("utf-8", "surrogateescape")


@dataclass(eq=False)
class ShardIndex:
    """The images of one shard."""

    n_bytes: int
    class_names: tuple[str, ...] | None = None
    """Names of the labels; None if they are numbers without names."""
    sha256: str = ""
    """Hash of the shard; empty if unknown."""
    modified: int = 0
    """When the shard was last changed, in nanoseconds; 0 if that does not matter."""
    names: Names = field(default_factory=Names)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    labels: "array[int]" = field(default_factory=lambda: array("q"))
    """`UNLABELLED` for none."""
    broken: list[tuple[str, str]] = field(default_factory=list)
    """Images in the shard that cannot be used, and why."""
    not_packed: list[tuple[str, str]] = field(default_factory=list)
    """Photos that were left out when it was packed, and why."""
    packed_from: str = ""
    """Digest of the photos that it was packed from, by their names, labels, sizes and times of change; empty if it was
    not packed here."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, name: str, offset: int, size: int, label: int) -> None:
        self.names.append(name)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.labels.append(label)

    def save(self, path: Path) -> None:
        """Write a header and one line per image, the whole file or nothing."""
        header = {
            "format": _FORMAT,
            "bytes": self.n_bytes,
            "sha256": self.sha256,
            "modified": self.modified,
            "images": len(self),
            "classes": self.class_names,
            "broken": self.broken,
            "not_packed": self.not_packed,
            "packed_from": self.packed_from,
        }
        with atomic_file(path) as file:
            file.write(json.dumps(header).encode() + b"\n")
            for row in zip(self.names, self.offsets, self.sizes, self.labels, strict=True):
                file.write(json.dumps(row).encode() + b"\n")


def index_path(shard: Path) -> Path:
    """Where `pack` writes the index of a shard: beside it.

    >>> index_path(Path("train-000000.tar")).name
    'train-000000.index.jsonl'
    """
    return shard.with_suffix(".index.jsonl")


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_index(path: Path) -> ShardIndex:
    """Read a file that `ShardIndex.save` wrote, line by line."""
    line = 1
    try:
        with open_regular(path) as file:
            header = json.loads(_line(file))
            if header["format"] != _FORMAT:
                raise ValueError(f"its format is {header['format']!r}")
            classes = header["classes"]
            index = ShardIndex(
                n_bytes=_whole(header["bytes"]),
                class_names=None if classes is None else tuple(str(name) for name in classes),
                sha256=str(header["sha256"]),
                modified=_whole(header["modified"]),
                broken=[(str(name), str(why)) for name, why in header["broken"]],
                not_packed=[(str(name), str(why)) for name, why in header["not_packed"]],
                packed_from=str(header["packed_from"]),
            )
            n_classes = MAX_CLASSES if classes is None else len(classes)
            for _ in range(_whole(header["images"])):
                line += 1
                name, offset, size, label = json.loads(_line(file))
                if not isinstance(name, str) or (label != UNLABELLED and _whole(label) >= n_classes):
                    raise ValueError("expected a name, two positions and a label")
                if _whole(offset) + _whole(size) > index.n_bytes or size > MAX_BYTES:
                    raise ValueError("an image outside the shard")
                index.add(name, offset, size, label)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}, line {line}: this is not the index of a shard ({error}). Delete the file: the index is made "
            "again from the shard itself."
        ) from error
    return index


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise ValueError("the line is not complete")
    return line


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def make_index(shard: Path) -> ShardIndex:
    """Find the images of a shard by its headers and labels; an InputError if it is not a complete shard of images."""
    status = shard.stat()
    index = ShardIndex(n_bytes=status.st_size, modified=status.st_mtime_ns)
    numbers: dict[str, int] = {}
    counted = False
    for example in examples(shard):
        if example.problem:
            index.broken.append((example.name, example.problem))
            if len(index.broken) > MAX_BROKEN:
                raise InputError(
                    f"{shard} is not a shard of images: more than {MAX_BROKEN:,} of its examples cannot be used, the "
                    f"last one is {example.name!r} ({example.problem})."
                )
            continue
        label = example.label
        if isinstance(label, str):
            label = numbers.setdefault(label, len(numbers))
        elif label != UNLABELLED:
            counted = True
        index.add(example.name, example.offset, example.size, label)
    if counted and numbers:
        raise InputError(
            f"{shard} has both numbers and names as labels, such as {next(iter(numbers))!r}. Use one kind."
        )
    index.class_names = tuple(numbers) if numbers else None
    return index
