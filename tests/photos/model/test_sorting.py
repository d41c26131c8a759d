"""Photos end in the folder of their class, and none is ever lost or replaced."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from meanteacher.core import InputError
from meanteacher.photos.model import sorting
from meanteacher.photos.model.sorting import How, Sorted, sort_photos

ODD = [
    "rose.jpg",
    "two words.jpg",
    "it's.jpg",
    "$(touch x).jpg",
    "-n.jpg",
    "line\nbreak.jpg",
    "caf\udce9.jpg",
    "ünï.JPG",
]


def photos_in(root: Path, *names: str) -> list[Path]:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.fsencode(f"photo {name}"))
    return [root / name for name in names]


def content(root: Path) -> dict[str, bytes]:
    """Names below the folder -> content; without hidden files."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def sort(files: list[Path], guesses: list[str], into: Path, **options: object) -> Sorted:
    apart = options.pop("apart", [""] * len(files))
    return sort_photos(files, guesses, apart, into, **options)


def test_copies_are_made_by_class_with_unsure_and_strange_ones_apart_and_photos_without_a_guess_left_alone(
    tmp_path: Path,
):
    files = photos_in(tmp_path / "photos", "a.jpg", "deep/b.jpg", "c.jpg", "broken.jpg")
    before = content(tmp_path / "photos")
    found = sort(files, ["rose", "rose", "tulip", ""], tmp_path / "out", apart=["", "unsure", "none of these", ""])
    assert set(content(tmp_path / "out")) == {"rose/a.jpg", "unsure/rose/b.jpg", "none of these/tulip/c.jpg"}
    assert (found.n_sorted, found.n_there, found.undo, found.complete) == (3, 0, None, True)
    assert found.n_apart == {"unsure": 1, "none of these": 1}
    assert content(tmp_path / "photos") == before
    assert (tmp_path / "out/rose/a.jpg").stat().st_mtime == files[0].stat().st_mtime


@pytest.mark.parametrize("how", ["copy", "link", "move"])
def test_nothing_is_replaced_and_equal_names_get_numbers(how: How, tmp_path: Path):
    files = photos_in(tmp_path / "photos", "1/a.jpg", "2/a.jpg", "3/a.jpg")
    (tmp_path / "out/rose").mkdir(parents=True)
    (tmp_path / "out/rose/a.jpg").write_bytes(b"somebody else's")
    sort(files, ["rose"] * 3, tmp_path / "out", how=how)
    found = content(tmp_path / "out")
    assert found.pop("rose/a.jpg") == b"somebody else's"
    found.pop("undo.sh", None)
    assert found == {f"rose/a ({k + 1}).jpg": b"photo %d/a.jpg" % k for k in (1, 2, 3)}
    assert len(content(tmp_path / "photos")) == (0 if how == "move" else 3)


@pytest.mark.parametrize("how", ["copy", "link"])
def test_a_repeated_call_adds_nothing(how: How, tmp_path: Path):
    files = photos_in(tmp_path / "photos", *ODD)
    sort(files, ["rose"] * len(ODD), tmp_path / "out", how=how)
    before = content(tmp_path / "out")
    assert sort(files, ["rose"] * len(ODD), tmp_path / "out", how=how).n_there == len(ODD)
    assert content(tmp_path / "out") == before
    assert set(before) == {f"rose/{name}" for name in ODD}


def test_moved_photos_come_back_with_one_command(tmp_path: Path):
    names = [*ODD, "deep/er/rose.jpg"]
    files = photos_in(tmp_path / "my photos", *names)
    before = content(tmp_path / "my photos")
    found = sort(files, ["rose"] * len(files), tmp_path / "sorted $HOME", root=tmp_path / "my photos", how="move")
    assert content(tmp_path / "my photos") == {}
    assert found.undo is not None
    assert len(content(tmp_path / "sorted $HOME")) == len(files) + 1
    subprocess.run(["sh", found.undo], check=True, cwd=tmp_path)
    assert content(tmp_path / "my photos") == before
    assert set(content(tmp_path / "sorted $HOME")) == {"undo.sh"}
    assert not (tmp_path / "x").exists(), "a name was run as a command"


def test_a_second_move_adds_to_the_undo_list(tmp_path: Path):
    first = photos_in(tmp_path / "photos", "a.jpg")
    sort(first, ["rose"], tmp_path / "out", how="move")
    undo = sort(photos_in(tmp_path / "photos", "b.jpg"), ["rose"], tmp_path / "out", how="move").undo
    assert undo is not None
    subprocess.run(["sh", undo], check=True)
    assert set(content(tmp_path / "photos")) == {"a.jpg", "b.jpg"}


def test_two_copies_of_a_photo_are_both_moved(tmp_path: Path):
    files = photos_in(tmp_path / "photos", "1/a.jpg", "2/a.jpg")
    files[1].write_bytes(files[0].read_bytes())
    sort(files, ["rose", "rose"], tmp_path / "out", how="move")
    assert {"rose/a.jpg", "rose/a (2).jpg"} < set(content(tmp_path / "out"))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("links", [True, False], ids=["one disk", "another disk"])
@pytest.mark.parametrize("step", range(8))
def test_an_interrupted_move_loses_nothing(step: int, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The process ends before one of the calls that change the disk."""
    files = photos_in(tmp_path / "photos", "a.jpg", "b.jpg")
    everything = {b"photo a.jpg", b"photo b.jpg"}
    calls = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise Killed
            return real(*arguments, **options)

        return call

    def no_links(*arguments: object) -> None:
        raise OSError("Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(sorting.os, "link", dying(os.link) if links else no_links)
        patch.setattr(sorting.os, "fsync", dying(os.fsync))
        patch.setattr(sorting.shutil, "copy2", dying(sorting.shutil.copy2))
        patch.setattr(Path, "unlink", dying(Path.unlink))
        patch.setattr(Path, "rename", dying(Path.rename))
        try:
            sort(files, ["rose", "rose"], tmp_path / "out", how="move")
        except Killed:
            pass
        else:
            assert calls <= step
    there = content(tmp_path / "photos") | content(tmp_path / "out")
    assert everything <= set(there.values())
    # The same call again does the rest, and the undo list brings all photos back.
    left = [file for file in files if file.exists()]
    sort(left, ["rose"] * len(left), tmp_path / "out", how="move")
    assert content(tmp_path / "photos") == {}
    subprocess.run(["sh", tmp_path / "out/undo.sh"], check=False, stderr=subprocess.DEVNULL)
    assert set(content(tmp_path / "photos").values()) == everything


def test_links_are_moved_as_links_and_photos_outside_the_folder_are_copied(tmp_path: Path):
    (real, other) = photos_in(tmp_path / "elsewhere", "real.jpg", "album/other.jpg")
    root = tmp_path / "photos"
    root.mkdir()
    (root / "link.jpg").symlink_to("../elsewhere/real.jpg")
    (root / "album").symlink_to(other.parent)
    sort([root / "link.jpg", root / "album/other.jpg"], ["rose", "rose"], tmp_path / "out", root=root, how="move")
    assert real.exists()
    assert other.exists()
    assert not (root / "link.jpg").is_symlink()
    assert {name: data for name, data in content(tmp_path / "out").items() if name != "undo.sh"} == {
        "rose/link.jpg": b"photo real.jpg",
        "rose/other.jpg": b"photo album/other.jpg",
    }
    assert (tmp_path / "out/rose/link.jpg").is_symlink()


@pytest.mark.parametrize("name", ["", "sorted", "a/b"])
def test_a_folder_among_the_photos_is_refused(name: str, tmp_path: Path):
    files = photos_in(tmp_path / "photos", "a.jpg")
    with pytest.raises(InputError, match=r"is inside .* give a folder beside it \(--sort-into\)"):
        sort(files, ["rose"], tmp_path / "photos" / name, root=tmp_path / "photos")
    assert set(content(tmp_path / "photos")) == {"a.jpg"}


def test_class_names_become_folders_that_differ_and_stay_below(tmp_path: Path):
    guesses = ["../up", "a/b", "a:b", "A:B", "unsure", ".", "con\x00trol", "x" * 300]
    files = photos_in(tmp_path / "photos", *(f"{k}.jpg" for k in range(len(guesses))))
    sort(files, guesses, tmp_path / "out", apart=[""] * 4 + ["unsure"] + [""] * 3)
    folders = {path.parent.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.jpg")}
    assert folders == {"_up", "a_b (2)", "A_B", "a_b (3)", "unsure (2)/unsure", "_", "con_trol", "x" * 200}


def test_a_full_disk_is_reported_and_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = photos_in(tmp_path / "photos", "a.jpg", "b.jpg")

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorting.shutil, "copy2", full)
    with pytest.raises(InputError, match=r"No space left on device.* no photo is lost"):
        sort(files, ["rose", "rose"], tmp_path / "out")
    assert content(tmp_path / "out") == {}
    assert list((tmp_path / "out").rglob("*.part")) == []
    assert len(content(tmp_path / "photos")) == 2


def test_sorting_can_be_stopped(tmp_path: Path):
    files = photos_in(tmp_path / "photos", "a.jpg", "b.jpg", "c.jpg")
    answers = iter([False, True])
    found = sort(files, ["rose"] * 3, tmp_path / "out", how="move", should_stop=lambda: next(answers))
    assert (found.n_sorted, found.complete) == (1, False)
    assert set(content(tmp_path / "photos")) == {"b.jpg", "c.jpg"}


def test_a_photo_that_is_moved_on_one_disk_is_not_copied(tmp_path: Path):
    (file,) = photos_in(tmp_path / "photos", "a.jpg")
    before = file.stat().st_ino
    assert sort([file], ["rose"], tmp_path / "out", how="move").n_sorted == 1
    assert (tmp_path / "out/rose/a.jpg").stat().st_ino == before
    assert not file.exists()


def test_the_folder_of_a_long_name_has_two_hundred_characters(tmp_path: Path):
    files = photos_in(tmp_path / "photos", "a.jpg", "b.jpg", "c.jpg")
    sort(files, ["x" * 300, "x" * 300 + "y", "z" * 200], tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert names == ["x" * 200, "x" * 200 + " (2)", "z" * 200]
