"""What must hold of the labelling page: after each press the file holds what the person meant, and nothing else."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from label_example import ASKED, CLASSES, KNOWN, Example, Window, make_example, write_label_next, write_table
from meanteacher.core import UNLABELLED
from meanteacher.photos.folder.find import find_photos
from meanteacher.photos.label.opening import open_session
from meanteacher.photos.label.page import class_keys


@contextmanager
def _example() -> Iterator[Example]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_example(Path(folder))


def each_label_is_saved_for_the_image_that_was_shown() -> None:
    with _example() as example:
        window, said = example.window(), dict(KNOWN)
        for label in CLASSES:
            said[window.answer(label)] = label
            assert example.labels() == said, "the file holds another label, or that of another image"
        assert set(said) == {*KNOWN, *ASKED}, "images were asked about twice, or not at all"


def undo_takes_back_the_last_answer_and_asks_again() -> None:
    with _example() as example:
        window = example.window()
        first, second = window.answer("cat"), window.answer("owl")
        window.undo()
        assert window.shown == second, "another image is asked about again"
        assert example.labels() == {**KNOWN, first: "cat"}, "another label is taken back, or none"
        window.undo()
        assert window.shown == first
        assert example.labels() == KNOWN, "a label that was taken back stands in the file"
        window.undo()
        assert window.state["last"] is None, "there is something left to undo"


def a_skipped_image_has_no_label() -> None:
    with _example() as example:
        window = example.window()
        skipped = window.shown
        window.skip()
        labelled = window.answer("dog")
        assert example.labels() == {**KNOWN, labelled: "dog"}, "a skipped image has a label"
        window.undo()
        window.undo()
        assert window.shown == skipped, "undo does not come back to the skipped image"
        assert example.labels() == KNOWN


def undo_puts_back_what_stood_in_the_file() -> None:
    """A label that another program wrote after the session was opened."""
    with _example() as example:
        window = example.window()
        name = window.shown
        write_table(example.file, {**KNOWN, name: "dog"})
        assert window.answer("owl") == name
        window.undo()
        assert example.labels() == {**KNOWN, name: "dog"}, "undo removes what another program wrote"


def rows_of_another_program_stay() -> None:
    with _example() as example:
        window = example.window()
        first = window.answer("cat")
        others = {name: "owl" for name in ASKED if name not in (first, window.shown)}
        write_table(example.file, {**example.labels(), **others})
        second = window.answer("dog")
        assert example.labels() == {**KNOWN, first: "cat", second: "dog", **others}, "a row of another program is lost"


def two_windows_show_different_images() -> None:
    with _example() as example:
        session = example.session()
        one, other = Window(session, "one"), Window(session, "other")
        assert one.shown != other.shown, "both windows show the same image"
        said = {one.answer("cat"): "cat", other.answer("owl"): "owl"}
        assert one.shown != other.shown
        one.undo()
        assert example.labels() == {**KNOWN, **{k: v for k, v in said.items() if v == "owl"}}, (
            "undo takes back the answer of another window"
        )


def the_next_sitting_asks_about_the_rest() -> None:
    with _example() as example:
        window = example.window()
        window.answer("cat")
        window.skip()
        again, left = example.window(), []
        while again.shown:
            left.append(again.shown)
            again.skip()
        assert sorted(left) == sorted(ASKED[1:]), "an image is asked about twice, or never again"


def answers_are_what_the_next_fit_learns_from() -> None:
    with _example() as example:
        window = example.window()
        first = window.answer("cat")
        window.undo()
        window.answer("owl")
        second = window.answer("none of these")
        photos = find_photos(example.photos, example.file)
        found = {
            name: photos.class_names[label]
            for name, label in zip(photos.names, photos.labels, strict=True)
            if label != UNLABELLED
        }
        assert found == {**KNOWN, first: "owl"}, "the fit learns something else than the last answer"
        assert [photos.names[k] for k in photos.none_of_these] == [second], "the image of no class is lost"
        assert not photos.random, "an image that a model has chosen is a test image"
        write_label_next(example.run, [])
        third = example.window().answer("cat")
        photos = find_photos(example.photos, example.file)
        assert [photos.names[k] for k in photos.random] == [third], "a random image is no test image"


def a_review_asks_about_contradictions_alone() -> None:
    with _example() as example:
        example.answer([("cat/a.jpg", "cat", "cat", "0.9"), ("dog/a.jpg", "dog", "owl", "0.8")])
        window = Window(open_session(example.photos, example.run, review=True))
        assert window.session.n_left == 1, "labels that the model confirms are reviewed"
        assert window.answer("owl") == "dog/a.jpg", "another label is reviewed"
        assert example.labels() == {**KNOWN, "dog/a.jpg": "owl"}


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
    rows_of_another_program_stay,
    two_windows_show_different_images,
    the_next_sitting_asks_about_the_rest,
    answers_are_what_the_next_fit_learns_from,
    a_review_asks_about_contradictions_alone,
    a_key_means_the_class_that_its_name_suggests,
)
