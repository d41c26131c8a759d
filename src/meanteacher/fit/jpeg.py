"""What a JPEG file says before its pixels: size, colours, and which way up the camera was held.

Pillow's own reader looks at much more, and for a small image that takes as long as decoding it; and where a camera
wrote broken EXIF data, it warns. This one looks at three things and takes no offence.
"""

from typing import Literal, NamedTuple

from PIL import Image

Box = tuple[float, float, float, float]
START = b"\xff\xd8"

_STAND_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_END, _SCAN, _EXIF = 0xD9, 0xDA, 0xE1
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_ORIENTATION, _SHORT = 0x0112, 3


class Head(NamedTuple):
    """Pixels as they are stored, and the turn that shows them upright."""

    width: int
    height: int
    mode: str
    """Pillow's name of the colours."""
    orientation: int


def read_head(data: bytes) -> Head:
    """Read the segments up to the frame's.

    Raises:
        EOFError: the data end before the frame's segment does.
        ValueError: this is no JPEG that can be decoded.
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
                raise ValueError("neither 8 bits a colour nor a known number of colours")
            return Head(width, height, mode, orientation)
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if marker in (_END, _SCAN) or length < 2:
                raise ValueError("no frame before the pixels")
            if marker == _EXIF and data.startswith(b"Exif\0\0", at + 4):
                orientation = read_orientation(data[at + 4 : at + 2 + length])
            at += 2 + length


def read_pixels(data: bytes, head: Head, *, least: int) -> tuple[Image.Image, Box]:
    """The image as L or RGB, and the box of it that holds pixels: at full size, or at a half, a quarter or an eighth.

    JPEG decodes at those sizes in a fraction of the time. Neither side becomes shorter than `least` by it.

    Raises:
        ValueError: the data are damaged, or not complete.
    """
    scale = 1
    while scale < 8 and min(head.width, head.height) >= 2 * scale * least:
        scale *= 2
    size = -(-head.width // scale), -(-head.height // scale)
    # Inks are stored inverted, as the one program does that writes them.
    stored = "CMYK;I" if head.mode == "CMYK" else head.mode
    image = Image.frombytes(head.mode, size, data, "jpeg", stored, "", scale, 0)
    if head.mode == "CMYK":
        image = image.convert("RGB")
    return image, (0, 0, head.width / scale, head.height / scale)


def read_orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, in EXIF data; 1 (upright) where there is none, or none that makes sense.

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
