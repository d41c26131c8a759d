"""Photos sorted into one folder per class: copied, linked or moved, never over an existing file."""

import filecmp
import os
import re
import secrets
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from meanteacher.core import InputError, Progress
from meanteacher.files import append_to, locked_folder

How = Literal["copy", "link", "move"]
UNDO = "undo.sh"
"""Shell commands that move everything back."""
UNSURE = "unsure"

_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Sorted:
    """What became of the photos."""

    folder: Path
    n_sorted: int
    n_apart: dict[str, int]
    """Folder of photos that are kept apart -> number of them."""
    n_there: int
    """Number of them that an earlier call had put there."""
    undo: Path | None
    """Shell commands that undo all moves so far; None without any."""
    complete: bool = True
    """Whether all photos were sorted."""


def sort_photos(
    files: Sequence[Path | None],
    guesses: Sequence[str],
    apart: Sequence[str],
    into: Path,
    *,
    root: Path | None = None,
    how: How = "copy",
    progress: Progress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Sorted:
    """Put each file into the folder of its guess below `into`; None and files without a guess are left alone.

    Those with a text in `apart` go to the folder of their guess below the folder of that name. A name that exists
    already gets a number, unless it is the same file: a call that was interrupted can be repeated. Before a file is
    moved, the command that moves it back is written to undo.sh. A file that was reached through a link out of `root` is
    copied, and never moved.

    Raises:
        InputError: `into` is inside `root`, or cannot be written.
    """
    check_outside(into, root)
    real_root = None if root is None else Path(os.path.realpath(root))
    folders, kept_apart = _folder_names(guesses, apart)
    n_sorted = n_there = 0
    n_apart: Counter[str] = Counter()
    wanted = [k for k, (file, guess) in enumerate(zip(files, guesses, strict=True)) if file is not None and guess]
    with locked_folder(into, "sorting photos into"):
        try:
            with _UndoList(into / UNDO) as undo:
                for done, k in enumerate(wanted):
                    if should_stop():
                        break
                    file = files[k]
                    assert file is not None
                    folder = into / kept_apart.get(apart[k], "") / folders[guesses[k]]
                    folder.mkdir(parents=True, exist_ok=True)
                    stays = how == "move" and real_root is not None and not _is_inside(file, real_root)
                    is_new = _place(file, folder, "copy" if stays else how, undo)
                    n_sorted, n_there = n_sorted + 1, n_there + (not is_new)
                    if apart[k]:
                        n_apart[kept_apart[apart[k]]] += 1
                    progress(done + 1, len(wanted))
        except OSError as error:
            raise InputError(
                f"Cannot sort photos into {into} ({error}). Those so far are in place, and no photo is lost; free some "
                "space, or make the folder writable, and repeat the command."
            ) from error
    undo_file = into / UNDO
    return Sorted(
        folder=into,
        n_sorted=n_sorted,
        n_apart=dict(n_apart),
        n_there=n_there,
        undo=undo_file if undo_file.exists() else None,
        complete=n_sorted == len(wanted),
    )


def check_outside(into: Path, root: Path | None) -> None:
    """Raise an InputError if photos of `root` would be sorted into a folder within it, where they are found again."""
    if root is not None and Path(os.path.realpath(into)).is_relative_to(os.path.realpath(root)):
        raise InputError(f"{into} is inside {root}, whose photos are sorted: give a folder beside it (--sort-into).")


def _folder_names(*kinds: Sequence[str]) -> list[dict[str, str]]:
    """The folders of each kind, here of classes and of photos apart: names that every file system takes, all different.

    >>> _folder_names(["rose", "a/b", "a:b", "..", "Unsure"], ["", "unsure"])
    [{'..': '_', 'Unsure': 'Unsure', 'a/b': 'a_b', 'a:b': 'a_b (2)', 'rose': 'rose'}, {'unsure': 'unsure (2)'}]
    """
    used: set[str] = set()
    return [{text: _free_name(text, used) for text in sorted(set(kind) - {""})} for kind in kinds]


def _free_name(text: str, used: set[str]) -> str:
    plain = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*]', "_", text).strip(". ")[:_MAX_NAME] or "_"
    name, number = plain, 1
    # Some file systems do not tell capital letters from small ones.
    while name.lower() in used:
        number += 1
        name = f"{plain} ({number})"
    used.add(name.lower())
    return name


class _UndoList:
    """Appends commands to a file, which is opened with the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[bytes] | None = None

    def __enter__(self) -> "_UndoList":
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, moved: Path, back: Path) -> None:
        """Write the command that moves a file back; it is on the disk when this returns."""
        if self.file is None:
            is_new = not self.path.exists()
            self.file = append_to(self.path)
            if is_new:
                self.file.write(b"# Moves the sorted photos back to where they were: sh undo.sh\n")
        paths = (shlex.quote(os.path.abspath(path)) for path in (moved, back))  # noqa: PTH100 - a link stays a link
        self.file.write(os.fsencode(f"mv -n -- {' '.join(paths)}\n"))
        self.file.flush()
        os.fsync(self.file.fileno())


def _is_inside(file: Path, root: Path) -> bool:
    return Path(os.path.realpath(file.parent)).is_relative_to(root)


def _place(file: Path, folder: Path, how: How, undo: _UndoList) -> bool:
    """Put the file into the folder under its name, or the first free one with a number; False if it is there already.

    Whatever ends the process, the file is at its old place, at its new one, or at both.
    """
    number = 1
    while True:
        target = folder / (file.name if number == 1 else f"{file.stem} ({number}){file.suffix}")
        try:
            if how == "link":
                target.symlink_to(os.path.realpath(file))
            elif how == "copy":
                _copy(file, target)
            else:
                _move(file, target, undo)
        except FileExistsError:
            if _is_same(file, target, how):
                if how == "move":  # that was interrupted before its end
                    file.unlink()
                return False
            number += 1
        else:
            return True


def _is_same(file: Path, target: Path, how: How) -> bool:
    """Whether an earlier call has put the file there. Two copies of a photo are two files, and both are moved."""
    if target.is_symlink():
        return os.path.realpath(target) == os.path.realpath(file)
    if how == "copy":
        return target.is_file() and filecmp.cmp(file, target, shallow=False)
    return how == "move" and not file.is_symlink() and file.samefile(target)


def _copy(file: Path, target: Path) -> None:
    """Copy the content under a name that must be free; half a copy never has that name."""
    if os.path.lexists(target):
        raise FileExistsError(target)
    part = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        shutil.copy2(file, part)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        _rename(part, target)
    finally:
        part.unlink(missing_ok=True)


def _move(file: Path, target: Path, undo: _UndoList) -> None:
    """Move a file to a name that must be free: the new place exists before the old one ends."""
    if os.path.lexists(target):
        raise FileExistsError(target)
    undo.add(target, file)
    if file.is_symlink():
        target.symlink_to(os.path.realpath(file))
    else:
        try:
            os.link(file, target)
        except FileExistsError:
            raise
        except OSError:  # another disk, or a file system without links
            _copy(file, target)
    file.unlink()


def _rename(part: Path, target: Path) -> None:
    """Give the file its name, or raise a FileExistsError if that is taken."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        part.rename(target)
