import io
import os
import pickle
import shutil
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

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def as_python_2(content: object) -> bytes:
    """The official files' own dialect: every string is a byte string, and numpy is numpy 1."""

    class Python2Pickler(pickle._Pickler):
        dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

        def save_string(self, text: str | bytes) -> None:
            raw = text.encode("latin1") if isinstance(text, str) else text
            self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)
            self.memoize(text)

        dispatch[str] = save_string
        dispatch[bytes] = save_string

    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def as_python_3(content: object) -> bytes:
    return pickle.dumps(content, protocol=2)


def cifar_content(name: str, n: int = 3) -> dict[bytes, Any]:
    if name == "batches.meta":
        return {
            b"label_names": [n.encode() for n in NAMES],
            b"num_vis": 3072,
            b"num_cases_per_batch": 10000,
        }
    seed = BATCHES.index(name)
    return {
        b"batch_label": name.encode(),
        b"data": random_bytes(n, 3072, seed=seed),
        b"labels": [(seed + i) % 10 for i in range(n)],
        b"filenames": [b"%d.png" % i for i in range(n)],
    }


def write_cifar(folder: Path, dump: Callable[[object], bytes] = as_python_2) -> Path:
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in [*BATCHES, "batches.meta"]:
        (batches / name).write_bytes(dump(cifar_content(name)))
    return batches


def write_archive(folder: Path) -> Path:
    """As the official one: the batches' folder and nothing else at the top."""
    batches = write_cifar(folder / "packing")
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(batches, batches.name)
    shutil.rmtree(batches.parent)
    return archive


@pytest.mark.parametrize("dump", [as_python_2, as_python_3])
def test_cifar10_keeps_every_pixel_label_and_name(tmp_path: Path, dump: Callable[[object], bytes]) -> None:
    write_cifar(tmp_path, dump)
    parts = Cifar10().load(tmp_path)
    contents = [cifar_content(name) for name in BATCHES]
    for part, expected in ((parts.train, contents[:5]), (parts.test, contents[5:])):
        pixels = np.concatenate([content[b"data"] for content in expected])
        assert np.array_equal(part.images.numpy(), pixels.reshape(-1, 3, 32, 32))
        assert part.labels.tolist() == [label for content in expected for label in content[b"labels"]]
        assert part.images.dtype == torch.uint8
        assert part.images.is_contiguous()
        assert part.class_names == tuple(NAMES)


def test_cifar10_reads_an_array_stored_column_by_column(tmp_path: Path) -> None:
    batches = write_cifar(tmp_path)
    content = cifar_content("test_batch")
    (batches / "test_batch").write_bytes(as_python_2({**content, b"data": np.asfortranarray(content[b"data"])}))
    assert np.array_equal(Cifar10().load(tmp_path).test.images.flatten(1).numpy(), content[b"data"])


def test_cifar10_unpacks_the_archive_once_and_leaves_nothing_else(tmp_path: Path) -> None:
    archive = write_archive(tmp_path)
    first = Cifar10().load(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-batches-py", archive.name]
    archive.write_bytes(b"no longer needed")
    assert Cifar10().load(tmp_path).train.fingerprint() == first.train.fingerprint()


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


@pytest.mark.parametrize("damage", ["no archive", "cut", "another folder", "empty"])
def test_cifar10_refuses_a_bad_archive_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    archive = write_archive(tmp_path)
    if damage == "no archive":
        archive.write_bytes(b"<html>Not found</html>" * 100)
    elif damage == "cut":
        archive.write_bytes(archive.read_bytes()[:-5000])
    elif damage == "empty":
        archive.write_bytes(b"")
    else:
        with tarfile.open(archive, "w:gz") as tar:
            tar.addfile(tarfile.TarInfo("other/file"))
    with pytest.raises(InputError, match=r"cifar-10-python\.tar\.gz .*Delete it"):
        Cifar10().load(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_cifar10_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    archive = write_archive(folder)
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../escaped"))
    with pytest.raises(InputError, match=r"cifar-10-python\.tar\.gz .*Delete it"):
        Cifar10().load(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_cifar10_archive_gives_plain_files_only(tmp_path: Path) -> None:
    """A link, a nested path and a way out are left in the archive."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_cifar(folder)
    batches = folder / "cifar-10-batches-py"
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        for path in batches.iterdir():
            tar.add(path, f"{batches.name}/{path.name}")
        for name in ("link", "../escaped", "deeper/../../../escaped"):
            member = tarfile.TarInfo(f"{batches.name}/{name}")
            member.type, member.linkname = (tarfile.SYMTYPE, str(tmp_path)) if name == "link" else (tarfile.REGTYPE, "")
            tar.addfile(member)
    official = {path.name for path in batches.iterdir()}
    shutil.rmtree(batches)
    Cifar10().load(folder)
    assert {path.name for path in batches.iterdir()} == official
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_cifar10_unpacking_yields_to_a_process_that_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path)
    plain_open = tarfile.open

    def open_while_another_finishes(*arguments: Any) -> tarfile.TarFile:
        write_cifar(tmp_path)
        return plain_open(*arguments)

    monkeypatch.setattr("meanteacher.data.cifar10.tarfile.open", open_while_another_finishes)
    assert len(Cifar10().load(tmp_path).test) == 3
    assert len(list(tmp_path.rglob("test_batch"))) == 1


def test_cifar10_that_cannot_be_unpacked_says_which_file_and_why(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").mkdir()
    with pytest.raises(InputError, match=r"cifar-10-python\.tar\.gz.*directory"):
        Cifar10().load(tmp_path)


class Canary:
    """Makes a folder when unpickled by a trusting reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_malicious_batch_is_refused_and_not_executed(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "executed"
    malicious = pickle.dumps({**cifar_content(name), b"more": Canary(canary)}, protocol=2)
    pickle.loads(malicious)
    assert canary.exists(), "the canary does not sing, so the test would prove nothing"
    canary.rmdir()

    batches = write_cifar(tmp_path)
    (batches / name).write_bytes(malicious)
    with pytest.raises(InputError, match=rf"{name} .*posix\.mkdir"):
        Cifar10().load(tmp_path)
    assert not canary.exists()


class Crafted:
    """Pickles as an array of objects whose dtype claims that bytes will do: numpy itself crashes on it."""

    class Dtype:
        def __reduce__(self) -> tuple[Any, ...]:
            return np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        reconstruct = np.empty(0).__reduce__()[0]
        state = (1, (1, 3072), Crafted.Dtype(), False, b"A" * 3072 * 8)
        return reconstruct, (np.ndarray, (0,), b"b"), state


def test_bytes_of_a_batch_are_never_taken_for_pointers(tmp_path: Path) -> None:
    batches = write_cifar(tmp_path)
    content = {**cifar_content("test_batch", n=1), b"data": Crafted()}
    (batches / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(InputError, match=r"test_batch .*bytes"):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("data_batch_2", {b"data": None}, r"b'data' .*bytes .*\(N, 3072\)"),
        ("data_batch_2", {b"data": random_bytes(3, 784)}, "b'data' .*bytes"),
        ("data_batch_2", {b"data": random_bytes(3 * 3072)}, "b'data' .*bytes"),
        ("data_batch_2", {b"data": random_bytes(0, 3072)}, "b'data' .*bytes"),
        ("data_batch_2", {b"data": np.zeros((3, 3072), np.int8)}, "b'data' .*bytes"),
        ("data_batch_2", {b"data": np.zeros((3, 3072))}, "b'data' .*bytes"),
        ("data_batch_2", {b"labels": None}, "b'labels' .*3 labels"),
        ("data_batch_2", {b"labels": [1, 2]}, "b'labels' .*3 labels"),
        ("test_batch", {b"labels": [0, 1, 10]}, "0 to 9"),
        ("test_batch", {b"labels": [0, 1, -1]}, "0 to 9"),
        ("test_batch", {b"labels": [0, 1, 0.5]}, "0 to 9"),
        ("batches.meta", {b"label_names": None}, "b'label_names' .*10 names"),
        ("batches.meta", {b"label_names": [b"cat"]}, "b'label_names' .*10 names"),
        ("batches.meta", {b"label_names": list(range(10))}, "b'label_names' .*10 names"),
    ],
)
def test_cifar10_names_the_file_with_foreign_content(
    tmp_path: Path, name: str, change: dict[bytes, object], words: str
) -> None:
    batches = write_cifar(tmp_path)
    (batches / name).write_bytes(as_python_2({**cifar_content(name), **change}))
    with pytest.raises(InputError, match=rf"/{name} .*{words}.*Delete .*cifar-10-batches-py"):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "missing"),
        (cut_short, "cannot be read"),
        (emptied, "cannot be read"),
        (a_web_page, "cannot be read"),
        (lambda path: path.write_bytes(pickle.dumps([1, 2])), "list.* dict"),
    ],
)
def test_cifar10_names_the_damaged_file(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    batches = write_cifar(tmp_path)
    damage(batches / "data_batch_4")
    with pytest.raises(InputError, match=rf"/data_batch_4 .*{words}.*Delete .*cifar-10-batches-py"):
        Cifar10().load(tmp_path)
