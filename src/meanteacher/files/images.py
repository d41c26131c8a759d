"""The one decoder of image files, safe and fast: a photo as a square, or any box of an image at any size.

Images are decoded in threads, which cannot be stopped. So the work that a file asks for is compared with the limits of
`files.limits` before it is decoded, and if Pillow decodes in Python, each read of the file looks at the time.
"""

import ctypes
import errno
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, _imaging
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from meanteacher.core import imported
from meanteacher.files import open_regular
from meanteacher.files.jpeg import START, Head, read_head, read_orientation, read_time
from meanteacher.files.limits import (
    MAX_BYTES,
    MAX_SECONDS,
    TooMuchError,
    check_pixels,
    check_scans,
    check_work,
    is_plain_text,
)

Box = tuple[float, float, float, float]
"""left, top, right, bottom in pixels of the whole image"""
FILTER = Image.Resampling.BILINEAR
"""Pillow widens it if an image becomes smaller: each pixel is an average of those that it covers."""
REDUCING_GAP = 2.0
"""Cheaper methods reduce an image to no less than this many times the final size; the filter does the rest."""
BACKGROUND = "white"
"""The colour under transparent pixels."""

_HEAD_BYTES = 1 << 16
_STRIP = 1 << 20
"""Pixels that become grey at a time."""

# By the first bytes, because extensions are often wrong. A further format is a row here.
_KINDS: tuple[tuple[tuple[bytes, ...], type[ImageFile.ImageFile]], ...] = (
    ((b"\x89PNG\r\n\x1a\n",), PngImageFile),
    ((b"GIF87a", b"GIF89a"), GifImageFile),
    ((b"BM",), BmpImageFile),
    ((b"RIFF",), WebPImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"Pf"), PpmImageFile),
)
_HEIC = tuple(b"ftyp" + brand for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
"""The bytes after the first four."""
_NOT_READ = "arw avif cr2 cr3 dng jp2 jxl nef nrw orf pef raf rw2 srw"
UNSUPPORTED = frozenset(_NOT_READ.split())
"""Extensions of photos that are not read: raw data of cameras, most of which look like a TIFF of the preview."""
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


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImage:
    """An image, decoded at the size of the file or at a fraction of it."""

    pixels: Image.Image
    """The image as L, RGB or RGBA: the modes whose pixels can be averaged."""
    size: tuple[int, int]
    """Width and height in the file."""
    orientation: int = 1
    """The orientation in EXIF data, 1 to 8, which `resized` ignores."""
    reduced: int = 1
    """Pixels of the file for each decoded pixel, in each direction."""

    def resized(self, size: tuple[int, int], box: Box | None = None) -> Image.Image:
        """The image, or the box of it, as RGB at another width and height. Transparent pixels become white."""
        # Crops are exact; only a whole image, which may be very large, is reduced in a cheaper way first.
        gap = REDUCING_GAP if box is None else None
        left, top, right, bottom = (edge / self.reduced for edge in box or (0, 0, *self.size))
        return _opaque(self.pixels.resize(size, FILTER, (left, top, right, bottom), reducing_gap=gap))


def decode(source: Path | bytes | Image.Image | NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The whole image squeezed into [size, size, 3]: RGB, upright, over white if it is transparent.

    An image in memory is a PIL image, [H, W, 3], or [H, W] in grey. A PIL image gives the same as its file, but for
    rounding if a JPEG is decoded at a reduced size. An UnreadableError is raised if the image cannot be read, or asks
    for more than the limits.
    """
    if isinstance(source, np.ndarray):
        source = Image.fromarray(source)
    content = read_content(source) if isinstance(source, Path) else source
    image = decode_whole(content, lambda width, height: min(width, height) / int(REDUCING_GAP * size))
    # Transposed after resizing, when there are fewer pixels.
    return np.asarray(_upright(image.resized((size, size)), image.orientation))


def decode_whole(source: bytes | Image.Image, reduction: Callable[[int, int], float]) -> DecodedImage:
    """Decode the content of a file, or an image in memory, of which boxes are shown afterwards.

    `reduction` is the factor, by width and height, by which the decoded image may be smaller than the file: a JPEG
    decodes at a half, a quarter or an eighth in a fraction of the time. An UnreadableError is raised as by `decode`.
    """
    data = source if isinstance(source, bytes) else b""
    with _explaining_failure(data):
        if data.startswith(START):
            head = _checked_head(data)
            return _decode_jpeg(data, head, reduction(head.width, head.height))
        image = _open_checked(data) if isinstance(source, bytes) else source
        image.load()
        # Some files have their EXIF data after the pixels.
        return DecodedImage(_plain(image), image.size, read_orientation(_exif(image)))


def as_jpeg_or_png(path: Path) -> tuple[bytes, str]:
    """The image as encoded bytes, and "jpg" or "png": its own bytes if it is one of them, else a PNG of its pixels.

    The pixels of a PNG made here are upright, and over white if they were transparent. Only the header of other files
    is checked. An UnreadableError is raised as by `decode`.
    """
    data = read_content(path)
    with _explaining_failure(data):
        if data.startswith(START):
            _checked_head(data)
            return data, "jpg"
        if isinstance(_open_checked(data), PngImageFile):
            return data, "png"
    image, file = decode_whole(data, lambda width, height: 1), BytesIO()
    _upright(image.resized(image.size), image.orientation).save(file, "PNG")
    return file.getvalue(), "png"


class Header(NamedTuple):
    """What an image file says about itself before its pixels."""

    width: int
    height: int
    """Both as displayed."""
    mode: str
    """Pillow's name of the mode."""
    taken: float
    """Time of the shot by the camera's clock, in seconds since 1970; NaN if it is unknown."""


def header(path: Path) -> Header:
    """The header of an image file, or an UnreadableError. Nothing is decoded."""
    data = read_content(path, most=_HEAD_BYTES)
    with _explaining_failure(data):
        if data.startswith(START):
            try:
                head = read_head(data)
            except EOFError:
                head = read_head(read_content(path))
            size, mode, exif = (head.width, head.height), head.mode, head.exif
        else:
            with open_regular(path) as file:
                whole = data if data.startswith(b"P") else read_content(path) if _is_heic(data) else None
                image = _open(file if whole is None else BytesIO(whole), data)
                size, mode, exif = image.size, image.mode, _exif(image)
    width, height = reversed(size) if read_orientation(exif) in _SWAP_SIDES else size
    return Header(width, height, mode, read_time(exif))


def read_content(path: Path, *, most: int = -1) -> bytes:
    """The bytes of an image file, or the first `most`; an UnreadableError if it is unreadable, empty or too large."""
    if path.suffix.lower().removeprefix(".") in UNSUPPORTED:
        raise UnreadableError(f"unsupported format {path.suffix.lower()}")
    try:
        with open_regular(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes > MAX_BYTES and most < 0:
                raise UnreadableError(f"too large: {n_bytes / 1e9:.1f} GB")
            data = file.read(n_bytes if most < 0 else most)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            reason = "a broken link" if path.is_symlink() else "gone"
        else:
            reason = (error.strerror or type(error).__name__).lower()
        raise UnreadableError(reason, lasting=False) from error
    if not data:
        raise UnreadableError("empty")
    return data


def _checked_head(data: bytes) -> Head:
    head = read_head(data)
    check_pixels(head.width, head.height, len(data))
    check_scans(data, head.width, head.height)
    return head


def _decode_jpeg(data: bytes, head: Head, most: float) -> DecodedImage:
    """Decode at full size, a half, a quarter or an eighth, reduced by at most this factor."""
    scale = next((scale for scale in (8, 4, 2) if scale <= most), 1)
    size = -(-head.width // scale), -(-head.height // scale)
    # CMYK is stored inverted by the one program that writes it.
    stored = "CMYK;I" if head.mode == "CMYK" else head.mode
    image = Image.frombytes(head.mode, size, data, "jpeg", stored, "", scale, 0)
    if head.mode == "CMYK":
        image = image.convert("RGB")
    return DecodedImage(image, (head.width, head.height), head.orientation, scale)


def _opaque(image: Image.Image) -> Image.Image:
    """RGB, from L, RGB or RGBA."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, BACKGROUND), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image if orientation == 1 else image.transpose(_TRANSPOSES[orientation])


class _Timed(BytesIO):
    """The content of a file, which cannot be read for longer than the limit."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._ends = time.thread_time() + MAX_SECONDS

    def read(self, n: int | None = -1, /) -> bytes:
        if time.thread_time() > self._ends:
            raise UnreadableError("takes too long")
        return super().read(n)


def _open_checked(data: bytes) -> ImageFile.ImageFile:
    """The image whose size and work are within the limits."""
    if is_plain_text(data):
        check_work(BytesIO(data))
        # Pillow takes minutes for many comments.
        data = re.sub(rb"#[^\r\n]*", b"", data)
    image = _open(_Timed(data), data)
    check_pixels(*image.size, len(data))
    return image


def _open(file: IO[bytes], start: bytes) -> ImageFile.ImageFile:
    for starts, kind in _KINDS:
        if start.startswith(starts):
            if kind is TiffImageFile:
                _silence_libtiff()
            check_work(file)
            return kind(file)
    if _is_heic(start):
        return _heic_kind()(file)
    raise UnreadableError("not an image")


def _is_heic(start: bytes) -> bool:
    return start[4:].startswith(_HEIC)


@cache
def _heic_kind() -> type[ImageFile.ImageFile]:
    """Pillow's class for photos of phones. It refuses pixels that its own header does not announce."""
    # Imported here, because few folders need it, and importing takes a while.
    heif = imported("pillow_heif", "A photo in the format HEIC", extra="photos")
    # Each image is decoded in one of our threads already.
    heif.options.DECODE_THREADS = 1
    return cast("type[ImageFile.ImageFile]", heif.HeifImageFile)


@cache
def _silence_libtiff() -> None:
    """Its messages go to standard error, and so does Pillow's log; what matters of them becomes an exception."""
    logging.getLogger(TiffImageFile.__module__).addHandler(logging.NullHandler())
    library = ctypes.CDLL(_imaging.__file__)
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        if handler := getattr(library, name, None):
            handler(ctypes.c_void_p(None))


def _exif(image: Image.Image) -> bytes:
    # A TIFF file has none here: Pillow transposes it by itself.
    exif: bytes = image.info.get("exif") or b""
    return exif


def _plain(image: Image.Image) -> Image.Image:
    """The image as L, RGB or RGBA: the modes whose pixels can be averaged."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _from_numbers(image)
    mode = "RGBA" if image.has_transparency_data else "L" if image.mode in ("L", "1") else "RGB"
    try:
        return image if image.mode == mode else image.convert(mode)
    except ValueError as error:
        raise UnreadableError(f"unsupported colour mode: {image.mode}") from error


def _from_numbers(image: Image.Image) -> Image.Image:
    """Grey from numbers whose white is not in the header: the smallest common white that no number exceeds."""
    if image.mode.startswith("I;16"):
        strips = ((values >> 8).astype(np.uint8) for values in _strips(image))
    else:
        common = (1, 255, 65535) if image.mode == "F" else (65535,)
        most = max(float(_finite(values).max()) for values in _strips(image))
        white = next((white for white in common if most <= white), most)
        strips = ((_finite(values) * (255 / white) + 0.5).astype(np.uint8) for values in _strips(image))
    return Image.fromarray(np.concatenate(list(strips)))


def _strips(image: Image.Image) -> Iterator[NDArray[Any]]:
    """The rows in parts, since a copy of all numbers would take gigabytes."""
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    finite: NDArray[Any] = np.nan_to_num(values, posinf=0, neginf=0).clip(0)
    return finite


@contextmanager
def _explaining_failure(data: bytes) -> Iterator[None]:
    """Give every failure of a decoder a reason in a few words: a damaged file makes decoders fail in many ways."""
    try:
        yield
    except UnreadableError:
        raise
    except FileNotFoundError as error:
        raise UnreadableError("gone", lasting=False) from error
    except Exception as error:
        raise UnreadableError(_reason(error, data)) from error


def _reason(error: Exception, data: bytes) -> str:
    if isinstance(error, TooMuchError):
        return str(error)
    if isinstance(error, Image.DecompressionBombError):
        return "too large"
    # Pillow reports the end of the data in several ways.
    if isinstance(error, EOFError) or isinstance(error.__cause__, IndexError | struct.error | EOFError):
        return "truncated"
    if (
        re.search("truncated|end of file", str(error), re.IGNORECASE)
        or "not enough image data" in str(error)
        or _refers_beyond_its_end(data)
    ):
        return "truncated"
    return "damaged"


def _refers_beyond_its_end(data: bytes) -> bool:
    """Whether a WebP or TIFF file names a position beyond its own end."""
    if data.startswith(b"RIFF"):
        return 8 + int.from_bytes(data[4:8], "little") > len(data)
    if data.startswith(b"II*\0"):
        return int.from_bytes(data[4:8], "little") >= len(data)
    return data.startswith(b"MM\0*") and int.from_bytes(data[4:8], "big") >= len(data)
