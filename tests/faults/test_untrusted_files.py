"""Small files that once crashed a reader, or took gigabytes or minutes: each is one sentence now, at once."""

import codecs
import gzip
import io
import logging
import os
import pickle
import re
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import torch as safetensors
from scipy.io import savemat
from torch import nn

from meanteacher.core import InputError, Problem
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.encoded import BrokenImageError, EncodedDataset
from meanteacher.data.shards import Shards
from meanteacher.data.split import Split, read_label_list
from meanteacher.data.svhn import Svhn
from meanteacher.files.fields import read_json
from meanteacher.models import FastNetSpec
from meanteacher.photos.folder import decode as decoding
from meanteacher.photos.folder.decode import UnreadableError, as_jpeg_or_png, decode, header
from meanteacher.photos.folder.tables import read_labels, read_npz
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.views import PerImage
from photo_support import picture, save
from support import at_most, forbid

MB = 1 << 20


# --- benchmarks -------------------------------------------------------------------------------------------------------


def matlab(folder: Path, part: str = "train", **options: object) -> Path:
    """An official file of two digits."""
    path = folder / f"{part}_32x32.mat"
    content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    savemat(path, content, **options)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_what_scipy_writes_is_read(tmp_path: Path, compressed: bool):
    matlab(tmp_path, "train", do_compression=compressed)
    matlab(tmp_path, "test", do_compression=compressed)
    assert Svhn().load(tmp_path).train.labels.tolist() == [1, 0]


def test_labels_in_another_type_of_whole_numbers_are_read(tmp_path: Path):
    matlab(tmp_path, "test")
    # MATLAB stores numbers in the smallest type that holds them, whatever the type of the variable.
    path = matlab(tmp_path)
    data = path.read_bytes()
    flags = data.index(struct.pack("<II", 6, 8), data.index(b"y\0\0\0") - 40)
    path.write_bytes(data[: flags + 8] + b"\x0c" + data[flags + 9 :])  # int32
    assert Svhn().load(tmp_path).train.labels.tolist() == [1, 0]


def test_complex_numbers_in_a_matlab_file_do_not_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They crash scipy's reader, depending on what follows: it is not even imported."""
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"y": np.array([[1], [10]], np.uint8)})
    data = bytearray(path.read_bytes())
    data[128 + 8 + 8 + 1] |= 0x08  # it has an imaginary part, it says, but nothing follows
    path.write_bytes(data)
    matlab(tmp_path, "test")
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="y is no array of real numbers"):
        Svhn().load(tmp_path)


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(shape: tuple[int, ...], numbers: bytes, name: bytes = b"X") -> bytes:
    dimensions = struct.pack(f"<{len(shape)}i", *shape)
    return element(14, element(6, bytes([9, *[0] * 7])) + element(5, dimensions) + element(1, name) + numbers)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (matrix((32, 32, 3, 700_000), struct.pack("<II", 2, 2_150_400_000)), "not all there"),
        (matrix((32, 32, 3, -1), element(2, b"")), "shape of X is damaged"),
        (matrix((32, 32, 3, 1), element(2, bytes(3071))), "not all there"),
        (matrix((1,) * 100, element(2, b"1")), "damaged variable"),
        (struct.pack("<II", 15, 20) + zlib.compress(b"")[:8] + bytes(12), "its end is missing|damaged"),
        (b"\0" * 400, "missing"),
    ],
    ids=["huge", "negative", "short", "axes", "packed", "zeros"],
)
def test_a_damaged_matlab_file_takes_no_memory(tmp_path: Path, content: bytes, words: str):
    matlab(tmp_path, "train")
    (tmp_path / "test_32x32.mat").write_bytes(bytes(124) + b"\x00\x01IM" + content)
    with at_most(5 * MB), pytest.raises(InputError, match=words):
        Svhn().load(tmp_path)


def test_compressed_numbers_of_a_matlab_file_are_not_unpacked_without_end(tmp_path: Path):
    numbers = matrix((32, 32, 3, 20_000), element(2, bytes(61_440_000)))
    packed = zlib.compress(numbers)
    assert len(packed) < 100_000
    matlab(tmp_path, "train")
    (tmp_path / "test_32x32.mat").write_bytes(bytes(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed)
    with at_most(10 * MB), pytest.raises(InputError, match="not all there"):
        Svhn().load(tmp_path)


class Punycode:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return codecs.encode, ("x" * 100, "punycode")


def nested_key() -> bytes:
    """A dict whose key is a tuple of two tuples of two tuples …, sixty deep: its hash takes for ever."""
    deep = b"".join(b"q%ch%c\x86" % (k, k) for k in range(1, 60))
    return b"\x80\x02})" + deep + b"K\x01s."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x0f.", "NoneType"),
        (nested_key(), "tuple where no official batch has one"),
        (b"\x80\x02" + b"N0" * 3, "instruction POP"),
        (b"\x80\x02(" + b"N" * 5000 + b"t.", "more instructions"),
        (b"\x80\x02R.", "more than there is"),
        (b"\x80\x02a.", "more than there is"),
        (b"\x80\x02h\x05.", "KeyError"),
        (b"\x80\x02}" + b"X\xff\xff\xff\x7fa", "cannot be read"),
    ],
    ids=["memo", "key", "pop", "long", "reduce", "append", "get", "length"],
)
def test_a_crafted_batch_of_cifar_takes_neither_memory_nor_time(
    tmp_path: Path, content: bytes, words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("meanteacher.data.cifar10._MAX_INSTRUCTIONS", 1000, raising=False)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(content)
    with at_most(20 * MB), pytest.raises(InputError, match=words):
        Cifar10().load(tmp_path)


def test_a_batch_of_cifar_chooses_no_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some take the square of the time for a longer text."""
    monkeypatch.setattr("encodings.punycode.punycode_encode", lambda *_: pytest.fail("the codec is used"))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(pickle.dumps({b"data": Punycode()}, protocol=2))
    with pytest.raises(InputError, match="codec"):
        Cifar10().load(tmp_path)


def test_a_sparse_file_in_the_archive_of_cifar_is_not_unpacked(tmp_path: Path):
    sparse = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 0
    header_ = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header_[386 : 386 + 24] = b"00000000000\0" * 2
    header_[483:495] = b"20000000000\0"  # two gigabytes, all of them a hole
    header_[148:156] = b" " * 8
    header_[148:156] = b"%06o\0 " % sum(header_)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(gzip.compress(bytes(header_) + bytes(1024)))
    with pytest.raises(InputError, match="not CIFAR-10's official archive"):
        Cifar10().load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]


def test_an_archive_of_cifar_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meanteacher.data.cifar10._MAX_UNPACKED", MB, raising=False)
    large = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    large.size = 3 * MB
    packed = gzip.compress(large.tobuf() + bytes(3 * MB + 1024))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(packed)
    with pytest.raises(InputError, match="more than"):
        Cifar10().load(tmp_path)


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


class OneFile:
    names, sizes = ("a.jpg",), (1,)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, position: int) -> bytes:
        return self.content

    def where(self, position: int) -> str:
        return "a.jpg"


@pytest.mark.parametrize(
    ("content", "words"),
    [(progressive(3900, 3900, 200), "scans"), (progressive(6000, 6000, 1), "pixels in"), (b"arithmetic", "neither")],
    ids=["scans", "pixels", "coding"],
)
def test_images_that_are_decoded_on_demand_have_the_same_limits(content: bytes, words: str):
    import torch

    if content == b"arithmetic":
        file = io.BytesIO()
        picture(0, 64, 64).save(file, "JPEG")
        content = file.getvalue().replace(b"\xff\xc0", b"\xff\xc9", 1)
    dataset = EncodedDataset(OneFile(content), torch.zeros(1, dtype=torch.int64), ("a",), resize=8, size=8)
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
    monkeypatch.setattr(decoding, "_SECONDS", -1.0, raising=False)
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
    "json": read_json,
    "weights": _weights,
    "manifest": _manifest,
    "split": Split.load,
    "label list": lambda path: read_label_list(path, names=(), labels=None, class_names=()),
    "shard": lambda path: Shards(train=path.name, test=path.name).load(path.parent),
    "matlab": lambda path: (
        matlab(path.parent),
        path.rename(path.with_name("test_32x32.mat")),
        Svhn().load(path.parent),
    ),
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
    forbid(monkeypatch, "test_32x32.mat" if reader == "matlab" else "file")
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
    with pytest.raises(InputError, match="no finite probabilities"):
        load(again).predict(tmp_path / "photos", out=tmp_path / "predictions.csv")
    assert not (tmp_path / "predictions.csv").exists()
