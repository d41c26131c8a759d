"""One image file as a square of pixels, safely and fast."""

import errno
import os
import struct
from io import BytesIO
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

Box = tuple[float, float, float, float]
MAX_PIXELS = 100_000_000
"""An image with more is refused by its header: a file of some kilobytes can hold more pixels than fit in memory."""

FILTER = Image.Resampling.BILINEAR
"""Pillow widens it where an image becomes smaller: each pixel is an average of what it covers."""
REDUCING_GAP = 2.0
"""Cheaper methods reduce an image to no less than this many times the final size; the filter does the rest."""
BACKGROUND = "white"
"""Replaces transparent pixels."""

_MAX_BYTES = 1 << 30
_HEAD_BYTES = 1 << 16

# By the first bytes, because extensions are often wrong.
_KINDS: tuple[tuple[tuple[bytes, ...], type[ImageFile.ImageFile]], ...] = (
    ((b"\x89PNG\r\n\x1a\n",), PngImageFile),
    ((b"GIF87a", b"GIF89a"), GifImageFile),
    ((b"BM",), BmpImageFile),
    ((b"RIFF",), WebPImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf"), PpmImageFile),
)
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAP_SIDES = (5, 6, 7, 8)
"""Orientations under which width and height are exchanged."""


class UnreadableError(Exception):
    """An image that cannot be read. The message is a short reason, to be shown after the file's name."""

    def __init__(self, reason: str, *, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting
        """Whether the reason is the content: if not, the same file may be readable later."""


def decode(source: Path | bytes | Image.Image, size: int) -> NDArray[np.uint8]:
    """The whole image squeezed into [size, size, 3]: RGB, upright, over white where it is transparent.

    The source is a file, or the content of one. A PIL image gives the same as its file, but for rounding where a JPEG
    is decoded at a reduced size.

    Raises:
        UnreadableError: says why in a few words.
    """
    data = _read(source) if isinstance(source, Path) else source if isinstance(source, bytes) else b""
    try:
        if data.startswith(START):
            image, orientation = _decode_jpeg(data, size)
        else:
            opened = source if isinstance(source, Image.Image) else _open(BytesIO(data), data)
            image, orientation = _decode_other(opened, size)
        # Transposed after resizing, when there are fewer pixels.
        pixels = _upright_rgb(image, orientation).tobytes()
    except UnreadableError:
        raise
    # A damaged file makes decoders fail in every way there is.
    except Exception as error:
        raise UnreadableError(_reason(error, data)) from error
    return np.frombuffer(pixels, np.uint8).reshape(size, size, 3)


def as_jpeg_or_png(path: Path) -> tuple[bytes, str]:
    """The image as encoded bytes, and "jpg" or "png": its own bytes if it is one of them, else a PNG of its pixels.

    The pixels of a PNG made here are upright, and over white where they were transparent. Of other files only the
    header is checked.

    Raises:
        UnreadableError: says why in a few words.
    """
    data = _read(path)
    try:
        if data.startswith(START):
            head = read_head(data)
            _check_pixels(head.width, head.height)
            return data, "jpg"
        opened = _open(BytesIO(data), data)
        _check_pixels(*opened.size)
        if isinstance(opened, PngImageFile):
            return data, "png"
        file = BytesIO()
        opened.load()
        _upright_rgb(_plain(opened), _orientation(opened)).save(file, "PNG")
    except UnreadableError:
        raise
    except Exception as error:
        raise UnreadableError(_reason(error, data)) from error
    return file.getvalue(), "png"


def header(path: Path) -> tuple[int, int, str]:
    """Width and height as displayed, and Pillow's name of the mode. Decodes nothing, so the image may have any size.

    Raises:
        UnreadableError: says why in a few words.
    """
    data = _read(path, most=_HEAD_BYTES)
    try:
        if data.startswith(START):
            try:
                head = read_head(data)
            except EOFError:
                head = read_head(_read(path))
            size, mode, orientation = (head.width, head.height), head.mode, head.orientation
        else:
            with path.open("rb") as file:
                image = _open(file, data)
                size, mode, orientation = image.size, image.mode, _orientation(image)
    except UnreadableError:
        raise
    except FileNotFoundError as error:
        raise UnreadableError("gone", lasting=False) from error
    except Exception as error:
        raise UnreadableError(_reason(error, data)) from error
    width, height = reversed(size) if orientation in _SWAP_SIDES else size
    return width, height, mode


def resize_to_square(image: Image.Image, size: int, box: Box | None = None) -> Image.Image:
    """The whole image (or the box of it) in a square, each pixel an average of what it covers."""
    if image.size == (size, size):
        return image
    return image.resize((size, size), FILTER, box, reducing_gap=REDUCING_GAP)


def _upright_rgb(image: Image.Image, orientation: int) -> Image.Image:
    """From L, RGB or RGBA."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, BACKGROUND), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image if orientation == 1 else image.transpose(_TRANSPOSES[orientation])


def _read(path: Path, *, most: int = -1) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes > _MAX_BYTES and most < 0:
                raise UnreadableError(f"too large: {n_bytes / 1e9:.1f} GB")
            data = file.read(most)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            reason = "a broken link" if path.is_symlink() else "gone"
        else:
            reason = (error.strerror or type(error).__name__).lower()
        raise UnreadableError(reason, lasting=False) from error
    if not data:
        raise UnreadableError("empty")
    return data


def _decode_jpeg(data: bytes, size: int) -> tuple[Image.Image, int]:
    head = read_head(data)
    _check_pixels(head.width, head.height)
    image, box = read_pixels(data, head, least=int(REDUCING_GAP * size))
    return resize_to_square(image, size, box), head.orientation


def _decode_other(image: Image.Image, size: int) -> tuple[Image.Image, int]:
    _check_pixels(*image.size)
    image.load()
    # Some files have their EXIF data after the pixels.
    return resize_to_square(_plain(image), size), _orientation(image)


def _open(file: IO[bytes], start: bytes) -> ImageFile.ImageFile:
    for starts, kind in _KINDS:
        if start.startswith(starts):
            return kind(file)
    raise UnreadableError("not an image")


def _orientation(image: Image.Image) -> int:
    # A TIFF file has none here: Pillow transposes it by itself.
    return read_orientation(image.info.get("exif", b""))


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise UnreadableError(f"too large: {width}x{height} pixels")


def _plain(image: Image.Image) -> Image.Image:
    """The image as L, RGB or RGBA: the modes whose pixels can be averaged."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        return _from_numbers(np.asarray(image))
    mode = "RGBA" if image.has_transparency_data else "L" if image.mode in ("L", "1") else "RGB"
    try:
        return image if image.mode == mode else image.convert(mode)
    except ValueError as error:
        raise UnreadableError(f"unsupported colour mode: {image.mode}") from error


def _from_numbers(values: NDArray[np.number]) -> Image.Image:
    """Grey from numbers whose white is not in the header: the smallest common white that no number exceeds."""
    common = (1, 255, 65535) if values.dtype.kind == "f" else (65535,)
    numbers = np.nan_to_num(values, posinf=0, neginf=0).clip(0)
    most = float(numbers.max())
    white = next((white for white in common if most <= white), most)
    return Image.fromarray((numbers * (255 / white) + 0.5).astype(np.uint8))


def _reason(error: Exception, data: bytes) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return "too large"
    # Pillow reports the end of the data in several ways.
    if isinstance(error, EOFError) or isinstance(error.__cause__, IndexError | struct.error | EOFError):
        return "truncated"
    if "truncated" in str(error) or "not enough image data" in str(error) or _refers_beyond_its_end(data):
        return "truncated"
    return "damaged"


def _refers_beyond_its_end(data: bytes) -> bool:
    """Whether a WebP or TIFF file names a position beyond its own end."""
    if data.startswith(b"RIFF"):
        return 8 + int.from_bytes(data[4:8], "little") > len(data)
    if data.startswith(b"II*\0"):
        return int.from_bytes(data[4:8], "little") >= len(data)
    return data.startswith(b"MM\0*") and int.from_bytes(data[4:8], "big") >= len(data)


# The JPEG header is read by hand because Pillow's own reader costs 10 to 50 % of a decoding, and warns about damaged
# EXIF data from worker threads: docs/experiments/jpeg-header.md.
START = b"\xff\xd8"
_STAND_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
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
            return Head(width, height, mode, orientation)
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if marker in (_END, _SCAN) or length < 2:
                raise ValueError("no frame before the pixels")
            if marker == _EXIF and data.startswith(b"Exif\0\0", at + 4):
                orientation = read_orientation(data[at + 4 : at + 2 + length])
            at += 2 + length


def read_pixels(data: bytes, head: Head, *, least: int) -> tuple[Image.Image, Box]:
    """The image as L or RGB at full size, a half, a quarter or an eighth, and the box of it that has pixels.

    JPEG decodes at the smaller sizes in a fraction of the time. Neither side becomes shorter than `least`.

    Raises:
        ValueError: the data are damaged, or not complete.
    """
    scale = 1
    while scale < 8 and min(head.width, head.height) >= 2 * scale * least:
        scale *= 2
    size = -(-head.width // scale), -(-head.height // scale)
    # CMYK is stored inverted by the one program that writes it.
    stored = "CMYK;I" if head.mode == "CMYK" else head.mode
    image = Image.frombytes(head.mode, size, data, "jpeg", stored, "", scale, 0)
    if head.mode == "CMYK":
        image = image.convert("RGB")
    return image, (0, 0, head.width / scale, head.height / scale)


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
