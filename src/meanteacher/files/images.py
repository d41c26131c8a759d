"""What the bytes of an image file say before it is decoded: its size, its orientation, the work that it asks for.

A file of some kilobytes can ask for gigabytes of memory or for minutes. What is disproportionate is refused here.
"""

from typing import IO, Literal, NamedTuple

MAX_PIXELS = 100_000_000
"""An image with more is refused by its header: it would not fit in memory."""

_LARGE = 16_000_000
_PIXELS_PER_BYTE = 200
"""At most, in an image of more than `_LARGE` pixels. A photo has one byte for ten pixels or more."""
_SCANNED, _SCANNED_PER_BYTE = 400_000_000, 100
"""Pixels of all scans of a JPEG together, and how many more there may be for each byte. A progressive one has ten
scans, each of which passes over the whole image."""
_SLOW_PIXELS = 4_000_000
"""In a run-length BMP, which Pillow decodes in Python."""
_MAX_PLAIN_BYTES = 1 << 23
"""Of pixels in decimal digits, which Pillow decodes in Python."""
_MAX_TIFF_VALUES = 1 << 20
"""Of one field, for instance the places of the strips: Pillow makes a Python object of each."""
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_BYTES = (1, 2, 6, 7)
"""Types of fields that stay bytes."""
_PLAIN_STARTS = (b"P1", b"P2", b"P3")
_RUN_LENGTH = (1, 2)


class TooMuchError(ValueError):
    """The image asks for more than it may. The message is a short reason that begins with "too large"."""


def check_pixels(width: int, height: int, n_bytes: int) -> None:
    """Refuse more pixels than any image, or than an image of so many bytes, may have.

    Raises:
        TooMuchError: says how many there are.
    """
    n = width * height
    if n > MAX_PIXELS:
        raise TooMuchError(f"too large: {width}x{height} pixels")
    if n > _LARGE and n > _PIXELS_PER_BYTE * n_bytes:
        raise TooMuchError(f"too large: {width}x{height} pixels in {n_bytes:,} bytes")


def check_work(file: IO[bytes]) -> None:
    """Refuse a file, other than a JPEG, whose decoding takes disproportionate time or memory. Leaves it at its start.

    Raises:
        TooMuchError: says what there is too much of.
    """
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
    """Refuse a JPEG that passes over its pixels disproportionately often.

    Raises:
        TooMuchError: says how often.
    """
    # Within the pixels no byte 0xFF is followed by this marker: all of these are scans, or lie in a preview.
    n, n_pixels = data.count(bytes([0xFF, _SCAN])), width * height
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
    for at in range(0, len(fields), n_entry):
        kind = int.from_bytes(fields[at + 2 : at + 4], order)
        n = int.from_bytes(fields[at + 4 : at + 4 + n_place], order)
        if n > _MAX_TIFF_VALUES and kind not in _TIFF_BYTES:
            raise TooMuchError(f"too large: {n:,} values in one field")


# The header of a JPEG is read by hand because Pillow's own reader costs 10 to 50 % of a decoding, and warns about
# damaged EXIF data from worker threads: docs/experiments/jpeg-header.md.
START = b"\xff\xd8"
_STAND_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_DECODED = (0xC0, 0xC1, 0xC2)
"""Frames with Huffman codes, which need two bits for a block of 64 pixels."""
_END, _SCAN, _EXIF = 0xD9, 0xDA, 0xE1
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_ORIENTATION, _SHORT = 0x0112, 3


class Head(NamedTuple):
    """The size of the stored pixels, and the orientation that shows them upright."""

    width: int
    height: int
    mode: str
    """Pillow's name of the colours."""
    orientation: int


def read_head(data: bytes) -> Head:
    """Read the segments up to the frame's.

    Raises:
        EOFError: the data end before the frame's segment does.
        ValueError: this JPEG cannot be decoded.
    """
    at, orientation = len(START), 1
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
            return Head(width, height, mode, orientation)
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if marker in (_END, _SCAN) or length < 2:
                raise ValueError("no frame before the pixels")
            if marker == _EXIF and data.startswith(b"Exif\0\0", at + 4):
                orientation = read_orientation(data[at + 4 : at + 2 + length])
            at += 2 + length


def read_orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, in EXIF data; 1 (upright) where there is none, or an invalid one.

    >>> read_orientation(b"nonsense")
    1
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order: Literal["little", "big"]
    if tiff.startswith(b"II*\0"):
        order = "little"
    elif tiff.startswith(b"MM\0*"):
        order = "big"
    else:
        return 1
    first = int.from_bytes(tiff[4:8], order)
    end = first + 2 + 12 * int.from_bytes(tiff[first : first + 2], order)
    for at in range(first + 2, min(end, len(tiff)), 12):
        tag, kind = (int.from_bytes(tiff[k : k + 2], order) for k in (at, at + 2))
        if tag == _ORIENTATION:
            value = int.from_bytes(tiff[at + 8 : at + 10], order)
            return value if kind == _SHORT and 1 <= value <= 8 else 1
    return 1
