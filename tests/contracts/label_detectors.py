"""What must hold of the labelling page: after each press the file holds what the person meant, and nothing else."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from label_example import ASKED, CLASSES, KNOWN, Example, make_example
from meanteacher.photos.folder.tables import write_labels
from meanteacher.photos.label.page import class_keys
from meanteacher.photos.label.session import Session


@contextmanager
def _example() -> Iterator[Example]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_example(Path(folder))


def _asked(session: Session) -> tuple[int, str]:
    question = session.state()["question"]
    return question["position"], question["name"]


def _press(session: Session, label: str) -> str:
    """Answer the question that is shown; returns the image it was about."""
    position, name = _asked(session)
    session.answer(position, label)
    return name


def each_label_is_saved_for_the_image_that_was_shown() -> None:
    with _example() as example:
        session, said = example.session(), dict(KNOWN)
        for label in CLASSES:
            said[_press(session, label)] = label
            assert example.labels() == said, "the file holds another label, or that of another image"
        assert set(said) == {*KNOWN, *ASKED}, "images were asked about twice, or not at all"


def undo_takes_back_the_last_answer_and_asks_again() -> None:
    with _example() as example:
        session = example.session()
        first, second = _press(session, "cat"), _press(session, "owl")
        session.undo()
        assert _asked(session)[1] == second, "another image is asked about again"
        assert example.labels() == {**KNOWN, first: "cat"}, "another label is taken back, or none"
        session.undo()
        assert _asked(session)[1] == first
        assert example.labels() == KNOWN, "a label that was taken back stands in the file"
        session.undo()
        assert session.state()["last"] is None, "there is something left to undo"


def a_skipped_image_has_no_label() -> None:
    with _example() as example:
        session = example.session()
        position, skipped = _asked(session)
        session.skip(position)
        labelled = _press(session, "dog")
        assert example.labels() == {**KNOWN, labelled: "dog"}, "a skipped image has a label"
        session.undo()
        session.undo()
        assert _asked(session)[1] == skipped, "undo does not come back to the skipped image"
        assert example.labels() == KNOWN


def undo_puts_back_what_stood_in_the_file() -> None:
    """A row that another sitting wrote after this one was opened."""
    with _example() as example:
        session = example.session()
        write_labels(example.file, {**KNOWN, ASKED[0]: "dog"})
        name = _press(session, "owl")
        assert name == ASKED[0]
        session.undo()
        assert example.labels() == {**KNOWN, name: "dog"}, "undo removes what another sitting wrote"


def rows_of_another_sitting_stay() -> None:
    with _example() as example:
        one, other = example.session(), example.session()
        _press(one, "cat")
        other.skip(_asked(other)[0])
        _press(other, "owl")
        assert example.labels() == {**KNOWN, ASKED[0]: "cat", ASKED[1]: "owl"}, "a row of the other sitting is lost"


def the_next_sitting_asks_about_the_rest() -> None:
    with _example() as example:
        session = example.session()
        _press(session, "cat")
        session.skip(_asked(session)[0])
        again = example.session()
        left = [_asked(again)[1]]
        again.skip(_asked(again)[0])
        left.append(_asked(again)[1])
        assert left == list(ASKED[1:]), "an image is asked about twice, or never again"


def a_key_means_the_class_that_its_name_suggests() -> None:
    for names, expected in (
        (tuple("0123456789"), {digit: digit for digit in "0123456789"}),
        (("level 1", "level 2", "level 7"), {"1": "level 1", "2": "level 2", "7": "level 7"}),
        (("ash", "birch", "Cedar"), {"a": "ash", "b": "birch", "c": "Cedar"}),
    ):
        keys = {key: name for name, its in class_keys(names).items() for key in its}
        assert {key: keys.get(key) for key in expected} == expected, "a key means another class than it says"
        assert sum(map(len, class_keys(names).values())) == len(keys), "a key means two classes"


DETECTORS = (
    each_label_is_saved_for_the_image_that_was_shown,
    undo_takes_back_the_last_answer_and_asks_again,
    a_skipped_image_has_no_label,
    undo_puts_back_what_stood_in_the_file,
    rows_of_another_sitting_stay,
    the_next_sitting_asks_about_the_rest,
    a_key_means_the_class_that_its_name_suggests,
)
