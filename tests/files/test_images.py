"""Whatever file people have becomes an upright RGB square, or a reason in a few words."""

import contextlib
import errno
import io
import os
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps

from meanteacher.files.images import UnreadableError, as_jpeg_or_png, decode, decode_whole, header
from meanteacher.files.jpeg import read_head, read_orientation
from photo_support import picture, pixels, save
from tiff_support import tiled_tiff

LOSSLESS = ["png", "bmp", "webp", "tif", "ppm"]


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def reason(path: Path) -> str:
    with pytest.raises(UnreadableError) as caught:
        decode(path, 8)
    return str(caught.value)


def far(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "image"


@pytest.mark.parametrize("extension", LOSSLESS)
def test_an_image_of_the_right_size_keeps_every_pixel(extension: str, path: Path) -> None:
    options = {"lossless": True} if extension == "webp" else {}
    picture().save(path.with_suffix(f".{extension}"), **options)
    assert np.array_equal(decode(path.with_suffix(f".{extension}"), 8), pixels(picture()))


def heic(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    pillow_heif.from_pillow(image).save(file, quality=90, **options)
    return file.getvalue()


def test_a_photo_of_a_phone_is_read_upright_with_its_time(path: Path) -> None:
    about = Image.Exif()
    about[0x0112] = 6
    about.get_ifd(0x8769)[0x9003] = "2024:05:13 10:11:12"
    path.write_bytes(heic(picture(3, 96, 64), exif=about.tobytes()))
    # The phone stores how to turn the pixels beside the EXIF data, and whoever reads the file has to turn them once.
    upright = picture(3, 96, 64).transpose(Image.Transpose.ROTATE_270)
    assert header(path) == (64, 96, "RGB", 1715595072.0)
    assert far(decode(path, 16), pixels(upright.resize((16, 16), Image.Resampling.BILINEAR))) < 4
    assert as_jpeg_or_png(path)[1] == "png"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: data[:60], "truncated|damaged"),
        (lambda data: data[:200] + bytes(len(data) - 200), "damaged|truncated"),
        # A header that announces fewer pixels than there are.
        (lambda data: data.replace(struct.pack(">II", 96, 64), struct.pack(">II", 8, 8)), "damaged"),
        (lambda data: data.replace(struct.pack(">II", 96, 64), struct.pack(">II", 30_000, 20_000)), "too large"),
        (lambda data: data.replace(b"ftypheic", b"ftypwhat"), "not an image"),
    ],
    ids=["half", "start", "zeros", "lies", "bomb", "other"],
)
def test_a_damaged_photo_of_a_phone_has_a_reason(change: Callable[[bytes], bytes], words: str, path: Path) -> None:
    path.write_bytes(change(heic(picture(3, 96, 64))))
    assert re.match(words, reason(path))


@pytest.mark.parametrize("extension", ["NEF", "dng", "avif"])
def test_raw_data_of_a_camera_are_refused_by_their_name(extension: str, path: Path) -> None:
    # A raw file looks like the TIFF of its preview.
    picture().save(path, "TIFF")
    named = path.rename(path.with_suffix(f".{extension}"))
    assert reason(named) == f"unsupported format .{extension.lower()}"
    with pytest.raises(UnreadableError, match="unsupported format"):
        header(named)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": "4:2:0", "quality": 60}])
@pytest.mark.parametrize("size", [(16, 16), (17, 31)])
def test_a_jpeg_is_what_pillow_makes_of_it(
    mode: str, options: dict[str, object], size: tuple[int, int], path: Path
) -> None:
    path.write_bytes(encoded(picture(0, *size).convert(mode), "JPEG", **options))
    with Image.open(path) as image:
        expected = image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
        assert header(path)[:3] == (*size, image.mode)
    assert far(decode(path, 16), pixels(expected)) < 0.5


def test_a_jpeg_may_begin_with_whatever_programs_put_there(path: Path) -> None:
    data = encoded(picture(), "JPEG", icc_profile=b"p" * 70_000, comment=b"hello", xmp=b"<x/>", dpi=(72, 72))
    path.write_bytes(data)
    with Image.open(path) as image:
        assert np.array_equal(decode(path, 8), pixels(image))
    assert header(path)[:3] == (8, 8, "RGB")


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (401, 399), (8, 500)])
@pytest.mark.parametrize("extension", ["jpg", "png"])
def test_a_large_image_is_squeezed_whole_into_the_square(extension: str, size: tuple[int, int], path: Path) -> None:
    path = path.with_suffix(f".{extension}")
    picture(0, *size).save(path, quality=95, subsampling="4:4:4")
    fair = picture(0, *size).resize((16, 16), Image.Resampling.BILINEAR)
    assert far(decode(path, 16), pixels(fair)) < 1.5


def test_the_average_is_over_all_pixels(path: Path) -> None:
    stripes = np.zeros((128, 128, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(path, "PNG")
    assert np.abs(decode(path, 16).astype(int) - 127).max() <= 2


@pytest.mark.parametrize(("size", "stored"), [(32, 31), (32, 32), (16, 32), (10, 32), (8, 64), (1, 64)])
def test_a_large_jpeg_is_decoded_small_but_never_below_twice_the_square(size: int, stored: int, path: Path) -> None:
    data = encoded(picture(0, 16 * stored, 16 * stored), "JPEG")
    whole = decode_whole(data, lambda width, height: min(width, height) / (2 * size))
    assert min(whole.pixels.size) >= 2 * size
    # Half of it would be too small, or it is an eighth already.
    assert whole.pixels.width < 4 * size or whole.pixels.width == 2 * stored
    assert whole.reduced * whole.pixels.width == 16 * stored


def test_the_edge_that_a_small_decoding_rounds_up_is_cut_off() -> None:
    data = encoded(picture(0, 41, 43), "JPEG")
    whole = decode_whole(data, lambda width, height: 4.1)
    assert (whole.pixels.size, whole.size, whole.reduced) == ((11, 11), (41, 43), 4)
    fair = whole.pixels.resize((5, 5), Image.Resampling.BILINEAR, (0, 0, 41 / 4, 43 / 4))
    assert np.array_equal(whole.resized((5, 5)), pixels(fair))


def with_orientation(value: int) -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "a field before it"
    exif[0x0112] = value
    return exif.tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_turned_upright(kind: str, orientation: int, path: Path) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    picture(3, 16, 24).save(path, kind, exif=with_orientation(orientation), **options)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
    assert header(path)[:3] == (*upright.size, "RGB")
    assert far(decode(path, 16), pixels(upright.resize((16, 16), Image.Resampling.BILINEAR))) < 0.5


@pytest.mark.parametrize("n_fill", [1, 2, 3])
def test_fill_bytes_before_a_segment_hide_nothing_of_it(n_fill: int, path: Path) -> None:
    data = encoded(picture(0, 16, 24), "JPEG", exif=with_orientation(6))
    path.write_bytes(data[:2] + n_fill * b"\xff" + data[2:])
    assert header(path)[:3] == (24, 16, "RGB")


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_read_in_both_byte_orders(order: str) -> None:
    start = b"II*\0" if order == "<" else b"MM\0*"
    entries = struct.pack(f"{order}HHHIHH", 1, 0x0112, 3, 1, 6, 0)
    assert read_orientation(b"Exif\0\0" + start + struct.pack(f"{order}I", 8) + entries) == 6


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xaa" * 50,
        with_orientation(9),
        with_orientation(6)[:25],
        b"\0" * 40,
    ],
)
def test_damaged_exif_data_are_ignored(exif: bytes, path: Path) -> None:
    data = encoded(picture(), "JPEG")
    exif = b"Exif\0\0" + exif.removeprefix(b"Exif\0\0")
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif
    path.write_bytes(data[:2] + segment + data[2:])
    assert header(path)[:3] == (8, 8, "RGB")
    plain = path.with_name("plain")
    plain.write_bytes(data)
    assert np.array_equal(decode(path, 8), decode(plain, 8))


def half_clear(mode: str) -> Image.Image:
    """Black, and transparent in its right half."""
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (4, 0, 8, 8))
    return image.convert(mode)


def with_clear_colour(mode: str, clear: object) -> Image.Image:
    image = Image.new(mode, (8, 8), 0)
    image.paste(Image.new(mode, (4, 8), clear), (4, 0))
    return image


def palette(kind: str) -> bytes:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([0, 0, 0, 90, 90, 90])
    image.paste(1, (4, 0, 8, 8))
    return encoded(image, kind, transparency=1)


@pytest.mark.parametrize(
    "data",
    [
        encoded(half_clear("RGBA"), "PNG"),
        encoded(half_clear("LA"), "PNG"),
        encoded(half_clear("RGBA"), "TIFF"),
        encoded(half_clear("RGBA"), "WEBP", lossless=True),
        encoded(half_clear("PA").convert("RGBA").quantize(4), "PNG"),
        palette("PNG"),
        palette("GIF"),
        encoded(with_clear_colour("L", 7), "PNG", transparency=7),
        encoded(with_clear_colour("RGB", (7, 8, 9)), "PNG", transparency=(7, 8, 9)),
    ],
    ids=["RGBA", "LA", "TIFF", "WebP", "palette with alpha", "palette", "GIF", "grey", "colour"],
)
def test_what_is_transparent_is_white(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    image = decode(path, 8)
    assert (image[:, :4] == 0).all()
    assert (image[:, 4:] == 255).all()


def test_an_edge_of_something_transparent_takes_no_hidden_colour(path: Path) -> None:
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 33, 64))
    image.save(path, "PNG")
    small = decode(path, 16)
    assert (np.ptp(small, axis=2) <= 1).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_kind_of_pixel_becomes_rgb(mode: str, path: Path) -> None:
    grey = np.repeat(np.array([[0, 255]], np.uint8), 2, axis=0)
    wide = {"I;16": np.uint16(257), "I": np.int32(257), "F": np.float32(1 / 255)}
    image = Image.fromarray(grey * wide[mode]) if mode in wide else Image.fromarray(grey).convert(mode)
    assert image.mode == mode
    image.save(path, "TIFF")
    assert np.array_equal(decode(path, 2), np.repeat(grey[..., None], 3, axis=2))
    assert header(path)[:3] == (2, 2, mode)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_of_grey_are_scaled_to_eight(kind: str, path: Path) -> None:
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    for most in (255, 100):
        Image.fromarray(levels.clip(0, most) * 257).save(path, kind)
        assert np.array_equal(decode(path, 16)[..., 0], levels.clip(0, most))
    Image.fromarray(levels[:2, :2] * 257 + 100).save(path, kind)
    assert np.array_equal(decode(path, 2)[..., 0], levels[:2, :2])


@pytest.mark.parametrize("white", [1.0, 255.0, 65535.0, 1e6])
def test_the_white_of_numbers_is_guessed_and_what_is_no_number_is_black(white: float, path: Path) -> None:
    values = np.array([[0, white], [np.nan, white / 2]], np.float32)
    Image.fromarray(values).save(path, "TIFF")
    assert decode(path, 2)[..., 0].flatten().tolist() == pytest.approx([0, 255, 0, 127.5], abs=0.5)


def test_an_animation_gives_its_first_frame(path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(path, "GIF", save_all=True, append_images=frames[1:])
    assert (decode(path, 8) == (255, 0, 0)).all()


def test_the_content_counts_and_not_the_extension(tmp_path: Path) -> None:
    picture().save(tmp_path / "really.png")
    (tmp_path / "really.png").rename(tmp_path / "image.jpg")
    assert np.array_equal(decode(tmp_path / "image.jpg", 8), pixels(picture()))


KINDS = {
    "JPEG": encoded(picture(0, 64, 64), "JPEG"),
    "progressive": encoded(picture(0, 64, 64), "JPEG", progressive=True),
    "PNG": encoded(picture(0, 64, 64), "PNG"),
    "GIF": encoded(picture(0, 64, 64).quantize(), "GIF"),
    "BMP": encoded(picture(0, 64, 64), "BMP"),
    "WebP": encoded(picture(0, 64, 64), "WEBP"),
    "TIFF": encoded(picture(0, 64, 64), "TIFF", compression="tiff_lzw"),
    "PPM": encoded(picture(0, 64, 64), "PPM"),
}


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_cut_is_truncated(kind: str, part: float, path: Path) -> None:
    path.write_bytes(KINDS[kind][: int(part * len(KINDS[kind]))])
    assert reason(path) == "truncated"


@pytest.mark.parametrize("n_bytes", [2, 3, 20, -2])
def test_a_jpeg_is_truncated_wherever_it_is_cut(n_bytes: int, path: Path) -> None:
    path.write_bytes(KINDS["JPEG"][:n_bytes])
    assert reason(path) == "truncated"
    if n_bytes > 0:
        with pytest.raises(UnreadableError, match=r"^truncated$"):
            header(path)


@pytest.mark.parametrize("kind", KINDS)
def test_random_damage_never_does_more_than_make_an_image_unreadable(kind: str, path: Path) -> None:
    draws = np.random.default_rng(0)
    for _ in range(40):
        data = np.frombuffer(KINDS[kind], np.uint8).copy()
        # Early bytes decide more.
        at = (len(data) * draws.random(6) ** 3).astype(int)
        data[at] = draws.integers(0, 256, 6)
        path.write_bytes(data.tobytes())
        with contextlib.suppress(UnreadableError):
            assert decode(path, 8).shape == (8, 8, 3)
        with contextlib.suppress(UnreadableError):
            assert len(header(path)) == 4


@pytest.mark.parametrize(
    "data", [b"<html>404</html>", b"\x89PNG", b"RIFF", b"II*\0" + b"\0" * 8, b"\xff\xd8\xff\xd9" * 9]
)
def test_what_is_no_image_is_said_to_be_none(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    assert reason(path) in ("not an image", "damaged", "truncated")
    with pytest.raises(UnreadableError):
        header(path)


def test_the_reasons_that_a_file_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert reason(tmp_path / "page.jpg") == "gone"
    assert reason(tmp_path / "empty") == "empty"
    assert reason(tmp_path / "folder.jpg") == "is a directory"
    assert reason(tmp_path / "empty" / "image.jpg") == "gone"
    for link in ("link", "loop"):
        assert reason(tmp_path / link) == "a broken link"
    (tmp_path / "text").write_text("no image")
    assert reason(tmp_path / "text") == "not an image"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    for name in ("empty", "link"):
        assert reason(tmp_path / name) == "permission denied"


def test_only_the_content_is_a_lasting_reason(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no image")
    for name, lasting in (("text", True), ("gone", False)):
        with pytest.raises(UnreadableError) as caught:
            decode(tmp_path / name, 8)
        assert caught.value.lasting == lasting


def bombs(width: int, height: int) -> dict[str, bytes]:
    """Small files that claim to be large images."""
    found = read_head(KINDS["JPEG"])
    size = struct.pack(">HH", found.height, found.width)
    png = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = struct.pack(">I", 13) + png + struct.pack(">I", zlib.crc32(png))
    return {
        "JPEG": KINDS["JPEG"].replace(size, struct.pack(">HH", height, width), 1),
        "PNG": KINDS["PNG"][:8] + png + KINDS["PNG"][33:],
        "GIF": KINDS["GIF"][:6] + struct.pack("<HH", width, height) + KINDS["GIF"][10:],
        "BMP": KINDS["BMP"][:18] + struct.pack("<ii", width, height) + KINDS["BMP"][26:],
        "PPM": KINDS["PPM"].replace(b"64 64", b"%d %d" % (width, height)),
    }


@pytest.mark.parametrize("kind", bombs(1, 1))
@pytest.mark.parametrize("size", [(20_000, 20_000), (10_001, 10_000)])
def test_an_image_bomb_is_refused_before_it_is_decoded(
    kind: str, size: tuple[int, int], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        pytest.fail("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    monkeypatch.setattr(Image, "frombytes", load)
    path.write_bytes(bombs(*size)[kind])
    assert reason(path) == f"too large: {size[0]}x{size[1]} pixels"
    assert header(path)[:2] == size


@pytest.mark.parametrize("big", [False, True], ids=["TIFF", "BigTIFF"])
@pytest.mark.parametrize(("side", "refused"), [(16, False), (46_336, True)])
def test_the_tile_of_a_tiff_counts_as_well(side: int, refused: bool, big: bool, path: Path) -> None:
    """A 16x16 image in one tile, which the decoder holds as a whole."""
    path.write_bytes(tiled_tiff(side, big=big))
    if refused:
        assert reason(path).startswith(f"too large: {side}x{side} pixels")
    else:
        assert decode(path, 8).shape == (8, 8, 3)


def test_a_bomb_in_webp_is_refused_too(path: Path) -> None:
    canvas = struct.pack("<I", 16_382)[:3] * 2
    path.write_bytes(b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<II", 10, 0) + canvas)
    assert reason(path) == "too large"


def test_a_file_of_more_bytes_than_an_image_can_need_is_refused_unread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meanteacher.files.images.MAX_BYTES", 100)
    save(path.with_suffix(".png"))
    assert reason(path.with_suffix(".png")).startswith("too large: ")
    assert header(path.with_suffix(".png"))[:3] == (8, 8, "RGB")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "PPM"])
def test_pillows_own_limit_is_neither_needed_nor_changed(
    kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    path.write_bytes(KINDS[kind])
    assert decode(path, 8).shape == (8, 8, 3)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_name_that_is_not_utf8_opens(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg"))
    save(tmp_path / "cafe.jpg").rename(path)
    assert decode(path, 8).shape == (8, 8, 3)
