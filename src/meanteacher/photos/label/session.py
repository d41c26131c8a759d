"""The labelling session: the questions, the windows that ask them, the answers, and the file of the answers."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from meanteacher.core import InputError
from meanteacher.files import HeldError, locked
from meanteacher.formats import certainty, escape_name
from meanteacher.photos.folder.find import Given, Photos, given_labels
from meanteacher.photos.folder.tables import (
    NONE_OF_THESE,
    RANDOM,
    REVIEW,
    LabelRow,
    append_label,
    prepare_to_append,
    write_labels,
)
from meanteacher.photos.label.page import class_keys

MAX_NAME = 100
ROUND = 20
"""Labels after which another fit is worth its time."""
_EVERY = 4
"""Each fourth photo is drawn at random: a test photo that no model has chosen."""


@dataclass(frozen=True, slots=True)
class Question:
    """A photo to label, and what is known about it."""

    index: int
    """Position among the folder's photos."""
    chosen: str
    """Why this photo: a value of the column `chosen`."""
    guess: str = ""
    """Name of a class; empty if there is no guess."""
    confidence: float | None = None
    reason: str = ""


@dataclass(slots=True)
class _Action:
    """An answer or a skip, for undo."""

    window: str
    """The window that may undo it; empty if that window is closed, so that any other may."""
    question: Question
    label: str | None = None
    """None if the photo was skipped."""
    before: Given | None = None


class Session:
    """Questions in order, each answered, skipped, shown in one window, or open. A session is thread-safe.

    The planned questions come first; `offer` replaces them while the session runs. Every fourth question, and every one
    while none is planned, is a photo drawn at random. A review asks the planned questions only, about labelled photos.
    """

    def __init__(
        self,
        photos: Photos,
        known: Mapping[str, Given],
        class_names: Iterable[str],
        *,
        file: Path,
        command: str,
        planned: Sequence[Question] = (),
        review: bool = False,
        read: object = None,
    ) -> None:
        """`read` is the `stamp_of` the file when the known labels were read from it."""
        self.photos, self.file, self.command, self.review = photos, file, command, review
        self.total = len(planned) if review else None
        self._given = dict(known)
        self._counts = Counter(given.label for given in known.values())
        self._keys = class_keys(list(dict.fromkeys(name for name in class_names if name.casefold() != NONE_OF_THESE)))
        self._planned = deque(planned)
        self._drawn_at_random = iter(() if review else self._in_random_order())
        self._n_drawn = 0
        self._again: deque[Question] = deque()
        """Questions to ask first: skipped ones, and those of a window that is closed or has undone an answer."""
        self._taken: set[int] = set()
        """Photos that are shown, answered, skipped, or to be asked again."""
        self._shown: dict[str, Question] = {}
        """window -> its question"""
        self._done: list[_Action] = []
        self._n_skipped = 0
        self._read = read
        self._columns: Sequence[str] = ()
        self._lock = Lock()

    @property
    def n_answered(self) -> int:
        """Number of photos labelled in this session, after an answer that is being written."""
        with self._lock:
            return len(self._done) - self._n_skipped

    @property
    def n_left(self) -> int:
        """Number of photos without a label, or of labels left to review; skipped ones count."""
        with self._lock:
            return len(self.photos) - len(self._given) if self.total is None else self.total - len(self._done)

    @property
    def n_planned(self) -> int:
        """Number of questions that are waiting to be asked, apart from random ones."""
        with self._lock:
            return len(self._planned) + len(self._again)

    def labels(self) -> dict[int, str]:
        """Position -> label of every labelled photo, `NONE_OF_THESE` included."""
        with self._lock:
            return {k: self._given[name].label for k, name in enumerate(self.photos.names) if name in self._given}

    def offer(self, questions: Sequence[Question]) -> None:
        """Replace the planned questions."""
        with self._lock:
            self._planned = deque(questions)

    def look_ahead(self) -> int | None:
        """Decide on the next question. Returns its photo, which can be decoded in the meantime."""
        with self._lock:
            if not self._again and (question := self._draw()):
                self._again.append(question)
            return self._again[0].index if self._again else None

    def answer(self, window: str, index: int, label: str) -> None:
        """Label the photo that the window shows, and append the label to the file.

        An answer to any other photo is ignored, because it comes from a key that was pressed twice.

        Raises:
            InputError: the class name is invalid, or the file cannot be written. The question stays open.
        """
        with self._lock:
            question = self._shown.get(window)
            if question is None or question.index != index:
                return
            label = label.strip()
            if not label or len(label) > MAX_NAME or escape_name(label) != label:
                raise InputError(f"A class name is one line of 1 to {MAX_NAME} printable characters; got {label!r}.")
            name = self.photos.names[index]
            self._refresh()
            before = self._given.get(name)
            self._append(name, label, question.chosen)
            self._done.append(_Action(window, self._shown.pop(window), label, before))
            if label not in self._keys and label.casefold() != NONE_OF_THESE:
                self._keys = class_keys([*self._keys, label], before=self._keys)

    def skip(self, window: str, index: int) -> None:
        """Leave the photo that the window shows without a label. The next session asks about it again."""
        with self._lock:
            question = self._shown.get(window)
            if question is not None and question.index == index:
                self._done.append(_Action(window, self._shown.pop(window)))
                self._n_skipped += 1

    def undo(self, window: str) -> None:
        """Undo the window's last answer or skip, and ask about that photo again. A label changed since is kept."""
        with self._lock:
            position = self._last(window)
            if position is None:
                return
            last = self._done[position]
            name = self.photos.names[last.question.index]
            if last.label is not None:
                self._refresh()
                now = self._given.get(name)
                if now is not None and now.label == last.label:
                    row = _row(name, last.before or Given("", last.question.chosen))
                    self._append(name, row.label, row.chosen or "")
            self._n_skipped -= last.label is None
            del self._done[position]
            if shown := self._shown.get(window):
                self._again.appendleft(shown)
            self._shown[window] = last.question

    def ask_skipped_again(self) -> None:
        with self._lock:
            self._again.extend(action.question for action in self._done if action.label is None)
            self._done = [action for action in self._done if action.label is not None]
            self._n_skipped = 0

    def close(self, window: str) -> None:
        """Take back the question of a window that is closed. Its answers can then be undone in any window."""
        with self._lock:
            if shown := self._shown.pop(window, None):
                self._again.appendleft(shown)
            for action in self._done:
                if action.window == window:
                    action.window = ""

    def state(self, window: str) -> dict[str, Any]:
        """The content of the page as plain values with printable names."""
        with self._lock:
            if window not in self._shown and (question := self._draw()):
                self._shown[window] = question
            last = self._last(window)
            return {
                "question": self._question(self._shown[window]) if window in self._shown else None,
                "labelled": len(self._done) - self._n_skipped,
                "skipped": self._n_skipped,
                "goal": ROUND if self.total is None else self.total,
                "elsewhere": sum(other != window for other in self._shown),
                "review": self.review,
                "last": None if last is None else {"label": self._done[last].label},
                "classes": [{"name": name, "keys": keys, "n": self._counts[name]} for name, keys in self._keys.items()],
                "none_of_these": NONE_OF_THESE,
                "labels_file": escape_name(str(self.file)),
                "written": self.file.exists(),
                "command": escape_name(self.command),
            }

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the labels file for a `with` block, so that no second session asks about the same photos."""
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.file.with_name(f".{self.file.name}.lock")))
            except HeldError as error:
                raise InputError(
                    f"Another `meanteacher label` is writing {self.file}: open its page in a second window, or stop it."
                ) from error
            except OSError:
                # Some file systems have no locks, and labelling works without them.
                pass
            yield

    def _draw(self) -> Question | None:
        """The next question that no window has been given."""
        while self._again:
            question = self._again.popleft()
            if self._is_known(question) == self.review:
                return question
        self._n_drawn += 1
        planned: Iterator[Question] = (self._planned.popleft() for _ in range(len(self._planned)))
        sources = (planned, self._drawn_at_random)
        for source in sources if self._n_drawn % _EVERY else reversed(sources):
            for question in source:
                if question.index not in self._taken and self._is_known(question) == self.review:
                    self._taken.add(question.index)
                    return question
        return None

    def _is_known(self, question: Question) -> bool:
        return self.photos.names[question.index] in self._given

    def _in_random_order(self) -> Iterator[Question]:
        """The unlabelled photos in an order that depends on their names alone, so that the next session goes on."""
        names = self.photos.names
        order = sorted((k for k in range(len(names)) if names[k] not in self._given), key=lambda k: _digest(names[k]))
        return (Question(k, RANDOM, reason="drawn at random, to test the next fit") for k in order)

    def _question(self, question: Question) -> dict[str, Any]:
        name = self.photos.names[question.index]
        return {
            "index": question.index,
            "name": escape_name(name),
            "given": self._given[name].label if self.review and name in self._given else "",
            "guess": question.guess,
            "confidence": None if question.confidence is None else certainty(question.confidence),
            "reason": question.reason,
        }

    def _last(self, window: str) -> int | None:
        """Position of the last action that the window can undo."""
        return next((k for k in reversed(range(len(self._done))) if self._done[k].window in (window, "")), None)

    def _refresh(self) -> None:
        """Prepare the file for another row, and read it again if another program has changed it."""
        if not (stamp := stamp_of(self.file)):
            write_labels(self.file, (_row(name, given) for name, given in self._given.items()))
        elif stamp != self._read:
            self._given = given_labels(self.photos.root, self.photos.names, self.file)
            self._counts = Counter(given.label for given in self._given.values())
        elif self._columns:
            return
        self._columns = prepare_to_append(self.file)
        self._read = stamp_of(self.file)

    def _append(self, name: str, label: str, chosen: str) -> None:
        append_label(self.file, self._columns, LabelRow(0, name, label, chosen))
        self._read = stamp_of(self.file)
        if before := self._given.pop(name, None):
            self._counts[before.label] -= 1
        if label:
            self._given[name] = Given(label, (before.chosen if before else "") or chosen, chosen == REVIEW)
            self._counts[label] += 1


def _row(name: str, given: Given) -> LabelRow:
    return LabelRow(0, name, given.label, REVIEW if given.is_reviewed else given.chosen)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def stamp_of(file: Path) -> tuple[int, int, int] | None:
    """A value that changes whenever the file does; None if there is no file."""
    try:
        status = file.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
