"""Labels as a CSV file; images and labels as an .npz file."""

import csv
import errno
import os
from codecs import BOM_UTF8 as _BOM
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files import append_to, open_regular, read_regular, write_atomic
from meanteacher.files.arrays import read_arrays
from meanteacher.formats import count, escape_name

COLUMNS = ("path", "label")
CHOSEN = "chosen"
"""The column that the labelling page adds."""
RANDOM, NEXT, DIVERSE, REVIEW = "random", "next", "diverse", "review"
"""Values of that column: an image drawn at random, one that a fit asked for, one unlike the labelled ones, and a label
that a person has looked at again."""
SUSPICIOUS = 0.4
"""Value of the column `doubt` in the predictions of a fit from which a label is suspicious."""
NONE_OF_THESE = "none of these"
"""Label of a photo that belongs to none of the classes. No model learns it as a class."""
_PAGE_COLUMNS = (*COLUMNS, CHOSEN)
_SEPARATORS = ",;\t"
_AS_UTF8 = 'save it as "CSV UTF-8"'
_MAX_BYTES, _MAX_ROWS, _MAX_HEADER = 1 << 26, 2_000_000, 10_000
_ROWS_AT_ONCE = 4096
_CHANNELS = (1, 3)


class LabelRow(NamedTuple):
    """One row of a labels file."""

    number: int
    """Number of its first line; the header is line 1."""
    path: str
    label: str
    """Label without surrounding space; empty for an unlabelled image."""
    chosen: str | None = None
    """Why the labelling page asked about the image; empty for a label from elsewhere, None without that column."""


def read_labels(path: Path) -> list[LabelRow]:
    """The rows of a labels file, in its order. A path may contain bytes that are not UTF-8, a label may not."""
    rows = [
        LabelRow(number, name, label.strip(), *(cell.strip() for cell in chosen))
        for number, (name, label, *chosen) in read_table(path, COLUMNS, [CHOSEN])
    ]
    for row in rows:
        if not row.path.strip():
            raise InputError(
                f"{path}, row {row.number} has the label {row.label!r} but no path: add the path, or delete the row."
            )
        if not is_text(row.label):
            raise InputError(f"{path}, row {row.number} has a label that is not UTF-8: {_AS_UTF8}.")
    return rows


def write_labels(path: Path, rows: Iterable[LabelRow]) -> None:
    """Write a new labels file with the column `chosen`, atomically. `read_labels` returns the same rows."""
    _write(path, [_PAGE_COLUMNS, *((row.path, row.label, row.chosen or "") for row in rows)])


def prepare_to_append(path: Path) -> list[str]:
    """The columns of a labels file, which is written anew if no row can be appended to it as it is.

    A file of another program may have other separators, no column `chosen`, or no end of the last line.
    """
    try:
        with open_regular(path, follow=False) as file:
            first = file.readline(_MAX_HEADER).removeprefix(_BOM).decode("utf-8", "surrogateescape")
            file.seek(-1, os.SEEK_END)
            ends = file.read(1) == b"\n"
    except OSError:
        first, ends = "", False
    names = next(csv.reader([first]), [])
    if not (ends and {*_PAGE_COLUMNS} <= {*names}):
        names, rows = _parsed(path, COLUMNS)
        names += [CHOSEN] * (CHOSEN not in names)
        _write(path, [names, *([*cells, *[""] * (len(names) - len(cells))] for _, cells in rows)])
    return names


def append_label(path: Path, columns: Sequence[str], row: LabelRow) -> None:
    """Append a row to a file with these columns: the whole row is on the disk, or the file is as it was."""
    cells = {"path": row.path, "label": row.label, CHOSEN: row.chosen or ""}
    line = _as_csv([[cells.get(name, "") for name in columns]])
    try:
        with append_to(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            try:
                if os.write(file.fileno(), line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), n_bytes)
                raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    try:
        write_atomic(path, _BOM + _as_csv(rows))
    except OSError as error:
        raise _cannot_write(path, error) from error


def _as_csv(rows: Iterable[Sequence[str]]) -> bytes:
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(f"Could not write {path} ({error.strerror}): make room, or make it and its folder writable.")


def is_text(cell: str) -> bool:
    """Whether the cell is valid UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in cell)


def read_table(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> list[tuple[int, list[str]]]:
    """The cells of these columns, each row with the number of its first line; empty rows are skipped.

    The cells of the optional columns follow if the file has them. The file may have further columns, and they may be in
    any order. The separator is that of the header: comma, semicolon or tab. A byte that is not UTF-8 becomes a
    surrogate.
    """
    names, rows = _parsed(path, columns)
    wanted = [*columns, *(column for column in optional if column in names)]
    at = [names.index(column.strip().lower()) for column in wanted]
    return [(line, [cells[k] if k < len(cells) else "" for k in at]) for line, cells in rows]


def _parsed(path: Path, columns: Sequence[str]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of all columns of a table with at least these, and its rows with the numbers of their first lines."""
    header = ",".join(columns)
    try:
        data = read_regular(path, _MAX_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}: expected a CSV file with the columns {header}.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}): make it readable, or give another file.") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is UTF-16 instead of UTF-8: {_AS_UTF8}.")
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if not text.strip():
        raise InputError(f"{path} is empty: its first row must be {header}.")
    separator, names = _header(path, StringIO(text, newline="").readline().strip(), columns)
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((line, cells))
                if len(rows) > _MAX_ROWS:
                    raise InputError(f"{path} has more than {_MAX_ROWS:,} rows, which is not supported: shorten it.")
            # A quoted cell may contain line breaks.
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, row {line} cannot be read ({error}): check its double quotes.") from error
    needed = max(names.index(column.strip().lower()) for column in columns[:2])
    for line, cells in rows:
        # The last cells of a row may be missing, but not the first two: a path and what is said of it.
        if not needed < len(cells) <= len(names):
            raise InputError(
                f"{path}, row {line} has {count(len(cells), 'cell')} instead of {len(names)}: "
                f'put a name that contains a "{separator}" in double quotes.'
            )
    _first, *content = rows
    if content and len(content[-1][1]) < len(names) and not text.endswith(("\n", "\r")):
        # A process may have been killed, or a disk full, in the middle of this row.
        raise InputError(f"{path}, row {content[-1][0]}, the last one, is incomplete: complete it, or delete it.")
    return names, content


def _header(path: Path, first: str, columns: Sequence[str]) -> tuple[str, list[str]]:
    """The separator of a table with this first row, and the names of all its columns in lower case."""
    # A longer row is not a list of columns, and exceeds the limit of the csv module.
    for separator in _SEPARATORS if len(first) <= _MAX_HEADER else ():
        try:
            cells = next(csv.reader([first], delimiter=separator), [])
        except csv.Error:
            continue
        names = [cell.strip().lower() for cell in cells]
        if {column.strip().lower() for column in columns} <= set(names):
            return separator, names
    shown = f"{escape_name(first[:60])!r}{'' if len(first) <= 60 else ' …'}"
    raise InputError(f"{path} has the columns {shown} instead of {','.join(columns)}: correct its first row.")


@dataclass(frozen=True, slots=True, eq=False)
class Npz:
    """The content of an .npz file."""

    images: NDArray[np.uint8]
    """[N, H, W, 3]"""
    labels: tuple[str, ...]
    """Names of classes; empty for unlabelled images."""
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    """Classes that the file declares, with or without labels; empty if it declares none."""


def read_npz(path: Path) -> Npz:
    """Read `images`, and `labels`, `names` and `class_names` if they exist. Pickled objects are refused."""
    arrays = read_arrays(path, ["images"], ["labels", "names", "class_names"])
    images = _images(path, arrays["images"])
    n = len(images)
    for name in ("labels", "names"):
        if name in arrays and arrays[name].shape != (n,):
            raise InputError(f"{path}: {name} has the shape {arrays[name].shape}, expected ({n},): one per image.")
    class_names = _texts(path, "class_names", arrays["class_names"]) if "class_names" in arrays else ()
    if not all(class_names):
        raise InputError(f"{path}: class_names contains an empty name: name every class.")
    _check_unique(path, "class_names", class_names)
    names = _texts(path, "names", arrays["names"]) if "names" in arrays else tuple(f"image {k}" for k in range(n))
    _check_unique(path, "names", names)
    labels = _labels(path, arrays["labels"], class_names) if "labels" in arrays else ("",) * n
    return Npz(images, labels, names, class_names)


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
    # They are converted in parts, because floats take eight times the memory.
    for start in range(0, len(images), _ROWS_AT_ONCE):
        part = images[start : start + _ROWS_AT_ONCE]
        out[start : start + len(part)] = part if part.dtype == np.uint8 else _from_fractions(path, part)
    return out


def _from_fractions(path: Path, part: NDArray[np.generic]) -> NDArray[np.uint8]:
    low, high = float(np.min(part)), float(np.max(part))
    # The condition is negated, because every comparison with NaN is false.
    if not (low >= 0 and high <= 1):
        raise InputError(f"{path}: images is float from {low:g} to {high:g}, expected 0 to 1, or uint8: rescale it.")
    return np.rint(np.asarray(part, np.float64) * 255).astype(np.uint8)


def _labels(path: Path, labels: NDArray[np.generic], class_names: Sequence[str]) -> tuple[str, ...]:
    if labels.dtype.kind not in "iu":
        texts = _texts(path, "labels", labels)
        if class_names and (unknown := set(texts) - set(class_names) - {""}):
            raise InputError(
                f"{path}: labels contains {min(unknown)!r}, which is not in class_names: correct one of them."
            )
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
    texts = tuple(str(value).strip() for value in values)
    if not all(map(is_text, texts)):
        raise InputError(f"{path}: {name} contains text that is not Unicode: correct it.")
    return texts


def _check_unique(path: Path, name: str, texts: Sequence[str]) -> None:
    if texts and (most := Counter(texts).most_common(1)[0])[1] > 1:
        raise InputError(f"{path}: {name} contains {most[0]!r} {most[1]} times: make them unique.")
