"""What is in a tar shard of WebDataset's format: examples, each an image at a place in the file, and its label.

Neighbouring members whose names are equal up to the first dot of the file name are one example: an image (.jpg, .jpeg,
.png), and its label in a .cls member or in the field "label" of a .json member; without one it is unlabelled.

Nothing is ever extracted. Names are only compared and shown, only plain files are read, and neither memory nor time
depends on the numbers in a header. Python's tarfile parses the blocks of 512 bytes. Extended headers are read here,
because tarfile reads them at any size, in some versions in quadratic time, and keeps all members in memory.
"""

import json
import reprlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files import open_regular
from meanteacher.files.limits import MAX_BYTES

MAX_CLASSES = 100_000

_BLOCK = tarfile.BLOCKSIZE
_MAX_EXTENDED_BYTES = 1 << 16
"""Size of a header that holds a long name."""
_MAX_LABEL_BYTES = 1 << 20
_IMAGES = ("jpg", "jpeg", "png")
_SIGNATURES = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n")
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
"""Members that describe the one that follows."""
_NOT_FILES = {
    **dict.fromkeys((tarfile.LNKTYPE, tarfile.SYMTYPE), "a link"),
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "a device"),
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: "a folder",
}


class Example(NamedTuple):
    """An image of a shard, or what takes its place."""

    name: str
    offset: int
    size: int
    label: int | str
    """A number or a name; `UNLABELLED` for none."""
    problem: str
    """Why it cannot be used; empty if it can."""


class _Member(NamedTuple):
    name: str
    offset: int
    size: int
    start: bytes
    problem: str
    """Why it is not read; empty for a plain file."""


def examples(shard: Path) -> Iterator[Example]:
    """The examples of a shard, in their order, from its headers and labels. No image is read.

    An example has a problem if it has no image or more than one, if its image is empty, too large or neither JPEG nor
    PNG by its first bytes, if its label cannot be read, or if one of its members is not a plain file. An InputError is
    raised for a file that is not a complete tar file.
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
    described: dict[str, bytes] = {}  # path and size of the next member, from extended headers
    while True:
        file.seek(at)
        block = file.read(2 * _BLOCK)
        header, offset = block[:_BLOCK], at + _BLOCK
        if len(header) == _BLOCK and not any(header):
            return
        try:
            if len(header) < _BLOCK:
                raise ValueError("its end is missing")
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            is_extended = info.type in _EXTENDED
            if is_extended:
                described |= _described(info, file, offset)
            elif "size" in described:
                info.size = int(described["size"])
            if info.type in _NOT_FILES:
                info.size = 0  # whatever the header says, no content follows
            if info.size < 0:
                raise ValueError("a negative size")
            if offset + info.size > n_bytes:
                raise ValueError("its end is missing")
            if info.type == tarfile.GNUTYPE_SPARSE:
                raise ValueError("a sparse file, which is not supported")
        except (ValueError, tarfile.TarError) as error:
            raise InputError(
                f"{shard} is not a complete tar file: {error}, at byte {at:,} of {n_bytes:,}. Copy or pack it again. "
                "Compressed tar files are not supported: an image in one cannot be read without all that precede it."
            ) from error
        if not is_extended:
            if not info.isdir():
                name = _text(described["path"]) if "path" in described else info.name
                problem = "" if info.isreg() else _NOT_FILES.get(info.type, "not a plain file")
                yield _Member(name, offset, info.size, block[_BLOCK:], problem)
            described = {}
        at = offset + -(-info.size // _BLOCK) * _BLOCK


def _described(info: tarfile.TarInfo, file: IO[bytes], offset: int) -> dict[str, bytes]:
    """The path and the size of the next member, as far as the extended header has them."""
    if info.type == tarfile.GNUTYPE_LONGLINK:
        return {}
    if info.size > _MAX_EXTENDED_BYTES:
        raise ValueError(f"a header of {info.size:,} bytes")
    file.seek(offset)
    content = file.read(max(0, info.size))
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content}
    described = {key: value for key, value in _records(content).items() if key in ("path", "size")}
    if info.type == tarfile.XGLTYPE and described:
        raise ValueError("one name or size for all members")
    return described


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
