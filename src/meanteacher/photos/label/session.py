"""The labelling session: the images to label, the answers, and the file of the answers."""

import os
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
from meanteacher.files.typed import RecordError
from meanteacher.formats import certainty, escape_name
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.photos.folder.tables import read_labels, read_table, write_labels
from meanteacher.photos.label.page import class_keys
from meanteacher.records import read_fit

LABEL_NEXT = "label-next.csv"
MAX_NAME = 100
_COLUMNS = ("path", "guess", "confidence", "reason")
_SECONDS = 10.0
"""Time that an answer waits for another session to finish writing."""


@dataclass(frozen=True, slots=True)
class Question:
    """An image to label, and the model's guess."""

    index: int
    """Position among the folder's images."""
    guess: str
    """Name of a class; empty if there is no guess."""
    confidence: float | None
    reason: str


def _read_questions(run: Path, photos: Photos, class_names: tuple[str, ...]) -> tuple[Question, ...]:
    """The rows of label-next.csv whose images exist, in its order."""
    file = run / LABEL_NEXT
    try:
        rows = [cells for _, cells in read_table(file, _COLUMNS)]
    except InputError as error:
        raise InputError(f"{error} Fit again to write {file.name} again.") from error
    if not rows:
        raise InputError(f"{file} lists no image: there is nothing to label.")
    by_name = {escape_name(name): index for index, name in enumerate(photos.names)}
    questions = {}
    for path, guess, confidence, reason in rows:
        index = by_name.get(_unescape(escape_name(path), by_name))
        if index is not None:
            questions[index] = Question(index, _unescape(guess, class_names), _fraction(confidence), reason)
    if not questions:
        raise InputError(
            f"{photos.root} contains none of the {len(rows)} images of {file}, such as "
            f"{escape_name(rows[0][0])!r}: give the folder of images that was fitted."
        )
    return tuple(questions.values())


def _unescape(cell: str, known: Container[str]) -> str:
    """The cell without the apostrophe that keeps a spreadsheet from reading a name as a formula."""
    return cell[1:] if cell.startswith("'") and cell not in known and cell[1:] in known else cell


def _fraction(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


@dataclass(frozen=True, slots=True)
class _Action:
    """An answer or a skip, for undo."""

    position: int
    label: str | None = None
    """None if the image was skipped."""
    before: str | None = None
    """Previous label in the file; None if the image had no row."""


class Session:
    """Questions in order, each answered, skipped or open. A session is thread-safe."""

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
        self._done: list[_Action] = []
        self._lock = Lock()

    @property
    def n_answered(self) -> int:
        """Number of images labelled in this session, after an answer that is being written."""
        with self._lock:
            return len(self._done) - len(self._skipped())

    @property
    def n_left(self) -> int:
        """Number of images without a label, including skipped ones."""
        with self._lock:
            return len(self._to_ask) + len(self._skipped())

    def answer(self, position: int, label: str) -> None:
        """Label the current image and write the label to the file.

        An answer to any other image is ignored, because it comes from a second window or from a key pressed twice.

        Raises:
            InputError: the class name is invalid, or the file cannot be written. The question stays open.
        """
        with self._lock:
            if not self._is_current(position):
                return
            label = label.strip()
            if not label or len(label) > MAX_NAME or escape_name(label) != label:
                raise InputError(f"A class name is one line of 1 to {MAX_NAME} printable characters; got {label!r}.")
            before = self._write(self._name(position), label)
            self._done.append(_Action(self._to_ask.popleft(), label, before))
            if label not in self._keys:
                self._keys = class_keys([*self._keys, label], before=self._keys)

    def skip(self, position: int) -> None:
        """Leave the current image without a label. The next session asks about it again."""
        with self._lock:
            if self._is_current(position):
                self._done.append(_Action(self._to_ask.popleft()))

    def undo(self) -> None:
        """Undo the last answer or skip, and ask about that image again. A later label of another session is kept."""
        with self._lock:
            if not self._done:
                return
            last = self._done[-1]
            if last.label is not None:
                self._write(self._name(last.position), last.before, instead_of=last.label)
            self._to_ask.appendleft(self._done.pop().position)

    def ask_skipped_again(self) -> None:
        with self._lock:
            self._to_ask.extend(self._skipped())
            self._done = [action for action in self._done if action.label is not None]

    def state(self) -> dict[str, Any]:
        """The content of the page as plain values with printable names."""
        with self._lock:
            return {
                "question": self._question(self._to_ask[0]) if self._to_ask else None,
                "total": len(self.questions),
                "labelled": len(self.questions) - len(self._to_ask) - len(self._skipped()),
                "skipped": len(self._skipped()),
                "last": {"label": self._done[-1].label} if self._done else None,
                "classes": [{"name": name, "keys": keys} for name, keys in self._keys.items()],
                "labels_file": escape_name(str(self.file)),
                "written": self.file.exists(),
                "command": escape_name(self.command),
            }

    def _question(self, position: int) -> dict[str, Any]:
        question = self.questions[position]
        return {
            "position": position,
            "number": position + 1,
            "name": escape_name(self._name(position)),
            "guess": question.guess,
            "confidence": None if question.confidence is None else certainty(question.confidence),
            "reason": question.reason,
        }

    def _skipped(self) -> list[int]:
        return [action.position for action in self._done if action.label is None]

    def _is_current(self, position: int) -> bool:
        return bool(self._to_ask) and self._to_ask[0] == position

    def _name(self, position: int) -> str:
        return self.photos.names[self.questions[position].index]

    def _write(self, name: str, label: str | None, instead_of: str | None = None) -> str | None:
        """Set one row of the file, or delete it for None, and return its previous label.

        Rows of other sessions are kept. With `instead_of`, the row is changed only if it still has that label.
        """
        with _exclusive(self.file):
            answers = {self._name(action.position): action.label for action in self._done if action.label is not None}
            rows = _labels_in(self.file) if self.file.exists() else self._known | answers
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
    """Start a session with the images that the fit in `run` suggests, or continue an earlier one.

    The answers are written to `labels`, by default labels.csv in `run`. If that file exists, rows are added to it.
    Otherwise it starts with every label of the fit, from its labels file or from the folders, because the next fit
    uses only the labels of the file.
    """
    if not run.is_dir():
        raise InputError(f"There is no folder {run}: give the folder that `meanteacher fit` wrote (its --out).")
    try:
        fit = read_fit(run)
    except RecordError as error:
        raise InputError(
            f"{run} has no readable fit.json: give the folder of a finished `meanteacher fit` (its --out). {error}"
        ) from error
    file = labels or run / "labels.csv"
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise InputError(f"Cannot write to the folder {file.parent}: create it, or give another file with --labels.")
    fitted = fit.data
    known = file if file.exists() else fitted.labels_file
    if not known and fitted.source == "csv":
        raise InputError(f"{run} does not name the labels file of its fit: give that file with --labels.")
    found = find_photos(photos, Path(known) if known else None)
    if found.arrays is not None:
        raise InputError(f"{photos} contains its labels: add labels to its array labels, and fit again.")
    class_names = tuple(dict.fromkeys(fitted.class_names + found.class_names))
    questions = _read_questions(run, found, class_names)
    again = ["--minutes", f"{fit.minutes:g}", "--out", run, "--overwrite"]
    command = ["meanteacher", "fit", photos, "--labels", file, *again]
    return Session(found, questions, class_names, file=file, command=shlex.join(map(str, command)))


def _labels_in(file: Path) -> dict[str, str]:
    """path -> label. If an image has several rows, the last one with a label counts."""
    labels: dict[str, str] = {}
    for row in read_labels(file):
        labels[row.path] = row.label or labels.get(row.path, "")
    return labels


def _exclusive(file: Path) -> ExitStack:
    """Hold the lock of a labels file, so that two sessions do not overwrite each other's rows."""
    held = ExitStack()
    try:
        held.enter_context(locked(file.with_name(f".{file.name}.lock"), wait=_SECONDS))
    except HeldError as error:
        raise InputError(f"Another program has been writing {file} for {_SECONDS:.0f} s: answer again.") from error
    except FileNotFoundError as error:
        raise InputError(
            f"The folder {file.parent} is missing ({error.strerror}): restore it, and answer again."
        ) from error
    except OSError:
        # Some file systems have no locks, and labelling works without them.
        pass
    return held
