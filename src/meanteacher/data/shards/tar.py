"""What is in a tar shard of WebDataset's format: examples, each an image at a place in the file, and its label.

Neighbouring members whose names are equal up to the first dot of the file name are one example: an image (.jpg, .jpeg,
.png), and its label in a .cls member or in the field "label" of a .json member; without one it is unlabelled.

Nothing is ever extracted. Names are only compared and shown, only plain files are read, and no amount of memory
depends on what a header says. (Python's tarfile reads an extended header of any size, and lists all members in memory.)
"""

import json
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files import open_regular
from meanteacher.files.limits import MAX_BYTES

MAX_CLASSES = 100_000

_BLOCK = 512
_MAX_EXTENDED_BYTES = 1 << 16
"""Of a header that holds a long name."""
_MAX_LABEL_BYTES = 1 << 20
_IMAGES = ("jpg", "jpeg", "png")
_SIGNATURES = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")
_REGULAR, _FOLDER, _SPARSE = (b"0", b"\0", b"7"), b"5", b"S"
_LONG_NAME, _LONG_LINK, _GLOBAL = b"L", b"K", b"g"
_EXTENDED = (b"x", _LONG_NAME, _LONG_LINK, _GLOBAL)
"""Members that say something about the one that follows."""
_NOT_FILES = {b"1": "a link", b"2": "a link", b"3": "a device", b"4": "a device", b"6": "a pipe"}


class Example(NamedTuple):
    """An image of a shard, or what takes its place."""

    name: str
    """Of the image's member: the same wherever the shard lies."""
    offset: int
    size: int
    """In bytes."""
    label: int | str
    """A number or a name; `UNLABELLED` for none."""
    problem: str
    """Why it cannot be used; empty if it can."""


class _Member(NamedTuple):
    name: str
    offset: int
    size: int
    start: bytes
    """The first bytes of its content."""
    problem: str
    """Why it is not read; empty for a plain file."""


def examples(shard: Path) -> Iterator[Example]:
    """The examples of a shard, in their order, from its headers and labels. No image is read.

    An example has a problem if it has no image or more than one, if its image is empty, too large or neither
    JPEG nor PNG by its first bytes, if its label cannot be read, or if one of its members is not a plain file.

    Raises:
        InputError: it is not a complete tar file.
    """
    with open_regular(shard, buffering=0) as file:
        key, parts = "", list[tuple[str, _Member]]()
        for member in _members(file, shard):
            folder, _, last = member.name.rpartition("/")
            stem, _, extension = last.partition(".")
            if not stem or not extension:
                continue  # a hidden file, or one without an extension: no part of an example
            if f"{folder}/{stem}" != key and parts:
                yield _example(parts, file)
                parts = []
            key = f"{folder}/{stem}"
            if len(parts) < 100:  # no example has as many
                parts.append((extension.lower(), member))
        if parts:
            yield _example(parts, file)


def _example(parts: list[tuple[str, _Member]], file: IO[bytes]) -> Example:
    images = [member for extension, member in parts if extension in _IMAGES]
    image = images[0] if images else parts[0][1]
    label: int | str = UNLABELLED
    try:
        for _, member in parts:
            if member.problem:
                raise ValueError(f"{member.name!r} is {member.problem}")
        if len(images) != 1:
            raise ValueError("more than one image" if images else "no JPEG or PNG image")
        _check_image(image)
        for kind, member in sorted(parts, reverse=True):  # a .cls member counts more than a .json member
            if kind in ("cls", "json"):
                label = _read_label(kind, member, file, label)
    except ValueError as error:
        return Example(image.name, image.offset, image.size, UNLABELLED, str(error))
    return Example(image.name, image.offset, image.size, label, "")


def _check_image(image: _Member) -> None:
    if not image.size:
        raise ValueError("empty")
    if image.size > MAX_BYTES:
        raise ValueError(f"too large: {image.size:,} bytes")
    if not image.start.startswith(_SIGNATURES):
        raise ValueError("neither JPEG nor PNG")


def _read_label(kind: str, member: _Member, file: IO[bytes], default: int | str) -> int | str:
    """The label in a member, or the default if that is metadata of another kind."""
    label: Any
    try:
        if member.size > _MAX_LABEL_BYTES:
            raise ValueError(f"{member.size:,} bytes")
        file.seek(member.offset)
        label = file.read(member.size).decode("utf-8").strip()
        if kind == "json":
            content = json.loads(label)
            label = content.get("label") if isinstance(content, dict) else None
            if label is None:
                return default
        if isinstance(label, str) and label.removeprefix("-").isdecimal():
            label = int(label[:20])
        if isinstance(label, str) and label:
            label.encode()  # JSON can write what is no character
            return label
        if type(label) is not int or not UNLABELLED <= label < MAX_CLASSES:
            raise ValueError(f"{reprlib.repr(label)} is not a name or a number below {MAX_CLASSES:,}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{member.name!r} has no label that can be read: {error}") from error
    return label


def _members(file: IO[bytes], shard: Path) -> Iterator[_Member]:
    """The members of a tar file: ustar, with the long names of GNU and of POSIX."""
    n_bytes = file.seek(0, 2)
    at = 0
    told: dict[str, bytes] = {}  # by extended headers, about the next member
    while True:
        file.seek(at)
        block = file.read(2 * _BLOCK)
        header = block[:_BLOCK]
        if len(header) == _BLOCK and not any(header):
            return
        try:
            if len(header) < _BLOCK:
                raise ValueError("its end is missing")
            size, kind, offset = _checked_size(header), header[156:157], at + _BLOCK
            if kind in _EXTENDED:
                told |= _told(kind, file, offset, size)
            elif "size" in told:
                size = _number(told["size"], 10)
            if kind in _NOT_FILES or kind == _FOLDER:
                size = 0  # whatever the header says, no content follows
            if offset + size > n_bytes:
                raise ValueError("its end is missing")
            if kind == _SPARSE:
                raise ValueError("a sparse file, which is not supported")
        except ValueError as error:
            raise InputError(
                f"{shard} is not a complete tar file: {error}, at byte {at:,} of {n_bytes:,}. Copy or pack it again. "
                "Compressed tar files are not supported: an image in one cannot be read without all that precede it."
            ) from error
        if kind not in _EXTENDED:
            if kind != _FOLDER:
                name = _text(told["path"]) if "path" in told else _own_name(header)
                problem = "" if kind in _REGULAR else _NOT_FILES.get(kind, "not a plain file")
                yield _Member(name, offset, size, block[_BLOCK:], problem)
            told = {}
        at = offset + -(-size // _BLOCK) * _BLOCK


def _told(kind: bytes, file: IO[bytes], offset: int, size: int) -> dict[str, bytes]:
    """The path and the size of the next member, as far as the extended header at this place has them."""
    if kind == _LONG_LINK:
        return {}
    if size > _MAX_EXTENDED_BYTES:
        raise ValueError(f"a header of {size:,} bytes")
    file.seek(offset)
    content = file.read(size)
    if kind == _LONG_NAME:
        return {"path": content}
    told = {key: value for key, value in _records(content).items() if key in ("path", "size")}
    if kind == _GLOBAL and told:
        raise ValueError("one name or size for all members")
    return told


def _checked_size(header: bytes) -> int:
    """The size of the content, once the header's checksum is known to be right."""
    if sum(header) - sum(header[148:156]) + 8 * ord(" ") != _number(header[148:156]):
        raise ValueError("a wrong checksum")
    # Sizes from 8 GB on are binary.
    return int.from_bytes(header[125:136], "big") if header[124] == 0x80 else _number(header[124:136])


def _number(field: bytes, base: int = 8) -> int:
    digits = field.split(b"\0")[0].strip() or b"0"
    if not digits.isdigit():
        raise ValueError("no number where there should be one")
    return int(digits, base)


def _own_name(header: bytes) -> str:
    # GNU's format has other fields where ustar has the first part of a long name.
    parts = (header[345:500], header[:100]) if header[257:263] == b"ustar\0" else (header[:100],)
    return "/".join(filter(None, map(_text, parts)))


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _records(content: bytes) -> dict[str, bytes]:
    """The records "length key=value" of an extended header."""
    records = {}
    while content:
        digits = content.partition(b" ")[0]
        length = int(digits[:9]) if digits.isdigit() else 0
        if not len(digits) + 1 < length <= len(content):
            raise ValueError("a damaged header")
        record, content = content[len(digits) + 1 : length], content[length:]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not equals:
            raise ValueError("a damaged header")
        if key.startswith(b"GNU.sparse"):
            raise ValueError("a sparse file, which is not supported")
        records[key.decode("utf-8", "replace")] = value
    return records
