"""A small folder of photos and what a fit leaves behind, for the tests of the labelling page."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from PIL import Image

from fit_example import NO_PLOTS, fit_example
from meanteacher.photos.folder.tables import LabelRow, read_labels, write_labels
from meanteacher.photos.label.opening import open_session
from meanteacher.photos.label.server import LabelServer
from meanteacher.photos.label.session import Session

CLASSES = ("cat", "dog", "owl")
ASKED = ("unlabelled/one.jpg", "unlabelled/two.png", "unlabelled/three.jpg")
KNOWN = {"cat/a.jpg": "cat", "dog/a.jpg": "dog"}


@dataclass(frozen=True)
class Example:
    """The two folders that `meanteacher label` is given."""

    photos: Path
    run: Path

    @property
    def file(self) -> Path:
        return self.run / "labels.csv"

    def labels(self) -> dict[str, str]:
        """What the labels file says at this moment: the last row of an image counts."""
        labels = {row.path: row.label for row in read_labels(self.file) if row.label or row.chosen}
        return {name: label for name, label in labels.items() if label}

    def session(self) -> Session:
        return open_session(self.photos, self.run)

    def window(self) -> "Window":
        return Window(self.session())

    def ask_about(self, names: Sequence[str]) -> None:
        rows = [(name, "dog", "0.4125", "hesitates between dog (41.2 %) and cat (38.0 %)") for name in names]
        write_label_next(self.run, rows)

    def answer(self, rows: Sequence[Sequence[str]]) -> None:
        """The answers of the fit: path, given label, guess, confidence, and more of these columns if they are given."""
        columns = ("path", "given", "guess", "confidence", "second", "second_confidence", "doubt", "problem")
        with (self.run / "predictions.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *((*r, *[""] * (len(columns) - len(r))) for r in rows)])

    def tell_of_the_fit(self, **data: Any) -> None:
        names = list(data.get("class_names", CLASSES))
        confusion = [[5 * (i == j) for j in range(len(names))] for i in range(len(names))]
        about = fit_example()["data"] | {"class_names": names, "labelled_per_class": [5] * len(names)} | data
        content = fit_example(title="pets", data=about, confusion=confusion, **NO_PLOTS)
        (self.run / "fit.json").write_text(json.dumps(content), encoding="utf-8")


@dataclass
class Window:
    """A window of the page, without a browser."""

    session: Session
    name: str = "a window"

    @property
    def state(self) -> dict[str, Any]:
        return self.session.state(self.name)

    @property
    def shown(self) -> str | None:
        """The image that it shows."""
        question = self.state["question"]
        return question and question["name"]

    def answer(self, *labels: str) -> str | None:
        """Answer one question after the other. Returns the last image that an answer was about."""
        for label in labels:
            question = self.state["question"]
            self.session.answer(self.name, question["index"], label)
        return question["name"]

    def skip(self) -> None:
        self.session.skip(self.name, self.state["question"]["index"])

    def undo(self) -> None:
        self.session.undo(self.name)


def write_table(file: Path, labels: Mapping[str, str]) -> None:
    """A labels file as the page writes it, of labels from elsewhere."""
    write_labels(file, [LabelRow(0, name, label) for name, label in labels.items()])


def make_example(folder: Path, asked: Sequence[str] = ASKED) -> Example:
    example = Example(folder / "photos", folder / "run")
    example.run.mkdir(parents=True)
    for number, name in enumerate((*KNOWN, *asked)):
        path = example.photos / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), (40 * number % 256, 90, 160)).save(path)
    example.ask_about(asked)
    example.tell_of_the_fit()
    return example


def write_label_next(run: Path, rows: Sequence[Sequence[str]]) -> None:
    with (run / "label-next.csv").open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        csv.writer(file).writerows([("path", "guess", "confidence", "reason"), *rows])


@contextmanager
def serving(session: Session) -> Iterator[LabelServer]:
    """A server that answers from another thread for the time of a `with` block."""
    over = Event()
    with LabelServer(session) as server:
        server.timeout = 0.02
        thread = Thread(target=server.serve_until, args=[over.is_set])
        thread.start()
        try:
            yield server
        finally:
            over.set()
            thread.join()
