"""The images of a folder or an .npz file, and the labels of some of them."""

import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files.images import UNSUPPORTED
from meanteacher.formats import count, escape_name
from meanteacher.photos.folder.tables import (
    COLUMNS,
    NONE_OF_THESE,
    RANDOM,
    REVIEW,
    LabelRow,
    is_text,
    read_labels,
    read_npz,
    read_table,
)

_READ = "bmp gif heic heif hif jpeg jpg pgm png ppm tif tiff webp"
EXTENSIONS = frozenset(_READ.split())
"""Extensions of images that can be read. Photos of other formats are found as well, and listed as unreadable."""
MAX_CLASSES = 1000
_UNLABELLED_FOLDERS = ("unlabeled", "unlabelled")


def images_below(root: Path) -> tuple[list[str], int]:
    """The sorted names of the photos at any depth, and the number of other files. Hidden files are ignored.

    Links to folders are followed, but not to one that contains the photos themselves, such as "/".
    """
    names: list[str] = []
    n_ignored = 0
    seen = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        # Links come last, so that they do not change the name of a file. Each folder is read once, because links may
        # form a loop.
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
                        if not entry.is_symlink():
                            folders.append(f"{prefix}{entry.name}/")
                        elif not Path(os.path.realpath(root)).is_relative_to(os.path.realpath(entry.path)):
                            links.append(f"{prefix}{entry.name}/")
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
                f"Cannot read the folder {root / prefix} ({error.strerror}): make it readable, or move it elsewhere."
            ) from error
    return sorted(names), n_ignored


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_image(entry: "os.DirEntry[str]") -> bool:
    _, dot, extension = entry.name.rpartition(".")
    if not dot or extension.lower() not in EXTENSIONS | UNSUPPORTED:
        return False
    # A broken link is reported as an image that cannot be read. A pipe is not an image.
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError:
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Photos:
    """Images by name, in a stable order, with their labels as far as they are known."""

    root: Path
    """The folder, or the .npz file."""
    names: tuple[str, ...]
    """Unique names. Those of files are sorted paths below the root, with "/" between their parts."""
    labels: NDArray[np.int64]
    """[N], with `UNLABELLED` for unknown labels."""
    class_names: tuple[str, ...]
    """Sorted names; label k means class_names[k]."""
    arrays: NDArray[np.uint8] | None
    """Pixels [N, H, W, 3] of an .npz file; None for image files."""
    n_ignored: int = 0
    """Number of files below the root that do not have the extension of an image; hidden files do not count."""
    none_of_these: frozenset[int] = frozenset()
    """Positions of images that a person assigned to none of the classes. They are unlabelled, and nothing is learned
    from them."""
    random: frozenset[int] = frozenset()
    """Positions of labelled images that the labelling page had drawn at random: unbiased test images."""
    is_wrapped: bool = False
    """Whether the root is the only folder in the one that was given."""
    labels_file: Path | None = None
    """The CSV file of the labels."""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """The file of an image, which an image of an .npz file does not have."""
        assert self.arrays is None
        return self.root / self.names[index]

    def picture(self, index: int) -> Path | NDArray[np.uint8]:
        """An image as the decoder takes it: its file, or its pixels in an .npz."""
        return self.path(index) if self.arrays is None else self.arrays[index]


def find_photos(photos: Path, labels: Path | None = None, *, min_classes: int = 2) -> Photos:
    """Find the images of a folder, or of an .npz file, and their labels.

    Without `labels`, the top-level folders are the classes: an image at any depth has the class of its folder. It is
    unlabelled in a folder `unlabeled` or `unlabelled`, or outside all folders. A folder with nothing but one folder of
    folders in it, as some archives have it, is entered.

    With `labels`, a CSV of path and label, the folders have no meaning, and images that are not in the CSV are
    unlabelled. There is one exception: if a folder `unlabeled` contains images, the other folders are still classes,
    and the CSV adds labels. It may not contradict the folders, except for answers on the labelling page.
    """
    if photos.suffix.lower() == ".npz" and not photos.is_dir():
        if labels is not None:
            raise InputError(f"{photos} contains its labels: leave out {labels}, or give a folder of images.")
        npz = read_npz(photos)
        return _photos(photos, npz.names, npz.labels, npz.class_names, arrays=npz.images, min_classes=min_classes)
    names, n_ignored = _some_images_below(photos)
    is_wrapped = labels is None and _is_wrapped(names)
    if is_wrapped:
        photos /= names[0].partition("/")[0]
        names = [name.partition("/")[2] for name in names]
    known = folder_labels(names, beside_table=False) if labels is None else given_labels(photos, names, labels)
    given = [known.get(name, _NOTHING) for name in names]
    found = _photos(
        photos,
        names,
        ["" if each.is_none else each.label for each in given],
        n_ignored=n_ignored,
        min_classes=min_classes,
    )
    return replace(
        found,
        is_wrapped=is_wrapped,
        labels_file=labels,
        none_of_these=frozenset(k for k, each in enumerate(given) if each.is_none),
        random=frozenset(k for k, each in enumerate(given) if each.chosen == RANDOM and not each.is_none),
    )


def find_files(photos: Path) -> Photos:
    """Find the images of a folder, all of them unlabelled, whatever its folders are called."""
    if photos.suffix.lower() == ".npz" and not photos.is_dir():
        raise InputError(f"{photos} contains its labels: add labels to its array labels, or give a folder of images.")
    names, n_ignored = _some_images_below(photos)
    return _photos(photos, names, [""] * len(names), n_ignored=n_ignored, min_classes=0)


def _some_images_below(root: Path) -> tuple[list[str], int]:
    names, n_ignored = images_below(root)
    if not names:
        content = f"contains {count(n_ignored, 'file')} but no image" if n_ignored else "is empty"
        raise InputError(f"{root} {content}: give a folder with images ({', '.join(sorted(EXTENSIONS))}).")
    return names, n_ignored


class Given(NamedTuple):
    """The label of an image, and the history of its rows in a labels file."""

    label: str
    """Class of its folder, or label in its last row."""
    chosen: str = ""
    """Why the labelling page asked about it first; empty for a label from elsewhere."""
    is_reviewed: bool = False
    """Whether a person has confirmed or corrected the label in a review."""

    @property
    def is_none(self) -> bool:
        return self.label.casefold() == NONE_OF_THESE


_NOTHING = Given("")


def folder_labels(names: Sequence[str], *, beside_table: bool) -> dict[str, Given]:
    """name -> class of its top-level folder. Beside a labels file, folders are classes only if one is `unlabelled`."""
    if beside_table and not any(map(_in_unlabelled_folder, names)):
        return {}
    return {name: Given(label) for name in names if (label := class_of(name))}


def given_labels(root: Path, names: Sequence[str], file: Path) -> dict[str, Given]:
    """name -> label, from the rows of a labels file and from the folders."""
    labels = folder_labels(names, beside_table=True)
    return labels | _rows_of(file, root, {name: labels[name].label if name in labels else "" for name in names})


def _is_wrapped(names: Sequence[str]) -> bool:
    """Whether all images are in one folder, which is not `unlabelled`, and there in at least two folders."""
    tops = {name.partition("/")[0] for name in names}
    second = {rest.partition("/")[0] for name in names if "/" in (rest := name.partition("/")[2])}
    return len(tops) == 1 and len(second) > 1 and not _in_unlabelled_folder(names[0])


def class_of(name: str) -> str:
    """The class of an image by its top-level folder; empty if unlabelled."""
    folder, slash, _ = name.partition("/")
    return escape_name(folder.strip()) if slash and not _in_unlabelled_folder(name) else ""


def _in_unlabelled_folder(name: str) -> bool:
    folder, slash, _ = name.partition("/")
    return bool(slash) and folder.strip().lower() in _UNLABELLED_FOLDERS


def column_of(photos: Photos, column: str) -> list[str]:
    """The cell of each image in a further column of the labels file; empty if the file does not name the image."""
    known, file = dict.fromkeys(photos.names, ""), photos.labels_file
    if file is None:
        raise InputError(
            f"Photos are grouped by folder, time, or a column of the labels file; {column!r} is none of the first two, "
            f"and there is no labels file. Give one (--labels) with the columns path, label and {column}."
        )
    for number, (path, _, value) in read_table(file, [*COLUMNS, column]):
        name = _name_of(LabelRow(number, path, value), file, photos.root, known)
        # The labelling page appends rows without a value.
        known[name] = value.strip() or known[name]
    return list(known.values())


def _rows_of(file: Path, root: Path, folders: dict[str, str]) -> dict[str, Given]:
    """name -> label, for the images whose last row has a label. `folders` maps every image to the class of its folder.

    The labelling page appends a row for every answer and undo, so that the last row of an image counts. A table without
    its column `chosen` may not contradict itself.
    """
    labelled: dict[str, LabelRow] = {}
    first: dict[str, str] = {}
    for row in read_labels(file):
        name = _name_of(row, file, root, folders)
        if not row.label and not row.chosen:
            continue
        before = labelled.get(name, row)
        if row.chosen is None and before.label != row.label:
            raise InputError(
                f"{file} has '{escape_name(name)}' twice: {before.label!r} in row {before.number} and {row.label!r} in "
                f"row {row.number}. Delete one of them."
            )
        if not row.chosen and row.label and folders[name] not in ("", row.label):
            raise InputError(
                f"{file}, row {row.number} labels '{escape_name(name)}' as {row.label!r}, but it is in the folder of "
                f"the class {folders[name]!r}: delete the row, or move the image."
            )
        labelled[name] = row
        first[name] = first.get(name) or row.chosen or ""
    return {name: Given(row.label, first[name], row.chosen == REVIEW) for name, row in labelled.items() if row.label}


def _name_of(row: LabelRow, file: Path, root: Path, names: Collection[str]) -> str:
    """The image of a row, whose path may be absolute, or relative to the photos or to the CSV."""
    if row.path in names:
        return row.path
    top = os.path.normpath(root.absolute())
    candidates = [
        os.path.normpath(base / text)
        for text in (row.path, row.path.strip(), row.path.strip().replace("\\", "/"))
        for base in (root.absolute(), file.parent.absolute())
    ]
    inside = [
        whole.removeprefix(f"{start}/")
        for start in (top, os.path.realpath(root))
        for whole in candidates
        if whole.startswith(f"{start}/")
    ]
    if found := next((name for name in inside if name in names), None):
        return found
    where = f"{file}, row {row.number}"
    if not is_text(row.path):
        raise InputError(f'{where} has a path that is not UTF-8 and matches no image: save the file as "CSV UTF-8".')
    if not inside:
        raise InputError(f"{where}: '{escape_name(row.path)}' is outside {root}. List only images of that folder.")
    raise InputError(
        f"{where}: there is no image '{escape_name(row.path)}' in {root}. Correct the path, or delete the row."
    )


def _photos(
    root: Path,
    names: Sequence[str],
    known: Sequence[str],
    class_names: Iterable[str] = (),
    *,
    arrays: NDArray[np.uint8] | None = None,
    n_ignored: int = 0,
    min_classes: int,
) -> Photos:
    used = {label for label in known if label}
    if not used and min_classes > 0:
        how = (
            f"`meanteacher label {shlex.quote(str(root))} --classes NAME,NAME`, with folders named after the classes, "
            "or with a CSV file given with --labels"
            if arrays is None
            else "the array labels"
        )
        raise InputError(f"No image of {root} has a label: label a few of each class with {how}.")
    if len(used) == 1 and min_classes > 1:
        raise InputError(f"All labels of {root} are {used.pop()!r}: label images of at least one more class.")
    every = tuple(sorted(used.union(class_names)))
    if len(every) > MAX_CLASSES:
        raise InputError(f"{root} has {len(every)} classes: at most {MAX_CLASSES} are supported. Merge some of them.")
    index = {name: k for k, name in enumerate(every)}
    labels = np.array([index.get(label, UNLABELLED) for label in known], np.int64)
    return Photos(root, tuple(names), labels, every, arrays, n_ignored)
