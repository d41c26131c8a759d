"""Small files that once crashed a reader, or took gigabytes or minutes: each is one sentence now, at once."""

import io
import logging
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import torch as safetensors
from torch import nn

from meanteacher.core import InputError, Problem
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.encoded import BrokenImageError, EncodedDataset
from meanteacher.data.official import verified
from meanteacher.data.shards import Shards
from meanteacher.data.split import Split, read_label_list
from meanteacher.data.svhn import Svhn
from meanteacher.files import images as decoding
from meanteacher.files.images import UnreadableError, as_jpeg_or_png, decode, header
from meanteacher.files.typed import read_json
from meanteacher.models import FastNetSpec
from meanteacher.photos.folder.tables import read_labels, read_npz
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.views import PerImage
from photo_support import picture, save
from shard_support import InMemory
from support import at_most, forbid

MB = 1 << 20


# --- benchmarks -------------------------------------------------------------------------------------------------------


def test_forged_files_of_a_benchmark_are_neither_unpickled_nor_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """scipy's reader can crash the process and pickle runs what a file says, so neither is called."""
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("parsed"))
    for name in ("test_32x32.mat", "train_32x32.mat", "cifar-10-python.tar.gz"):
        (tmp_path / name).write_bytes(b"\x80\x02Nr\xff\xff\xff\x0f.")
    for source in (Svhn(), Cifar10()):
        with at_most(5 * MB), pytest.raises(InputError, match="is not the official file"):
            source.load(tmp_path)


@pytest.mark.parametrize("source", [Svhn(), Cifar10()], ids=lambda source: type(source).__name__)
def test_arrays_of_a_benchmark_that_unpack_without_end_are_refused(tmp_path: Path, source: Svhn | Cifar10):
    large = np.zeros((30_000, 32, 32, 3), np.uint8)
    np.savez_compressed(tmp_path / f"{type(source).__name__.lower()}.npz", train_images=large, test_images=large)
    with at_most(5 * MB), pytest.raises(InputError, match="unpack to"):
        source.load(tmp_path)


# --- photos and labels ------------------------------------------------------------------------------------------------


def test_an_npz_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path: Path):
    path = tmp_path / "photos.npz"
    np.savez_compressed(path, images=np.zeros((9, 3000, 3000), np.uint8), labels=np.arange(9))
    assert path.stat().st_size < 150_000
    with at_most(20 * MB), pytest.raises(InputError, match="bytes unpack to 81,"):
        read_npz(path)


@pytest.mark.parametrize("name", ["images", "labels", "class_names"])
def test_a_member_of_an_npz_that_is_no_array_is_named(tmp_path: Path, name: str):
    path = tmp_path / "photos.npz"
    np.savez(path, **{"images": np.zeros((2, 4, 4), np.uint8), name: np.zeros((2, 4, 4), np.uint8)})
    with zipfile.ZipFile(path) as archive:
        kept = {member: archive.read(member) for member in archive.namelist() if member != f"{name}.npy"}
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in kept.items():
            archive.writestr(member, content)
        archive.writestr(f"{name}.npy", "no array")
    with pytest.raises(InputError, match=f"{name} is no array|cannot be read"):
        read_npz(path)


@pytest.mark.parametrize("name", ["labels", "names", "class_names"])
def test_text_in_an_npz_that_no_file_can_hold_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "photos.npz"
    np.savez(path, images=np.zeros((2, 4, 4), np.uint8), **{name: np.array(["\ud800", "b"])})
    with pytest.raises(InputError, match=f"{name} contains text that is not Unicode"):
        read_npz(path)


@pytest.mark.parametrize(
    "content",
    [
        b"path," + b"x" * 200_000 + b"\na,b\n",
        bytes(range(256)) * 400,
        bytes(set(range(256)) - {10, 13}) * 400,
        b'path,"' + b"y" * 200_000,
    ],
    ids=["long", "binary", "binary without lines", "quote"],
)
def test_what_is_no_labels_file_is_not_repeated_in_full(tmp_path: Path, content: bytes):
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_labels(tmp_path / "labels.csv")
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def test_a_labels_file_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meanteacher.photos.folder.tables._MAX_ROWS", 3, raising=False)
    (tmp_path / "labels.csv").write_text("path,label\n" + "a,b\n" * 3)
    with pytest.raises(InputError, match="more than 3 rows"):
        read_labels(tmp_path / "labels.csv")


def reason(path: Path) -> str:
    with pytest.raises(UnreadableError) as caught:
        decode(path, 8)
    return str(caught.value)


def test_an_image_in_digits_is_read_whatever_its_comments_and_refused_where_it_is_long(tmp_path: Path):
    pixels = " ".join(str(value) for value in range(48))
    plain, commented, long = (tmp_path / f"{name}.ppm" for name in ("plain", "commented", "long"))
    plain.write_text(f"P3\n4 4\n255\n{pixels}\n")
    commented.write_text("P3 # a\n4 4\n# b\n255\n" + pixels.replace(" ", " # c\n") + "\n")
    long.write_bytes(b"P3\n4 4\n255\n" + b"#\n" * 5_000_000 + pixels.encode())
    assert np.array_equal(decode(commented, 4), decode(plain, 4))
    assert reason(long).startswith("too large: ")
    assert header(long)[:2] == (4, 4)


def test_a_comment_reaches_pillow_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pillow copies what remains of a block for every comment in it."""
    seen = []
    real = decoding.PpmImageFile.__init__

    def opened(self: object, file: io.BytesIO) -> None:
        seen.append(file.getvalue())
        real(self, file)

    monkeypatch.setattr(decoding.PpmImageFile, "__init__", opened)
    (tmp_path / "a.ppm").write_bytes(b"P3\n1 1\n255\n" + b"#x\r\n" * 1000 + b"1 2 3\n")
    assert decode(tmp_path / "a.ppm", 1).flatten().tolist() == [1, 2, 3]
    assert b"#" not in seen[0]


def progressive(width: int, height: int, n_scans: int) -> bytes:
    """A JPEG that says it has this size, and whose last scan is repeated."""
    file = io.BytesIO()
    picture(0, 64, 64).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    frame = data.index(b"\xff\xc2")
    data = data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]
    last = data.rindex(b"\xff\xda")
    return data[:last] + n_scans * data[last:-2] + data[-2:]


def test_a_jpeg_that_passes_over_its_pixels_disproportionately_often_is_refused(tmp_path: Path):
    path = tmp_path / "a.jpg"
    path.write_bytes(progressive(3900, 3900, 200))
    assert re.match(r"too large: 2\d\d scans of 3900x3900 pixels", reason(path))
    with pytest.raises(UnreadableError, match="too large"):
        as_jpeg_or_png(path)
    path.write_bytes(progressive(64, 64, 3))
    assert decode(path, 8).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [(progressive(3900, 3900, 200), "scans"), (progressive(6000, 6000, 1), "pixels in"), (b"arithmetic", "damaged")],
    ids=["scans", "pixels", "coding"],
)
def test_images_that_are_decoded_on_demand_have_the_same_limits(content: bytes, words: str):
    import torch

    if content == b"arithmetic":
        file = io.BytesIO()
        picture(0, 64, 64).save(file, "JPEG")
        content = file.getvalue().replace(b"\xff\xc0", b"\xff\xc9", 1)
    dataset = EncodedDataset(InMemory([content]), torch.zeros(1, dtype=torch.int64), ("a",), resize=8, size=8)
    with pytest.raises((BrokenImageError, InputError), match=words):
        dataset.centres(torch.tensor([0]))


def run_length_bmp(width: int, height: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    pixels = b"\x00\x00" * 10 + b"\x00\x01"
    start = 14 + len(info) + 1024
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + info + bytes(1024) + pixels


def test_a_run_length_bmp_is_read_where_it_is_small_and_refused_where_it_is_large(tmp_path: Path):
    small, large = tmp_path / "small.bmp", tmp_path / "large.bmp"
    small.write_bytes(run_length_bmp(10, 10))
    large.write_bytes(run_length_bmp(3000, 3000))
    with pytest.raises(UnreadableError, match=r"truncated|damaged"):
        decode(small, 8)
    assert reason(large) == "too large: 3000x3000 pixels of a run-length BMP"


def test_pixels_out_of_nothing_are_refused(tmp_path: Path):
    path = tmp_path / "blank.png"
    rows = zlib.compress(bytes(5001) * 5000, 9)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 5000, 5000, 8, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks)
    )
    assert re.fullmatch(r"too large: 5000x5000 pixels in \d\d,\d\d\d bytes", reason(path))


def test_an_image_of_numbers_becomes_grey_without_a_copy_of_all(tmp_path: Path):
    path = tmp_path / "numbers.tif"
    Image.fromarray(np.linspace(0, 1, 3000 * 3000, dtype=np.float32).reshape(3000, 3000)).save(path)
    with at_most(36 * MB + 36 * MB):  # the file itself, and strips
        grey = decode(path, 8)
    assert np.all(np.diff(grey[:, 0, 0].astype(int)) > 0)


def test_a_field_of_a_tiff_with_too_many_values_is_refused(tmp_path: Path):
    path = tmp_path / "a.tif"
    fields = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 50_000_000, 8)]
    entries = b"".join(struct.pack("<HHII", *field) for field in fields)
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(fields)) + entries + bytes(100))
    assert reason(path) == "too large: 50,000,000 values in one field"
    with pytest.raises(UnreadableError, match="too large"):
        header(path)


def test_libtiff_says_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "a.tif"
    picture(0, 64, 64).save(path, compression="tiff_lzw")
    data = bytearray(path.read_bytes())
    for at in range(200, len(data) - 300, 7):
        data[at] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(UnreadableError):
        decode(path, 8)
    assert capfd.readouterr().err == ""
    # Outside of pytest, a log that nobody handles is printed.
    assert logging.getLogger("PIL.TiffImagePlugin").handlers


def test_an_image_that_pillow_decodes_in_python_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(tmp_path / "a.png")
    monkeypatch.setattr(decoding, "MAX_SECONDS", -1.0)
    assert reason(path) == "takes too long"


# --- files that are no files ------------------------------------------------------------------------------------------


def model(folder: Path) -> Path:
    spec = FastNetSpec(width=0.125)
    network = spec.build(Problem(2, 1, (3, 16, 16))).eval()
    parts = {"spec": spec, "normaliser": PerImage()}
    return Classifier(network, PerImage().fit(None), ("a", "b"), 16, 1.0, {}, **parts).save(folder / "model")


def _weights(path: Path) -> None:
    folder = model(path.parent)
    (folder / "weights.safetensors").unlink()
    (folder / "weights.safetensors").symlink_to(path)
    load(folder)


def _manifest(path: Path) -> None:
    folder = model(path.parent)
    (folder / "model.json").unlink()
    (folder / "model.json").symlink_to(path)
    load(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "image": lambda path: decode(path, 8),
    "image's header": header,
    "labels": read_labels,
    "arrays": read_npz,
    "json": lambda path: read_json(path, dict[str, object]),
    "weights": _weights,
    "manifest": _manifest,
    "split": Split.load,
    "label list": lambda path: read_label_list(path, names=(), labels=None, class_names=()),
    "shard": lambda path: Shards(train=path.name, test=path.name).load(path.parent),
    "official file": lambda path: verified(path, "", arrays=path).__enter__(),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_or_a_device_is_no_file(tmp_path: Path, reader: str, kind: str):
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises((InputError, UnreadableError, OSError)):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_may_not_be_read_is_said_to_be_one(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    forbid(monkeypatch, "file")
    with pytest.raises((InputError, UnreadableError), match=r"(?i)permission denied|no readable"):
        READERS[reader](path)


def test_weights_that_are_finite_and_overflow_give_no_prediction(tmp_path: Path):
    classifier = load(model(tmp_path))
    for module in classifier.network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data.fill_(3e38)
    again = Path(classifier.save(tmp_path / "large"))
    assert all(bool(t.isfinite().all()) for t in safetensors.load_file(again / "weights.safetensors").values())
    save(tmp_path / "photos" / "a.png", width=16, height=16)
    with pytest.raises(InputError, match="probabilities are not finite"):
        load(again).predict(tmp_path / "photos", out=tmp_path / "predictions.csv")
    assert not (tmp_path / "predictions.csv").exists()
