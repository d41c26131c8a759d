"""The header of a JPEG: the size of its pixels, and the orientation that shows them upright.

It is read by hand because Pillow's own reader costs 10 to 50 % of a decoding, and warns about damaged EXIF data from
worker threads: docs/experiments/jpeg-header.md.
"""

from typing import Literal, NamedTuple

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
    """Read the segments up to the frame's; an EOFError if the data end before, a ValueError if none can be decoded."""
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
    """The orientation, 1 to 8, in EXIF data; 1 (upright) if there is none, or an invalid one.

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
