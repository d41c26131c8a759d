"""The limits on images: how many bytes and pixels one may have, and how much work its decoding may take.

A file of some kilobytes can ask for gigabytes of memory or for minutes. Such files are refused before they are decoded.
"""

from typing import IO, Literal

MAX_BYTES = 1 << 29
"""A larger file is not read."""
MAX_PIXELS = 100_000_000
"""An image with more is refused by its header: it would not fit in memory."""
MAX_SECONDS = 20.0
"""Processor time of a thread for one image that Pillow decodes in Python."""

_LARGE = 16_000_000
_PIXELS_PER_BYTE = 200
"""The most pixels per byte in an image of more than `_LARGE` pixels. A photo has at most ten."""
_SCANNED, _SCANNED_PER_BYTE = 400_000_000, 100
"""Pixels of all scans of a JPEG together, and how many more there may be for each byte. A progressive one has ten
scans, each of which passes over the whole image."""
_SLOW_PIXELS = 4_000_000
"""Pixels of a run-length BMP, which Pillow decodes in Python."""
_MAX_PLAIN_BYTES = 1 << 23
"""Bytes of a file with pixels in decimal digits, which Pillow decodes in Python."""
_MAX_TIFF_VALUES = 1 << 20
"""Values of one field, for instance the places of the strips: Pillow makes a Python object of each."""
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_BYTES = (1, 2, 6, 7)
"""Types of fields that stay bytes."""
_TIFF_TILE = (322, 323)
"""Tags of the width and the height of a tile, which is decoded as a whole however small the image is."""
_TIFF_SHORT = 3
_PLAIN_STARTS = (b"P1", b"P2", b"P3")
_RUN_LENGTH = (1, 2)


class TooMuchError(ValueError):
    """The image asks for more than it may. The message is a short reason that begins with "too large"."""


def check_pixels(width: int, height: int, n_bytes: int) -> None:
    """Raise a TooMuchError for more pixels than any image, or than an image of so many bytes, may have."""
    n = width * height
    if n > MAX_PIXELS:
        raise TooMuchError(f"too large: {width}x{height} pixels")
    if n > _LARGE and n > _PIXELS_PER_BYTE * n_bytes:
        raise TooMuchError(f"too large: {width}x{height} pixels in {n_bytes:,} bytes")


def check_work(file: IO[bytes]) -> None:
    """Raise a TooMuchError if decoding, except of a JPEG, takes too much time or memory. Rewinds the file."""
    start = file.read(34)
    if start.startswith(b"BM") and len(start) == 34 and start[14] >= 40 and start[30] in _RUN_LENGTH:
        width, height = (abs(int.from_bytes(start[at : at + 4], "little", signed=True)) for at in (18, 22))
        if width * height > _SLOW_PIXELS:
            raise TooMuchError(f"too large: {width}x{height} pixels of a run-length BMP")
    elif is_plain_text(start) and (n_bytes := file.seek(0, 2)) > _MAX_PLAIN_BYTES:
        raise TooMuchError(f"too large: {n_bytes:,} bytes of plain text")
    elif start.startswith(_TIFF_STARTS):
        _check_tiff(file, start)
    file.seek(0)


def check_scans(data: bytes, width: int, height: int) -> None:
    """Raise a TooMuchError for a JPEG that passes over its pixels disproportionately often."""
    # Within the pixels no byte 0xFF is followed by this marker: all of these are scans, or lie in a preview.
    n, n_pixels = data.count(b"\xff\xda"), width * height
    if n > 1 and n * n_pixels > _SCANNED + _SCANNED_PER_BYTE * len(data):
        raise TooMuchError(f"too large: {n:,} scans of {width}x{height} pixels")


def is_plain_text(start: bytes) -> bool:
    """Whether the pixels are decimal digits, and not bytes: formats P1 to P3."""
    return start.startswith(_PLAIN_STARTS)


def _check_tiff(file: IO[bytes], start: bytes) -> None:
    order: Literal["little", "big"] = "little" if start.startswith(b"II") else "big"
    # Places and counts have eight bytes in BigTIFF.
    n_count, n_entry, n_place = (8, 20, 8) if b"+" in start[:4] else (2, 12, 4)
    first = int.from_bytes(start[8:16] if n_place == 8 else start[4:8], order)
    file.seek(min(first, 1 << 62))
    n_fields = min(int.from_bytes(file.read(n_count), order), 1 << 16)
    fields = file.read(n_entry * n_fields)
    tile = dict.fromkeys(_TIFF_TILE, 1)
    for at in range(0, len(fields), n_entry):
        tag, kind = (int.from_bytes(fields[k : k + 2], order) for k in (at, at + 2))
        value = at + 4 + n_place
        n = int.from_bytes(fields[at + 4 : value], order)
        if n > _MAX_TIFF_VALUES and kind not in _TIFF_BYTES:
            raise TooMuchError(f"too large: {n:,} values in one field")
        if tag in tile:
            tile[tag] = int.from_bytes(fields[value : value + (2 if kind == _TIFF_SHORT else n_place)], order)
    width, height = tile.values()
    check_pixels(width, height, file.seek(0, 2))
