"""CIFAR-10 from an archive whose sha256 is known to the test, and from arrays in its place."""

import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from meanteacher.core import InputError
from meanteacher.data.cifar10 import Cifar10
from source_support import a_web_page, cut_short, emptied, random_bytes

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def as_python_2(content: object) -> bytes:
    """The official files' own dialect: every string is a byte string, every flag a number, and numpy is numpy 1."""

    class Python2Pickler(pickle._Pickler):
        dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

        def save_string(self, text: str | bytes) -> None:
            raw = text.encode("latin1") if isinstance(text, str) else text
            self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)
            self.memoize(text)

        def save_flag(self, flag: bool) -> None:
            self.write(pickle.BININT1 + bytes([flag]))

        dispatch[str] = save_string
        dispatch[bytes] = save_string
        dispatch[bool] = save_flag

    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def cifar_content(name: str, n: int = 3) -> dict[bytes, Any]:
    seed = BATCHES.index(name)
    return {
        b"batch_label": name.encode(),
        b"data": random_bytes(n, 3072, seed=seed),
        b"labels": [(seed + i) % 10 for i in range(n)],
        b"filenames": [b"%d.png" % i for i in range(n)],
    }


def write_archive(folder: Path, **change: bytes) -> Path:
    """As the official one: a folder, the batches in any order, and two other files."""
    contents = {
        "batches.meta": as_python_2({b"label_names": [name.encode() for name in NAMES]}),
        **{name: as_python_2(cifar_content(name)) for name in reversed(BATCHES)},
        "readme.html": b"<html></html>",
        **change,
    }
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        top = tarfile.TarInfo("cifar-10-batches-py")
        top.type = tarfile.DIRTYPE
        tar.addfile(top)
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


def know(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this archive for the official one."""
    monkeypatch.setattr(Cifar10, "sha256", hashlib.sha256(archive.read_bytes()).hexdigest())


def write_arrays(folder: Path, **change: object) -> None:
    contents = [cifar_content(name) for name in BATCHES]
    arrays = {}
    for part, batches in (("train", contents[:5]), ("test", contents[5:])):
        pixels = np.concatenate([content[b"data"] for content in batches]).reshape(-1, 3, 32, 32)
        arrays[f"{part}_images"] = pixels.transpose(0, 2, 3, 1)
        arrays[f"{part}_labels"] = np.array([label for content in batches for label in content[b"labels"]])
    np.savez(folder / "cifar10.npz", **arrays | change)


@pytest.mark.parametrize("source", ["archive", "arrays"])
def test_cifar10_keeps_every_pixel_label_and_name(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "archive":
        know(write_archive(tmp_path), monkeypatch)
    else:
        write_arrays(tmp_path)
    parts = Cifar10().load(tmp_path)
    contents = [cifar_content(name) for name in BATCHES]
    for part, expected in ((parts.train, contents[:5]), (parts.test, contents[5:])):
        pixels = np.concatenate([content[b"data"] for content in expected])
        assert np.array_equal(part.images.numpy(), pixels.reshape(-1, 3, 32, 32))
        assert part.labels.tolist() == [label for content in expected for label in content[b"labels"]]
        assert part.images.dtype == torch.uint8
        assert part.images.is_contiguous()
        assert part.class_names == NAMES
    assert parts.official is (source == "archive")


def test_cifar10_stays_in_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(tmp_path)
    know(archive, monkeypatch)
    Cifar10().load(tmp_path)
    assert list(tmp_path.iterdir()) == [archive]


def test_cifar10_downloads_the_official_archive_when_nothing_is_there(
    tmp_path: Path, fetched: dict[str, tuple[Path, str]]
) -> None:
    with pytest.raises(InputError, match="offline"):
        Cifar10().load(tmp_path)
    assert fetched == {
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz": (
            tmp_path / "cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        )
    }


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("damage", [cut_short, emptied, a_web_page, "malicious"])
def test_cifar10_reads_nothing_of_another_archive(
    tmp_path: Path, damage: Callable[[Path], None] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, canary = write_archive(tmp_path), tmp_path / "executed"
    know(archive, monkeypatch)
    write_arrays(tmp_path)
    if callable(damage):
        damage(archive)
    else:
        malicious = pickle.dumps({**cifar_content("test_batch"), b"more": Canary(canary)}, protocol=2)
        pickle.loads(malicious)
        canary.rmdir()  # it sings
        write_archive(tmp_path, test_batch=malicious)
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(
        InputError, match=rf"/cifar-10-python\.tar\.gz is not .*instead of {Cifar10.sha256}.*delete.*cifar10\.npz"
    ):
        Cifar10().load(tmp_path)
    assert not canary.exists()


def test_cifar10_refuses_unpacked_batches_and_says_what_to_do(
    tmp_path: Path, fetched: dict[str, tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    write_arrays(tmp_path)
    with pytest.raises(InputError, match=r"cifar-10-batches-py is unpacked.*put the archive.*delete.*cifar10\.npz"):
        Cifar10().load(tmp_path)
    assert not fetched
    know(write_archive(tmp_path), monkeypatch)
    assert Cifar10().load(tmp_path).official


def test_cifar10_that_cannot_be_read_says_which_file_and_why(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").mkdir()
    with pytest.raises(InputError, match=r"cifar-10-python\.tar\.gz.*directory"):
        Cifar10().load(tmp_path)


def test_cifar10_says_which_array_is_wrong(tmp_path: Path) -> None:
    write_arrays(tmp_path, test_images=random_bytes(3, 28, 28, 3))
    with pytest.raises(InputError, match=r"cifar10\.npz: test_images is uint8 \(3, 28, 28, 3\), expected"):
        Cifar10().load(tmp_path)
