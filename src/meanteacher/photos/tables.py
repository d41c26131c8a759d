"""Labels from a CSV file; images and labels from an .npz file."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files import write_atomic

COLUMNS = ("path", "label")
_HEADER = ",".join(COLUMNS)
_SEPARATORS = ",;\t"
_AS_UTF8 = 'save it as "CSV UTF-8"'


class LabelRow(NamedTuple):
    """One row as it stands in the file."""

    number: int
    """As a person counts: the line it begins on, where the header is 1."""
    path: str
    label: str
    """Without surrounding space; empty for an image that has none."""


def read_labels(path: Path) -> list[LabelRow]:
    """The rows of a labels file, in its order.

    Commas, semicolons (spreadsheets in much of Europe write them) and tabs are told apart by the header. A path may
    hold bytes that are not UTF-8, as a file's name may; a label may not.

    Raises:
        InputError: the file is not there, is not a labels file, or a row of it is wrong.
    """
    text = _read_text(path)
    separator = _separator(path, text)
    rows = []
    for number, cells in _records(path, text, separator):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(COLUMNS):
            raise InputError(
                f"{path}, row {number} has {len(cells)} cells instead of {len(COLUMNS)}: "
                f'put a name that holds a "{separator}" in double quotes.'
            )
        name, label = cells[0], cells[1].strip()
        if not name.strip():
            raise InputError(f"{path}, row {number} has the label {label!r} but no path: name the image, or delete it.")
        if not is_text(label):
            raise InputError(f"{path}, row {number} has a label that is not UTF-8: {_AS_UTF8}.")
        rows.append(LabelRow(number, name, label))
    # The header.
    return rows[1:]


def write_labels(path: Path, rows: Mapping[str, str]) -> None:
    """Write path -> label in the mapping's order: whole or not at all, and read back as it was given."""
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(rows.items())
    try:
        write_atomic(path, text.getvalue().encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise InputError(
            f"Could not write {path} ({error.strerror}): make room, or make its folder writable."
        ) from error


def is_text(cell: str) -> bool:
    """Whether it holds no byte that is not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in cell)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"There is no labels file {path}: give a CSV file with the columns {_HEADER}.") from error
    except OSError as error:
        raise InputError(f"Cannot read the labels file {path} ({error.strerror}).") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is UTF-16 instead of UTF-8: {_AS_UTF8}.")
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if not text.strip():
        raise InputError(f"{path} is empty: its first row must be {_HEADER}, followed by a row for each image.")
    return text


def _separator(path: Path, text: str) -> str:
    first = StringIO(text, newline="").readline().strip()
    for separator in _SEPARATORS:
        cells = next(csv.reader([first], delimiter=separator), [])
        if tuple(cell.strip().lower() for cell in cells) == COLUMNS:
            return separator
    raise InputError(f"{path} begins with the columns {first!r} instead of {_HEADER}: mend its first row.")


def _records(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line it begins on: a quoted cell may hold line breaks."""
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, row {line} cannot be read ({error}): check its double quotes.") from error


_ROWS_AT_ONCE = 4096
_CHANNELS = (1, 3)


@dataclass(frozen=True, slots=True, eq=False)
class Npz:
    """What the file holds, in one form."""

    images: NDArray[np.uint8]
    """[N, H, W, 3]"""
    labels: tuple[str, ...]
    """Empty where unknown."""
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    """The classes that the file declares, with labels or without; none where it does not."""


def read_npz(path: Path) -> Npz:
    """Read `images`, and `labels`, `names` and `class_names` where they are there. Never unpickles.

    Raises:
        InputError: says which array is wrong, and what it should be.
    """
    arrays = _arrays(path)
    if "images" not in arrays:
        raise InputError(f"{path} holds {', '.join(arrays) or 'nothing'} but no array images: save it with that name.")
    images = _images(path, arrays["images"])
    n = len(images)
    for name in ("labels", "names"):
        if name in arrays and arrays[name].shape != (n,):
            raise InputError(f"{path}: {name} has the shape {arrays[name].shape}, expected ({n},): one for each image.")
    class_names = _texts(path, "class_names", arrays["class_names"]) if "class_names" in arrays else ()
    if not all(class_names):
        raise InputError(f"{path}: class_names holds an empty one: give each class a name.")
    _check_unique(path, "class_names", class_names)
    names = _texts(path, "names", arrays["names"]) if "names" in arrays else tuple(f"image {k}" for k in range(n))
    _check_unique(path, "names", names)
    labels = _labels(path, arrays["labels"], class_names) if "labels" in arrays else ("",) * n
    return Npz(images, labels, names, class_names)


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}: give a folder of images, or an .npz file.") from error
    # A damaged archive makes the reader fail in many ways: BadZipFile, EOFError, zlib.error, ValueError ...
    except Exception as error:
        raise InputError(
            f"{path} cannot be read ({error}): write it with numpy.savez, from arrays of numbers or of str."
        ) from error


def _images(path: Path, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    shape = images.shape
    if images.ndim == 3:
        images = images[..., None]
    elif images.ndim == 4 and shape[3] not in _CHANNELS and shape[1] in _CHANNELS:
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[3] not in _CHANNELS or 0 in images.shape:
        raise InputError(
            f"{path}: images has the shape {shape}, expected [N, H, W], [N, H, W, C] or [N, C, H, W] with C of 1 or 3."
        )
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(f"{path}: images is {images.dtype}, expected uint8, or float from 0 to 1: convert it.")
    out = np.empty((*images.shape[:3], 3), np.uint8)
    # In parts: floats take eight times the memory.
    for start in range(0, len(images), _ROWS_AT_ONCE):
        part = images[start : start + _ROWS_AT_ONCE]
        out[start : start + len(part)] = part if part.dtype == np.uint8 else _from_fractions(path, part)
    return out


def _from_fractions(path: Path, part: NDArray[np.generic]) -> NDArray[np.uint8]:
    low, high = float(np.min(part)), float(np.max(part))
    # Not the other way round: a comparison with NaN is false.
    if not (low >= 0 and high <= 1):
        raise InputError(f"{path}: images is float from {low:g} to {high:g}, expected 0 to 1, or uint8: rescale it.")
    return np.rint(np.asarray(part, np.float64) * 255).astype(np.uint8)


def _labels(path: Path, labels: NDArray[np.generic], class_names: Sequence[str]) -> tuple[str, ...]:
    if labels.dtype.kind not in "iu":
        texts = _texts(path, "labels", labels)
        if class_names and (unknown := set(texts) - set(class_names) - {""}):
            raise InputError(f"{path}: labels holds {min(unknown)!r}, which is not in class_names: add it, or mend it.")
        return texts
    numbers: list[int] = labels.tolist()
    most = len(class_names) - 1 if class_names else max(numbers)
    for k, number in enumerate(numbers):
        if not UNLABELLED <= number <= most:
            raise InputError(f"{path}: labels[{k}] is {number}, expected {UNLABELLED} for none, or 0 to {most}.")
    return tuple("" if k == UNLABELLED else class_names[k] if class_names else str(k) for k in numbers)


def _texts(path: Path, name: str, values: NDArray[np.generic]) -> tuple[str, ...]:
    if values.ndim != 1 or values.dtype.kind != "U":
        raise InputError(
            f"{path}: {name} is {values.dtype} of shape {values.shape}, expected a list of str: convert it."
        )
    return tuple(str(value).strip() for value in values)


def _check_unique(path: Path, name: str, texts: Sequence[str]) -> None:
    if texts and (most := Counter(texts).most_common(1)[0])[1] > 1:
        raise InputError(f"{path}: {name} holds {most[0]!r} {most[1]} times: make them differ.")
