"""The header of a JPEG, and what EXIF data say: the orientation that shows the pixels upright, and the time.

It is read by hand because Pillow's own reader costs 10 to 50 % of a decoding, and warns about damaged EXIF data from
worker threads: docs/experiments/jpeg-header.md.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple

START = b"\xff\xd8"
_STAND_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_DECODED = (0xC0, 0xC1, 0xC2)
"""Frames with Huffman codes, which need two bits for a block of 64 pixels."""
_END, _SCAN, _EXIF = 0xD9, 0xDA, 0xE1
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_ORIENTATION, _SHORT = 0x0112, 3
_DETAILS, _TAKEN, _FRACTION, _TEXT = 0x8769, 0x9003, 0x9291, 2
"""Tags of the directory about the shot, of the time in it and of the digits after the second, and the type of text."""


class Head(NamedTuple):
    """The size of the stored pixels, and the camera's data about them."""

    width: int
    height: int
    mode: str
    """Pillow's name of the colours."""
    exif: bytes

    @property
    def orientation(self) -> int:
        return read_orientation(self.exif)


def read_head(data: bytes) -> Head:
    """Read the segments up to the frame's; an EOFError if the data end before, a ValueError if none can be decoded."""
    at, exif = len(START), b""
    while True:
        # Bytes between two segments are skipped, as every decoder does.
        at = data.find(b"\xff", at)
        if at < 0 or at + 10 > len(data):
            raise EOFError
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _STAND_ALONE:
            at += 2
        elif marker in _FRAMES:
            mode = _MODES.get(data[at + 9])
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            if data[at + 4] != 8 or mode is None or not width or not height:
                raise ValueError("not 8 bits per channel, or an unknown number of channels")
            if marker not in _DECODED:
                raise ValueError("neither baseline nor progressive: arithmetic coding, for instance, has no least size")
            return Head(width, height, mode, exif)
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if marker in (_END, _SCAN) or length < 2:
                raise ValueError("no frame before the pixels")
            if marker == _EXIF and data.startswith(b"Exif\0\0", at + 4):
                exif = data[at + 4 : at + 2 + length]
            at += 2 + length


def read_orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, in EXIF data; 1 (upright) if there is none, or an invalid one.

    >>> read_orientation(b"nonsense")
    1
    """
    tiff, order = _tiff(exif)
    for tag, kind, _, at in _entries(tiff, order, int.from_bytes(tiff[4:8], order)):
        if tag == _ORIENTATION:
            value = int.from_bytes(tiff[at : at + 2], order)
            return value if kind == _SHORT and 1 <= value <= 8 else 1
    return 1


def read_time(exif: bytes) -> float:
    """The time of the shot by the camera's clock, in seconds since 1970 without a time zone; NaN if it is unknown.

    >>> read_time(b"nonsense")
    nan
    """
    tiff, order = _tiff(exif)
    for tag, _, _, at in _entries(tiff, order, int.from_bytes(tiff[4:8], order)):
        if tag == _DETAILS:
            details = _entries(tiff, order, int.from_bytes(tiff[at : at + 4], order))
            texts = {tag: _text(tiff, order, n, at) for tag, kind, n, at in details if kind == _TEXT}
            digits = texts.get(_FRACTION, "")
            try:
                whole = datetime.strptime(texts.get(_TAKEN, ""), "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
            except ValueError:
                break
            return whole.timestamp() + (float(f"0.{digits}") if digits.isdecimal() and digits.isascii() else 0.0)
    return float("nan")


_Order = Literal["little", "big"]
_MAX_TEXT = 64


def _tiff(exif: bytes) -> tuple[bytes, _Order]:
    """The data without their prefix, and the order of bytes; nothing if they are damaged."""
    tiff = exif.removeprefix(b"Exif\0\0")
    if tiff.startswith(b"II*\0"):
        return tiff, "little"
    return (tiff, "big") if tiff.startswith(b"MM\0*") else (b"", "big")


def _entries(tiff: bytes, order: _Order, first: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag, type, count and the position of the value of each entry in the directory at `first`."""
    end = first + 2 + 12 * int.from_bytes(tiff[first : first + 2], order)
    for at in range(first + 2, min(end, len(tiff)), 12):
        tag, kind = (int.from_bytes(tiff[k : k + 2], order) for k in (at, at + 2))
        yield tag, kind, int.from_bytes(tiff[at + 4 : at + 8], order), at + 8


def _text(tiff: bytes, order: _Order, n: int, at: int) -> str:
    """A text of `n` bytes, which is in the entry itself if it is short."""
    start = at if n <= 4 else int.from_bytes(tiff[at : at + 4], order)
    return tiff[start : start + min(n, _MAX_TEXT)].split(b"\0")[0].decode("latin-1").strip()
