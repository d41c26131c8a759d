"""The labelling session: which images are asked about, what was answered, and the file it is written to."""

import csv
import json
import os
import re
import shlex
from collections import deque
from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files import HeldError, locked
from meanteacher.formats import certainty
from meanteacher.label.page import class_keys
from meanteacher.photos.find import Photos, find_photos, printable
from meanteacher.photos.tables import read_labels, write_labels

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


MAX_NAME = 100
_SECONDS = 10.0
"""How long one answer waits for another sitting to write its own."""


@dataclass(frozen=True, slots=True)
class _Done:
    """What undo takes back."""

    position: int
    skipped: bool
    before: str | None
    """The label that stood in the file; None where the image had no row."""


class Session:
    """Questions in their order, each answered, skipped or still to be asked. Safe to use from many threads."""

    def __init__(
        self, photos: Photos, questions: Sequence[Question], class_names: Sequence[str], *, file: Path, command: str
    ) -> None:
        self.photos, self.questions, self.file, self.command = photos, tuple(questions), file, command
        self._keys = class_keys(class_names)
        self._known = {
            name: photos.class_names[label]
            for name, label in zip(photos.names, photos.labels, strict=True)
            if label != UNLABELLED
        }
        self._to_ask = deque(k for k in range(len(self.questions)) if self._name(k) not in self._known)
        self._done: list[_Done] = []
        self._skipped: list[int] = []
        self._answers: dict[str, str] = {}
        self._lock = Lock()

    @property
    def n_answered(self) -> int:
        """In this sitting; waits until an answer that is being written is written."""
        with self._lock:
            return len(self._answers)

    @property
    def n_left(self) -> int:
        """Images without a label, skipped ones among them."""
        with self._lock:
            return len(self._to_ask) + len(self._skipped)

    def answer(self, position: int, label: str) -> None:
        """Label the image that is being asked about; the file holds it when this returns.

        An answer to any other image is dropped: it comes from a second window, or from a key pressed twice.

        Raises:
            InputError: the name of the class will not do, or the file cannot be written. The question remains.
        """
        with self._lock:
            if not self._asks(position):
                return
            label = _checked(label)
            before = self._write(self._name(position), label)
            self._answers[self._name(position)] = label
            self._done.append(_Done(self._to_ask.popleft(), skipped=False, before=before))
            if label not in self._keys:
                self._keys = class_keys([*self._keys, label], before=self._keys)

    def skip(self, position: int) -> None:
        """Leave the image that is being asked about without a label. The next sitting asks again."""
        with self._lock:
            if self._asks(position):
                self._done.append(_Done(self._to_ask.popleft(), skipped=True, before=None))
                self._skipped.append(position)

    def undo(self) -> None:
        """Take the last answer or skip back, and ask that image again.

        A label that another sitting has written in the meantime stays in the file.

        Raises:
            InputError: the file cannot be written.
        """
        with self._lock:
            if not self._done:
                return
            last = self._done[-1]
            if last.skipped:
                self._skipped.remove(last.position)
            else:
                name = self._name(last.position)
                self._write(name, last.before, instead_of=self._answers[name])
                del self._answers[name]
            self._to_ask.appendleft(self._done.pop().position)

    def ask_skipped_again(self) -> None:
        with self._lock:
            self._to_ask.extend(self._skipped)
            self._skipped.clear()
            self._done = [done for done in self._done if not done.skipped]

    def state(self) -> dict[str, Any]:
        """All that the page shows, as plain values; names are fit to be printed."""
        with self._lock:
            return {
                "question": self._question(self._to_ask[0]) if self._to_ask else None,
                "total": len(self.questions),
                "labelled": len(self.questions) - len(self._to_ask) - len(self._skipped),
                "skipped": len(self._skipped),
                "last": {"label": self._label_of(self._done[-1])} if self._done else None,
                "classes": [{"name": name, "keys": keys} for name, keys in self._keys.items()],
                "labels_file": printable(str(self.file)),
                "written": self.file.exists(),
                "command": printable(self.command),
            }

    def _question(self, position: int) -> dict[str, Any]:
        question = self.questions[position]
        return {
            "position": position,
            "number": position + 1,
            "name": printable(self._name(position)),
            "guess": question.guess,
            "confidence": None if question.confidence is None else certainty(question.confidence),
            "reason": question.reason,
        }

    def _label_of(self, done: _Done) -> str | None:
        return None if done.skipped else self._answers[self._name(done.position)]

    def _asks(self, position: int) -> bool:
        return bool(self._to_ask) and self._to_ask[0] == position

    def _name(self, position: int) -> str:
        return self.photos.names[self.questions[position].index]

    def _write(self, name: str, label: str | None, instead_of: str | None = None) -> str | None:
        """Set one row of the file, or delete it, and return what it was. What others wrote meanwhile is kept.

        With `instead_of`, only where the row still says that.
        """
        with _alone(self.file):
            rows = _labels_in(self.file) if self.file.exists() else self._known | self._answers
            before = rows.get(name)
            if instead_of not in (None, before):
                return before
            if label is None:
                rows.pop(name, None)
            else:
                rows[name] = label
            write_labels(self.file, rows)
        return before


def open_session(photos: Path, run: Path, labels: Path | None = None) -> Session:
    """Begin with what the fit in `run` asks about, or go on where an earlier sitting stopped.

    The answers go to `labels`, by default labels.csv in `run`. Where that file is there already, rows are added to
    it. Otherwise it starts with every label that the fit had, from its labels file or from the folders, because a
    fit takes a labels file for the whole truth.

    Raises:
        InputError: one of the folders is not what it should be, or there is nothing to ask.
    """
    fitted = read_fitted(run)
    file = labels or run / "labels.csv"
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise InputError(f"Cannot write to the folder {file.parent}: make it, or name another file with --labels.")
    known = file if file.exists() else fitted.labels
    if known is None and fitted.source == "csv":
        raise InputError(f"{run} does not say which labels file it was fitted with: give that file with --labels.")
    found = find_photos(photos, known)
    if found.arrays is not None:
        raise InputError(f"{photos} holds its labels itself: add them to its array labels, and fit again.")
    class_names = fitted.class_names + tuple(name for name in found.class_names if name not in fitted.class_names)
    questions = read_questions(run, found, class_names)
    command = ["meanteacher", "fit", photos, "--labels", file, "--from", run, "--out", next_folder(run)]
    return Session(found, questions, class_names, file=file, command=shlex.join(map(str, command)))


def next_folder(run: Path) -> Path:
    """The folder for the next round: the first of run-2, run-3, … that is not there yet.

    >>> next_folder(Path("flowers")).as_posix(), next_folder(Path("fits/flowers-2")).as_posix()
    ('flowers-2', 'fits/flowers-3')
    """
    # "." and ".." have no name of their own.
    run = run if run.name not in ("", "..") else run.resolve()
    # A larger number is more likely to be a year than a round.
    stem, number = m.groups() if (m := re.fullmatch(r"(.+)-([1-9]\d?)", run.name)) else (run.name, 1)
    following = int(number) + 1
    while (folder := run.with_name(f"{stem}-{following}")).exists():
        following += 1
    return folder


def _checked(label: str) -> str:
    label = label.strip()
    if not label or len(label) > MAX_NAME or printable(label) != label:
        raise InputError(f"The name of a class is one line of at most {MAX_NAME} characters; got {label!r}.")
    return label


def _labels_in(file: Path) -> dict[str, str]:
    """path -> label as the rows say, a row without a label never taking one away."""
    labels: dict[str, str] = {}
    for row in read_labels(file):
        labels[row.path] = row.label or labels.get(row.path, "")
    return labels


def _alone(file: Path) -> ExitStack:
    """Let two sittings that share a file take turns, so that neither overwrites a row of the other."""
    held = ExitStack()
    try:
        held.enter_context(locked(file.with_name(f".{file.name}.lock"), wait=_SECONDS))
    except HeldError as error:
        raise InputError(f"Another program has been writing {file} for {_SECONDS:.0f} s: answer again.") from error
    except FileNotFoundError as error:
        raise InputError(f"Cannot open the folder {file.parent} any more ({error.strerror}): put it back.") from error
    except OSError:
        # Not every file system has locks, and labelling does not depend on it.
        pass
    return held
