"""labels.csv: which class each image is of. People write it by hand, in a spreadsheet, or on the labelling page."""

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from meanteacher.core import InputError
from meanteacher.fit.whole import write_whole

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
        write_whole(path, text.getvalue().encode("utf-8", "surrogateescape"))
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
