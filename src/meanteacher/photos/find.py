"""The images of a folder or an .npz file, and the labels of some of them."""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError
from meanteacher.photos.tables import LabelRow, is_text, read_labels, read_npz

EXTENSIONS = frozenset({"jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm"})


def images_below(root: Path) -> tuple[list[str], int]:
    """The sorted names of the image files at any depth, and the number of other files; hidden ones are passed over.

    Raises:
        InputError: this is no folder, or one in it cannot be read.
    """
    names: list[str] = []
    n_ignored = 0
    seen = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        # Links come last, so that what lies in the folder is found where it lies; each folder once, or a loop of
        # links had no end.
        links.sort(reverse=True)
        prefix = folders.pop() if folders else links.pop()
        try:
            status = (root / prefix).stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(root / prefix) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        (links if entry.is_symlink() else folders).append(f"{prefix}{entry.name}/")
                    elif _is_image(entry):
                        names.append(prefix + entry.name)
                    else:
                        n_ignored += 1
        except FileNotFoundError as error:
            raise InputError(
                f"There is no folder {root / prefix}: give a folder of images, or an .npz file."
            ) from error
        except NotADirectoryError as error:
            raise InputError(f"{root / prefix} is a file: give a folder of images, or an .npz file.") from error
        except OSError as error:
            raise InputError(
                f"Cannot read the folder {root / prefix} ({error.strerror}): allow it, or move it."
            ) from error
    return sorted(names), n_ignored


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_image(entry: "os.DirEntry[str]") -> bool:
    _, dot, extension = entry.name.rpartition(".")
    if not dot or extension.lower() not in EXTENSIONS:
        return False
    # A link that leads nowhere is an image that cannot be read, and is reported as one; a pipe is none.
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError:
        return True


MAX_CLASSES = 1000
_NO_CLASS = ("unlabeled", "unlabelled")


@dataclass(frozen=True, slots=True, eq=False)
class Photos:
    """Images by name, in a stable order, with the labels that are known."""

    root: Path
    """The folder, or the .npz file."""
    names: tuple[str, ...]
    """Of files: the path below the root with "/" between its parts, sorted. Unique."""
    labels: NDArray[np.int64]
    """[N], `UNLABELLED` where unknown."""
    class_names: tuple[str, ...]
    """Sorted; label k means class_names[k]."""
    arrays: NDArray[np.uint8] | None
    """[N, H, W, 3] of an .npz file, None for image files."""
    n_ignored: int = 0
    """Files below the root that are no image by their extension; hidden ones are not counted."""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """The file of an image; there is none in an .npz."""
        assert self.arrays is None
        return self.root / self.names[index]


def find_photos(photos: Path, labels: Path | None = None) -> Photos:
    """Find the images of a folder, or of an .npz file, and their labels.

    Without `labels`, the folders in the folder are the classes: an image is of the class whose folder it lies in,
    however deep, and unlabelled in a folder `unlabeled` or `unlabelled`, or in no folder.

    With `labels`, a CSV of path and label, the names of folders mean nothing, and an image that it does not name is
    unlabelled. But where images lie in a folder `unlabeled`, the other folders are classes all the same: the CSV
    adds labels to theirs, and may not contradict them.

    Raises:
        InputError: there is nothing to learn from, or a row of the CSV is wrong.
    """
    if photos.suffix.lower() == ".npz" and not photos.is_dir():
        if labels is not None:
            raise InputError(f"{photos} holds its labels itself: leave {labels} away, or give a folder of images.")
        content = read_npz(photos)
        return _photos(photos, content.names, content.labels, content.class_names, arrays=content.images)
    names, n_ignored = images_below(photos)
    if not names:
        held = f"holds {n_ignored} files but no image" if n_ignored else "is empty"
        raise InputError(f"{photos} {held}: give a folder with images ({', '.join(sorted(EXTENSIONS))}).")
    known = [_class_of(name) for name in names]
    if labels is not None:
        if not any(_lies_unlabelled(name) for name in names):
            known = [""] * len(names)
        added = _labels_of(labels, photos, dict(zip(names, known, strict=True)))
        known = [added.get(name, label) for name, label in zip(names, known, strict=True)]
    return _photos(photos, names, known, n_ignored=n_ignored)


def printable(name: str) -> str:
    r"""The name with a backslash escape for what cannot be printed or written: control characters, foreign bytes.

    >>> printable("caf\udce9\n.jpg")
    'caf\\xe9\\x0a.jpg'
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", _escape, name)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    # What os.fsdecode makes of a byte that is not UTF-8.
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def _class_of(name: str) -> str:
    """The class of the folder that an image lies in, empty for none."""
    folder, slash, _ = name.partition("/")
    return printable(folder.strip()) if slash and not _lies_unlabelled(name) else ""


def _lies_unlabelled(name: str) -> bool:
    folder, slash, _ = name.partition("/")
    return bool(slash) and folder.strip().lower() in _NO_CLASS


def _labels_of(file: Path, root: Path, known: dict[str, str]) -> dict[str, str]:
    """name -> label of the rows that have one; `known` holds every image with the label it has already."""
    said: dict[str, LabelRow] = {}
    for row in read_labels(file):
        name = _name_of(row, file, root, known)
        if not row.label:
            continue
        before = said.setdefault(name, row)
        if before.label != row.label:
            raise InputError(
                f"{file} has '{printable(name)}' twice: {before.label!r} in row {before.number} and {row.label!r} in "
                f"row {row.number}. Delete one of them."
            )
        if known[name] not in ("", row.label):
            raise InputError(
                f"{file}, row {row.number} calls '{printable(name)}' {row.label!r}, but it lies in the folder of the "
                f"class {known[name]!r}: delete the row, or move the image."
            )
    return {name: row.label for name, row in said.items()}


def _name_of(row: LabelRow, file: Path, root: Path, names: Collection[str]) -> str:
    """The image that a row means: its path may start at the photos, at the CSV, or at the top of the disk."""
    if row.path in names:
        return row.path
    top = os.path.normpath(root.absolute())
    readings = [
        os.path.normpath(base / text)
        for text in (row.path, row.path.strip(), row.path.strip().replace("\\", "/"))
        for base in (root.absolute(), file.parent.absolute())
    ]
    inside = [
        whole.removeprefix(f"{start}/")
        for start in (top, os.path.realpath(root))
        for whole in readings
        if whole.startswith(f"{start}/")
    ]
    if found := next((name for name in inside if name in names), None):
        return found
    where = f"{file}, row {row.number}"
    if not is_text(row.path):
        raise InputError(f'{where} has a path that is not UTF-8 and names no image: save the file as "CSV UTF-8".')
    if not inside:
        raise InputError(f"{where}: '{printable(row.path)}' leads outside {root}. Name images in that folder only.")
    raise InputError(f"{where}: there is no image '{printable(row.path)}' in {root}. Mend the path, or delete the row.")


def _photos(
    root: Path,
    names: Sequence[str],
    known: Sequence[str],
    class_names: Iterable[str] = (),
    *,
    arrays: NDArray[np.uint8] | None = None,
    n_ignored: int = 0,
) -> Photos:
    used = {label for label in known if label}
    if not used:
        how = (
            "folders named after the classes, or a CSV file given with --labels"
            if arrays is None
            else "the array labels"
        )
        raise InputError(f"No image of {root} has a label: label a few of each class, by {how}.")
    if len(used) == 1:
        raise InputError(f"All labels of {root} are {used.pop()!r}: label images of at least one more class.")
    every = tuple(sorted(used.union(class_names)))
    if len(every) > MAX_CLASSES:
        raise InputError(f"{root} has {len(every)} classes: at most {MAX_CLASSES} can be learned, so join some.")
    index = {name: k for k, name in enumerate(every)}
    labels = np.array([index.get(label, UNLABELLED) for label in known], np.int64)
    return Photos(root, tuple(names), labels, every, arrays, n_ignored)
