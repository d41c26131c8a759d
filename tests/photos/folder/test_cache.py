"""Pixels are decoded once, and never taken for those of another file."""

import errno
import io
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from meanteacher.core import InputError
from meanteacher.files.images import decode
from meanteacher.photos.folder import cache
from meanteacher.photos.folder.cache import Decoded, decode_all
from meanteacher.photos.folder.find import Photos, find_photos
from photo_support import folder_of, picture, save
from support import held_by_another_process

NAMES = ("cat/1.png", "cat/2.jpg", "dog/1.png", "dog/2.gif", "unlabeled/1.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "photos", *NAMES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded, as they are."""
    names: list[str] = []

    def spy(path: Path, size: int) -> object:
        names.append(f"{path.parent.name}/{path.name}")
        return decode(path, size)

    monkeypatch.setattr(cache, "decode", spy)
    return names


def check(photos: Photos, result: Decoded, size: int = 6) -> None:
    assert result.images.shape == (len(photos), 3, size, size)
    assert result.images.dtype == np.uint8
    for k in range(len(photos)):
        if k in result.unreadable:
            assert not result.images[k].any()
        else:
            assert np.array_equal(result.images[k].transpose(1, 2, 0), decode(photos.path(k), size))


def test_all_images_are_decoded_into_one_mapped_file(root: Path, folder: Path) -> None:
    photos = find_photos(root)
    result = decode_all(photos, 6, folder)
    check(photos, result)
    assert result.unreadable == {}
    assert isinstance(result.images, np.memmap)
    before = (folder / "images-6.npy").read_bytes()
    result.images[0] += 1  # torch takes no read-only array, so it may be written to, but the file never changes
    assert (folder / "images-6.npy").read_bytes() == before
    assert np.array_equal(np.load(folder / "images-6.npy", mmap_mode="r")[1:], result.images[1:])
    assert {path.name for path in folder.iterdir()} == {".lock", "images-6.npy", "images-6.json"}


def test_the_list_beside_the_pixels_names_each_file_and_its_state(root: Path, folder: Path) -> None:
    (root / "cat" / "0.png").write_text("no image")
    photos = find_photos(root)
    decode_all(photos, 6, folder)
    rows = json.loads((folder / "images-6.json").read_text())["images"]
    states = [(root / name).stat() for name in photos.names]
    reasons = ["not an image", *[None] * len(NAMES)]
    assert [tuple(row) for row in rows] == [
        (name, state.st_size, state.st_mtime_ns, reason)
        for name, state, reason in zip(photos.names, states, reasons, strict=True)
    ]


def test_a_second_call_decodes_nothing(root: Path, folder: Path, decoded: list[str]) -> None:
    (root / "cat" / "broken.png").write_text("no image")
    (root / "cat" / "link.png").symlink_to("nowhere")
    photos = find_photos(root)
    first = decode_all(photos, 6, folder)
    assert sorted(decoded) == sorted(photos.names)
    decoded.clear()
    second = decode_all(find_photos(root), 6, folder)
    assert decoded == []
    assert np.array_equal(first.images, second.images)
    assert first.unreadable == second.unreadable == {2: "not an image", 3: "a broken link"}


def test_each_size_has_its_own_file(root: Path, folder: Path, decoded: list[str]) -> None:
    photos = find_photos(root)
    for size in (6, 9, 6, 9):
        check(photos, decode_all(photos, size, folder), size)
    assert len(decoded) == 2 * len(photos)


def test_only_a_changed_a_new_or_a_renamed_file_is_decoded_again(root: Path, folder: Path, decoded: list[str]) -> None:
    decode_all(find_photos(root), 6, folder)
    decoded.clear()
    save(root / "cat" / "1.png", seed=77, width=20)
    save(root / "aardvark" / "new.png", seed=78)
    (root / "dog" / "1.png").rename(root / "dog" / "3.png")
    (root / "cat" / "2.jpg").unlink()
    photos = find_photos(root)
    check(photos, decode_all(photos, 6, folder))
    assert sorted(decoded) == ["aardvark/new.png", "cat/1.png", "dog/3.png"]


def test_a_change_is_noticed_by_the_time_alone(root: Path, folder: Path, decoded: list[str]) -> None:
    path = root / "cat" / "1.bmp"
    save(path, seed=1)
    decode_all(find_photos(root), 6, folder)
    length = path.stat().st_size
    decoded.clear()
    save(path, seed=2)
    os.utime(path, ns=(0, 123456789))
    assert path.stat().st_size == length
    photos = find_photos(root)
    check(photos, decode_all(photos, 6, folder))
    assert decoded == ["cat/1.bmp"]


def test_another_folder_with_the_same_names_is_not_taken_for_this_one(
    root: Path, folder: Path, tmp_path: Path, decoded: list[str]
) -> None:
    other = folder_of(tmp_path / "other", *NAMES)
    for one in (root, other):
        save(one / "cat" / "x.bmp", seed=5 if one is root else 6)
        for path in one.rglob("*.*"):
            os.utime(path, ns=(0, 0))
    decode_all(find_photos(root), 6, folder)
    decoded.clear()
    check(find_photos(other), decode_all(find_photos(other), 6, folder))
    assert len(decoded) == len(NAMES) + 1


def test_a_file_that_vanishes_is_gone_and_comes_back(root: Path, folder: Path) -> None:
    photos = find_photos(root)
    data = (root / "dog" / "1.png").read_bytes()
    (root / "dog" / "1.png").unlink()
    for _ in range(2):
        result = decode_all(photos, 6, folder)
        check(photos, result)
        assert result.unreadable == {2: "gone"}
    (root / "dog" / "1.png").write_bytes(data)
    assert decode_all(photos, 6, folder).unreadable == {}


def test_a_file_that_could_not_be_opened_is_tried_again_though_it_is_unchanged(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, size: int) -> object:
        monkeypatch.undo()
        return decode(path / "not there", size)

    photos = find_photos(root)
    monkeypatch.setattr(cache, "decode", refuse)
    assert len(decode_all(photos, 6, folder).unreadable) == 1
    result = decode_all(photos, 6, folder)
    check(photos, result)
    assert result.unreadable == {}


def test_progress_counts_up_to_all_images(tmp_path: Path, folder: Path) -> None:
    root = folder_of(tmp_path / "photos", "a/0.png", "b/0.png")
    for k in range(1, 150):
        for name in "ab":
            (root / name / f"{k}.png").hardlink_to(root / "a" / "0.png")
    photos = find_photos(root)
    calls: list[tuple[int, int]] = []
    threads = set()

    def progress(done: int, total: int) -> None:
        calls.append((done, total))
        threads.add(threading.current_thread())

    check(photos, decode_all(photos, 6, folder, progress=progress))
    assert len(calls) > 10
    assert calls == sorted(set(calls))
    assert calls[-1] == (len(photos), len(photos)) == (300, 300)
    assert threads == {threading.main_thread()}
    calls.clear()
    decode_all(photos, 6, folder, progress=progress)
    assert calls == [(300, 300)]


def test_an_interrupted_call_leaves_nothing_that_looks_finished(root: Path, folder: Path, decoded: list[str]) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    photos = find_photos(root)
    with pytest.raises(KeyboardInterrupt):
        decode_all(photos, 6, folder, progress=interrupt)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    check(photos, decode_all(photos, 6, folder))


def test_an_interrupted_call_leaves_what_was_there(root: Path, folder: Path, decoded: list[str]) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = find_photos(root)
    decode_all(before, 6, folder)
    save(root / "cat" / "new.png", seed=9)
    with pytest.raises(KeyboardInterrupt):
        decode_all(find_photos(root), 6, folder, progress=interrupt)
    decoded.clear()
    check(before, decode_all(before, 6, folder))
    assert decoded == []


class KilledError(BaseException):
    """Nothing of ours runs after it."""


@pytest.mark.parametrize("moment", ["os.fsync", "Path.replace", "write_atomic"])
def test_a_killed_write_is_never_taken_for_a_finished_one(
    moment: str, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_photos(root)
    decode_all(before, 6, folder)
    (root / "cat" / "1.png").unlink()
    save(root / "cat" / "0.png", seed=50)
    photos = find_photos(root)

    def kill(*_: object) -> None:
        raise KilledError

    unlink = Path.unlink
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path, missing_ok: unlink(path) if path.suffix == ".json" else None)
        target = {"os.fsync": os, "Path.replace": Path, "write_atomic": cache}[moment]
        patch.setattr(target, moment.rpartition(".")[2], kill)
        with pytest.raises(KilledError):
            decode_all(photos, 6, folder)
    if moment != "write_atomic":
        assert (folder / ".writing-images-6.npy").exists()
    check(photos, decode_all(photos, 6, folder))
    assert {path.name for path in folder.iterdir()} == {".lock", "images-6.npy", "images-6.json"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "images-6.npy").write_bytes((folder / "images-6.npy").read_bytes()[:-1]),
        lambda folder: (folder / "images-6.npy").write_bytes(b""),
        lambda folder: np.save(folder / "images-6.npy", np.zeros((5, 3, 7, 7), np.uint8)),
        lambda folder: np.save(folder / "images-6.npy", np.zeros((5, 3, 6, 6), np.float32)),
        lambda folder: (folder / "images-6.npy").unlink(),
        lambda folder: (folder / "images-6.json").write_text("{"),
        lambda folder: (folder / "images-6.json").write_text('{"version": 1}'),
        lambda folder: (folder / "images-6.json").write_text("[]"),
        lambda folder: (folder / "images-6.json").write_bytes(b"\xff"),
    ],
)
def test_a_damaged_cache_is_made_again(damage: object, root: Path, folder: Path, decoded: list[str]) -> None:
    photos = find_photos(root)
    decode_all(photos, 6, folder)
    decoded.clear()
    assert callable(damage)
    damage(folder)
    check(photos, decode_all(photos, 6, folder))
    assert len(decoded) == len(NAMES)


def test_a_cache_of_another_version_is_made_again(
    root: Path, folder: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = find_photos(root)
    decode_all(photos, 6, folder)
    monkeypatch.setattr(cache, "_VERSION", 2)
    decode_all(photos, 6, folder)
    assert len(decoded) == 2 * len(NAMES)


def test_whoever_uses_the_old_pixels_keeps_them(root: Path, folder: Path) -> None:
    old = decode_all(find_photos(root), 6, folder)
    before = np.array(old.images)
    save(root / "cat" / "1.png", seed=60)
    decode_all(find_photos(root), 6, folder)
    assert np.array_equal(old.images, before)


def test_too_little_room_is_said_before_anything_is_written(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meanteacher.photos.folder.cache.shutil.disk_usage", lambda _: SimpleNamespace(free=50_000_000))
    with pytest.raises(InputError, match=r"need 0\.06 GB in .*cache, but 0\.05 GB are free: make room"):
        decode_all(find_photos(root), 2000, folder)
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.FileIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    really_open = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, mode="r", **how: (Full if mode == "r+b" else really_open)(path, mode, **how)
    )
    with pytest.raises(InputError, match=r"Cannot write decoded images to .*cache \(No space left on device\)"):
        decode_all(find_photos(root), 6, folder)
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_two_processes_do_not_write_one_folder(root: Path, folder: Path) -> None:
    folder.mkdir()
    photos = find_photos(root)
    with (
        held_by_another_process(folder / ".lock"),
        pytest.raises(InputError, match=r"Another process is decoding images into .*cache\. Wait"),
    ):
        decode_all(photos, 6, folder)
    check(photos, decode_all(photos, 6, folder))


def test_a_folder_that_cannot_be_made_is_named(root: Path, folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(InputError, match=r"Cannot write decoded images to .*cache \(File exists\)"):
        decode_all(find_photos(root), 6, folder)


@pytest.mark.parametrize("size", [6, 4])
def test_arrays_are_kept_like_files(size: int, tmp_path: Path, folder: Path) -> None:
    images = np.stack([np.asarray(picture(seed, 6, 6)) for seed in range(4)])
    file = tmp_path / "photos.npz"
    for scale in (1, 2):
        np.savez(file, images=images // scale, labels=[0, 1, -1, -1])
        os.utime(file, ns=(0, scale))
        for _ in range(2):
            result = decode_all(find_photos(file), size, folder)
            assert result.images.shape == (4, 3, size, size)
            if size == 6:
                assert np.array_equal(result.images.transpose(0, 2, 3, 1), images // scale)
            else:
                assert np.abs(result.images.mean((2, 3)) - (images // scale).mean((1, 2))).max() < 8


def test_names_that_are_not_utf8_are_kept_too(root: Path, folder: Path, decoded: list[str]) -> None:
    save(root / "x.png").rename(os.fsdecode(os.fsencode(root) + b"/cat/\xff.png"))
    photos = find_photos(root)
    check(photos, decode_all(photos, 6, folder))
    decode_all(photos, 6, folder)
    assert len(decoded) == len(photos)
