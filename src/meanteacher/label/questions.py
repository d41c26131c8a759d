"""What a fit left to ask: the rows of its label-next.csv, and the names of its classes."""

import csv
import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from meanteacher.core import InputError
from meanteacher.fit.photos import Photos, printable

LABEL_NEXT = "label-next.csv"
_COLUMNS = ["path", "guess", "confidence", "reason"]


@dataclass(frozen=True, slots=True)
class Question:
    """An image to label, and what the model makes of it."""

    index: int
    """Among the folder's images."""
    guess: str
    """Empty where there is none."""
    confidence: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit says of itself."""

    class_names: tuple[str, ...]
    source: str
    """Where its labels came from: "class folders", "csv" or "npz"."""
    labels: Path | None
    """The labels file it was given, where it says which."""


def read_fitted(run: Path) -> Fitted:
    """Read the fit's fit.json.

    Raises:
        InputError: this is not the folder of a finished fit.
    """
    if not run.is_dir():
        raise InputError(f"There is no folder {run}: give the folder that `meanteacher fit` wrote (its --out).")
    try:
        data = json.loads((run / "fit.json").read_bytes())["data"]
        class_names = tuple(str(name) for name in data["class_names"])
        labels = data.get("labels_file")
        return Fitted(class_names, str(data["source"]), Path(labels) if labels else None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run} has no fit.json that can be read: give the folder of a finished `meanteacher fit` (its --out)."
        ) from error


def read_questions(run: Path, photos: Photos, class_names: tuple[str, ...]) -> tuple[Question, ...]:
    """The rows of label-next.csv whose images are there, in its order.

    Raises:
        InputError: it is missing or empty, or names no image of the folder.
    """
    rows = _rows(run / LABEL_NEXT)
    if not rows:
        raise InputError(f"{run / LABEL_NEXT} names no image: there is nothing left whose label would help.")
    by_name = {printable(name): index for index, name in enumerate(photos.names)}
    questions = {}
    for path, guess, confidence, reason in rows:
        index = by_name.get(_bare(printable(path), by_name))
        if index is not None:
            questions[index] = Question(index, _bare(guess, class_names), _fraction(confidence), reason)
    if not questions:
        raise InputError(
            f"{photos.root} holds none of the {len(rows)} images of {run / LABEL_NEXT}, such as "
            f"{printable(rows[0][0])!r}: give the folder of images that the fit was given."
        )
    return tuple(questions.values())


def _rows(path: Path) -> list[list[str]]:
    try:
        # A file's name need not be UTF-8.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [_COLUMNS]
    except (OSError, csv.Error) as error:
        raise InputError(f"Cannot read {path} ({error}): fit again to have it written.") from error
    if header != _COLUMNS or any(len(row) != len(_COLUMNS) for row in rows):
        raise InputError(f"{path} is not a table of {', '.join(_COLUMNS)}: fit again to have it written.")
    return rows


def _bare(cell: str, known: Container[str]) -> str:
    """Without the apostrophe that keeps a spreadsheet from taking a name for a formula."""
    return cell[1:] if cell.startswith("'") and cell not in known and cell[1:] in known else cell


def _fraction(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
