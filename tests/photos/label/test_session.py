"""Every answer is in the file at once, nothing that stood there is lost, and a session goes on where one stopped."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from label_example import ASKED, KNOWN, Example, Window, make_example, write_label_next, write_table
from meanteacher.core import InputError
from meanteacher.photos.folder.find import column_of, find_photos
from meanteacher.photos.folder.tables import NONE_OF_THESE, read_labels
from meanteacher.photos.label import session as session_module
from meanteacher.photos.label.opening import open_session
from meanteacher.photos.label.session import Question
from photo_support import folder_of
from support import held_by_another_process

ONE, TWO, THREE = ASKED


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return make_example(tmp_path)


@pytest.fixture
def many(tmp_path: Path) -> Example:
    """Twelve unlabelled images, of which a fit asks for three."""
    example = make_example(tmp_path, [*ASKED, *(f"unlabelled/{k}.png" for k in range(9))])
    example.ask_about(ASKED)
    return example


def rows(file: Path) -> list[tuple[str, str, str | None]]:
    return [(row.path, row.label, row.chosen) for row in read_labels(file)]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_every_answer_is_in_the_file_at_once_beside_the_labels_known_before(example: Example):
    window = example.window()
    assert not example.file.exists()
    window.answer("owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}
    window.answer("cat")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "cat"}


def test_a_question_says_what_the_model_makes_of_the_image(example: Example):
    assert example.window().state["question"] == {
        "index": find_photos(example.photos).names.index(ONE),
        "name": ONE,
        "given": "",
        "guess": "dog",
        "confidence": "41.2 %",
        "reason": "hesitates between dog (41.2 %) and cat (38.0 %)",
    }


def test_images_are_asked_in_the_order_of_the_fit_until_none_is_left(example: Example):
    window = example.window()
    asked = []
    while window.shown:
        asked.append(window.answer("cat"))
    assert asked == list(ASKED)
    assert (window.state["labelled"], window.state["skipped"], window.session.n_left) == (3, 0, 0)


def test_a_new_session_goes_on_where_the_last_one_stopped(example: Example):
    first = example.window()
    first.answer("owl")
    first.skip()
    second = example.window()
    assert second.shown == TWO
    assert (second.session.n_left, second.session.n_answered) == (2, 0)
    second.answer("dog")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "dog"}


def test_an_answer_to_an_image_that_is_not_shown_changes_nothing(example: Example):
    window = example.window()
    session, first = window.session, window.state["question"]["index"]
    window.answer("owl")
    assert window.shown == TWO
    for index in (first, -1, 99):
        session.answer(window.name, index, "cat")
        session.skip(window.name, index)
    session.answer("a window that asked nothing", first, "cat")
    assert example.labels() == {**KNOWN, ONE: "owl"}
    assert window.shown == TWO


def test_a_class_that_is_new_joins_the_others_with_a_key_of_its_own(example: Example):
    window = example.window()
    window.answer("  snowy owl ")
    assert example.labels()[ONE] == "snowy owl"
    assert window.state["classes"] == [
        {"name": "cat", "keys": ("c", "C"), "n": 1},
        {"name": "dog", "keys": ("d", "D"), "n": 1},
        {"name": "owl", "keys": ("o", "O"), "n": 0},
        {"name": "snowy owl", "keys": ("s", "S"), "n": 1},
    ]
    assert example.window().state["classes"] == window.state["classes"]
    window.undo()
    assert [each["n"] for each in window.state["classes"]] == [1, 1, 0, 0]


@pytest.mark.parametrize("label", ["", "  ", "two\nlines", "\x07", "\udcff", "x" * 101])
def test_a_class_has_a_name_of_one_line(example: Example, label: str):
    window = example.window()
    with pytest.raises(InputError, match="one line of 1 to 100 printable characters"):
        window.answer(label)
    assert window.shown == ONE
    assert not example.file.exists()


def test_none_of_these_is_an_answer_and_not_a_class(example: Example):
    window = example.window()
    window.answer(NONE_OF_THESE, "owl")
    assert example.labels() == {**KNOWN, ONE: NONE_OF_THESE, TWO: "owl"}
    assert [each["name"] for each in window.state["classes"]] == ["cat", "dog", "owl"]
    again = example.window()
    assert again.shown == THREE
    assert [each["name"] for each in again.state["classes"]] == ["cat", "dog", "owl"]
    photos = find_photos(example.photos, example.file)
    assert photos.class_names == ("cat", "dog", "owl")
    assert [photos.names[k] for k in photos.none_of_these] == [ONE]
    assert photos.labels[photos.names.index(ONE)] == -1


# --- undo and skip ----------------------------------------------------------------------------------------------------


def test_undo_takes_the_label_back_and_asks_again(example: Example):
    window = example.window()
    window.answer("owl", "cat")
    window.undo()
    assert example.labels() == {**KNOWN, ONE: "owl"}
    assert window.shown == TWO
    window.undo()
    assert example.labels() == KNOWN
    assert window.shown == ONE
    assert window.state["last"] is None
    window.undo()
    assert window.shown == ONE


def test_undo_names_the_label_it_takes_back_and_puts_back_what_stood_there(example: Example):
    write_table(example.file, {**KNOWN, ONE: ""})
    window = example.window()
    window.answer("owl", "cat")
    assert window.state["last"] == {"label": "cat"}
    window.undo()
    assert window.state["last"] == {"label": "owl"}
    window.answer("dog")
    window.undo()
    window.undo()
    assert example.labels() == KNOWN
    assert window.session.n_answered == 0


def test_undo_leaves_a_label_that_was_changed_since(example: Example):
    window = example.window()
    window.answer("owl")
    write_table(example.file, {**KNOWN, ONE: "cat"})
    window.undo()
    assert example.labels() == {**KNOWN, ONE: "cat"}
    assert window.shown == ONE


def test_undo_takes_a_skip_back(example: Example):
    window = example.window()
    window.skip()
    assert (window.shown, window.state["skipped"]) == (TWO, 1)
    assert window.state["last"] == {"label": None}
    window.undo()
    assert (window.shown, window.state["skipped"]) == (ONE, 0)
    assert not example.file.exists()


def test_skipped_images_can_be_asked_again_at_the_end(example: Example):
    window = example.window()
    window.skip()
    window.answer("cat")
    window.skip()
    assert window.shown is None
    assert window.session.n_left == 2
    window.session.ask_skipped_again()
    assert (window.shown, window.state["skipped"]) == (ONE, 0)
    # What is left to undo is the answer; it is asked first, then the skipped ones.
    window.undo()
    assert window.shown == TWO
    window.answer("dog", "owl", "cat")
    assert example.labels() == {**KNOWN, TWO: "dog", ONE: "owl", THREE: "cat"}


# --- windows ----------------------------------------------------------------------------------------------------------


def test_windows_show_different_images_and_undo_their_own_answers(example: Example):
    session = example.session()
    one, other, third = (Window(session, name) for name in ("one", "other", "third"))
    assert (one.shown, other.shown, third.shown) == ASKED
    assert Window(session, "fourth").state["elsewhere"] == 3
    one.answer("cat")
    other.answer("owl")
    assert one.shown is None
    one.undo()
    assert (one.shown, example.labels()) == (ONE, {**KNOWN, TWO: "owl"})
    assert third.state["last"] is None


def test_the_image_of_a_window_that_is_closed_is_asked_elsewhere_and_its_answers_can_be_undone(example: Example):
    session = example.session()
    one, other = Window(session, "one"), Window(session, "other")
    one.answer("cat")
    assert (one.shown, other.shown) == (TWO, THREE)
    session.close("one")
    other.answer("dog")
    assert other.shown == TWO
    other.undo()
    other.undo()
    assert (other.shown, example.labels()) == (ONE, KNOWN)


def test_a_second_session_for_the_same_file_is_refused(example: Example):
    with (
        held_by_another_process(example.run / ".labels.csv.lock"),
        pytest.raises(
            InputError, match=r"Another `meanteacher label` is writing .*labels\.csv: open its page in a sec"
        ),
        example.session().exclusive(),
    ):
        pass
    with example.session().exclusive():
        pass


def test_a_file_system_without_locks_can_be_labelled_on(example: Example, monkeypatch: pytest.MonkeyPatch):
    def no_locks(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(session_module, "locked", no_locks)
    window = example.window()
    with window.session.exclusive():
        window.answer("owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}


# --- which images -----------------------------------------------------------------------------------------------------


def test_every_fourth_image_is_drawn_at_random_and_the_file_says_so(many: Example):
    window = many.window()
    window.answer(*["cat"] * 8)
    known = len(KNOWN)
    assert [chosen for _, _, chosen in rows(many.file)] == [""] * known + ["next"] * 3 + ["random"] * 5
    photos = find_photos(many.photos, many.file)
    drawn = {name for name, _, chosen in rows(many.file) if chosen == "random"}
    assert {photos.names[k] for k in photos.random} == drawn


def test_random_images_come_in_the_same_order_in_every_session_and_not_in_that_of_their_names(many: Example):
    write_label_next(many.run, [])

    def asked() -> list[str]:
        window, found = many.window(), []
        while window.shown:
            found.append(window.shown)
            window.skip()
        return found

    assert asked() == asked()
    assert asked() != sorted(asked())
    first, second, *_ = asked()
    many.window().answer("cat")
    assert asked()[0] == second != first


def test_questions_that_are_offered_later_are_asked_next(many: Example):
    window = many.window()
    names = window.session.photos.names
    window.answer("cat")
    assert window.shown == TWO
    better = "unlabelled/5.png"
    window.session.offer([Question(names.index(better), "diverse")])
    # The image that is shown stays.
    assert window.shown == TWO
    window.answer("dog")
    assert window.shown == better
    window.answer("owl")
    assert rows(many.file)[-1] == (better, "owl", "diverse")
    assert window.session.n_planned == 0


def test_labels_have_positions_for_the_choice_of_the_next_images(example: Example):
    window = example.window()
    window.answer(NONE_OF_THESE)
    names = window.session.photos.names
    assert {names[k]: label for k, label in window.session.labels().items()} == {**KNOWN, ONE: NONE_OF_THESE}


# --- the file ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_appended_and_rewrites_nothing(example: Example):
    window = example.window()
    window.answer("owl")
    before, inode = example.file.read_bytes(), example.file.stat().st_ino
    window.answer("cat")
    window.undo()
    assert example.file.stat().st_ino == inode
    assert example.file.read_bytes() == before + f"{TWO},cat,next\r\n{TWO},,next\r\n".encode()


def test_an_answer_reads_nothing_that_no_other_program_has_changed(example: Example, monkeypatch: pytest.MonkeyPatch):
    window = example.window()
    window.answer("owl")
    for name in ("given_labels", "prepare_to_append", "write_labels"):
        monkeypatch.setattr(session_module, name, lambda *_: pytest.fail("read or written as a whole"))
    window.answer("cat")
    window.undo()
    assert window.shown == TWO


@pytest.mark.parametrize(
    "content",
    [
        "path,label\r\ncat/a.jpg,cat\r\ndog/a.jpg,dog\r\n",
        "path;label;chosen\ncat/a.jpg;cat;\ndog/a.jpg;dog;\n",
        "\ufeffpath,label,chosen\r\ncat/a.jpg,cat,\r\ndog/a.jpg,dog,",
        "path,label,chosen\ncat/a.jpg,cat,\ndog/a.jpg,dog,\n",
    ],
    ids=["without chosen", "semicolons", "no end", "other line ends"],
)
def test_a_file_of_another_program_is_added_to(example: Example, content: str):
    example.file.write_text(content, newline="")
    example.window().answer("owl")
    assert rows(example.file) == [("cat/a.jpg", "cat", ""), ("dog/a.jpg", "dog", ""), (ONE, "owl", "next")]


def test_further_columns_keep_their_cells(example: Example):
    example.file.write_text("path;label;camera\ncat/a.jpg;cat;north\ndog/a.jpg;dog\n")
    window = example.window()
    window.answer("owl")
    lines = example.file.read_text("utf-8-sig").splitlines()
    assert lines == ["path,label,camera,chosen", "cat/a.jpg,cat,north,", "dog/a.jpg,dog,,", f"{ONE},owl,,next"]
    photos = find_photos(example.photos, example.file)
    example.file.write_text(example.file.read_text("utf-8-sig") + "cat/a.jpg,cat,,review\n")
    assert column_of(photos, "camera")[0] == "north"


def test_a_row_that_was_cut_off_is_no_label(example: Example):
    window = example.window()
    window.answer("owl")
    whole = example.file.read_bytes()
    example.file.write_bytes(whole + b"unlabelled/two.png,ca")
    with pytest.raises(InputError, match=r"labels\.csv, row 5, the last one, is incomplete: complete it, or delete it"):
        example.session()
    example.file.write_bytes(whole + b"unlabelled/two.png,cat\n")
    assert example.window().shown == THREE


def test_a_full_disk_loses_nothing_and_the_question_remains(example: Example, monkeypatch: pytest.MonkeyPatch):
    window = example.window()
    window.answer("owl")
    before = example.file.read_bytes()
    real = os.write

    def half(file: int, data: bytes) -> int:
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr("meanteacher.photos.folder.tables.os.write", half)
    for action in (lambda: window.answer("cat"), window.undo):
        with pytest.raises(InputError, match="Could not write"):
            action()
        assert window.shown == TWO
        assert window.session.n_answered == 1
        assert example.file.read_bytes() == before


def test_a_folder_that_disappears_loses_nothing_once_it_is_back(example: Example):
    window = example.window()
    away = example.run.rename(example.run.with_name("away"))
    with pytest.raises(InputError, match=r"Could not write .*labels\.csv \(No such file or directory\)"):
        window.answer("owl")
    away.rename(example.run)
    window.answer("owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}


def test_rows_that_others_write_meanwhile_are_kept(example: Example):
    window = example.window()
    window.answer("owl")
    write_table(example.file, {**KNOWN, ONE: "owl", THREE: "dog"})
    window.answer("cat")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "cat", THREE: "dog"}
    # It has a label now.
    assert window.shown is None


def test_a_labels_file_that_is_deleted_meanwhile_is_written_anew(example: Example):
    window = example.window()
    window.answer("owl")
    example.file.unlink()
    window.answer("cat")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "cat"}


def test_a_link_is_replaced_and_not_written_through(example: Example, tmp_path: Path):
    write_table(tmp_path / "elsewhere.csv", KNOWN)
    before = (tmp_path / "elsewhere.csv").read_bytes()
    example.file.symlink_to(tmp_path / "elsewhere.csv")
    example.window().answer("owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}
    assert (tmp_path / "elsewhere.csv").read_bytes() == before


def test_a_labels_file_of_ones_own_keeps_its_rows(example: Example, tmp_path: Path):
    file = tmp_path / "mine.csv"
    given = {"photos/dog/a.jpg": "dog", "cat/a.jpg": "cat", f"photos/{ONE}": "", TWO: "owl"}
    file.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in given.items()))
    window = Window(open_session(example.photos, example.run, file))
    assert [window.shown, window.session.n_left] == [ONE, 2]
    window.answer("cat", "dog")
    assert rows(file) == [*((*each, "") for each in given.items()), (ONE, "cat", "next"), (THREE, "dog", "next")]
    # Whatever spelling the rows have, the images are what was said.
    assert open_session(example.photos, example.run, file).n_left == 0


def test_a_row_without_a_label_takes_none_away(example: Example):
    example.file.write_text(f"path,label\ncat/a.jpg,cat\ndog/a.jpg,dog\n{ONE},owl\n{ONE},\n")
    example.window().answer("cat")
    assert example.labels()[ONE] == "owl"


def test_answers_go_to_the_labels_file_of_the_fit(example: Example, tmp_path: Path):
    used = tmp_path / "used.csv"
    write_table(used, {"photos/cat/a.jpg": "cat", "photos/dog/a.jpg": "dog", f"photos/{TWO}": "owl"})
    example.tell_of_the_fit(source="csv", labels_file=str(used))
    window = example.window()
    window.answer("cat")
    assert window.shown == THREE
    assert not example.file.exists()
    assert rows(used)[-1] == (ONE, "cat", "next")


def test_the_labels_file_is_named_as_seen_from_here(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "used.csv", KNOWN)
    example.tell_of_the_fit(source="csv", labels_file=str(tmp_path / "used.csv"))
    assert example.session().file == Path("used.csv")


def test_a_new_labels_file_starts_with_the_labels_of_the_fit(example: Example, tmp_path: Path):
    used = tmp_path / "used.csv"
    write_table(used, {"photos/cat/a.jpg": "cat", "photos/dog/a.jpg": "dog", f"photos/{TWO}": "owl"})
    example.tell_of_the_fit(source="csv", labels_file=str(used))
    before = used.read_bytes()
    Window(open_session(example.photos, example.run, example.file)).answer("cat")
    assert example.labels() == {**KNOWN, ONE: "cat", TWO: "owl"}
    assert used.read_bytes() == before


# --- review -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def doubted(example: Example) -> Example:
    """Both labels of the fit are contradicted, that of the dog more surely."""
    example.answer(
        [
            ("cat/a.jpg", "cat", "owl", "0.6"),
            ("dog/a.jpg", "dog", "cat", "0.9"),
            (ONE, "", "owl", "0.99"),
        ]
    )
    return example


def review(example: Example) -> Window:
    return Window(open_session(example.photos, example.run, review=True))


def test_a_review_shows_contradicted_labels_the_surest_first(doubted: Example):
    window = review(doubted)
    assert window.state["review"]
    assert (window.session.n_left, window.state["goal"]) == (2, 2)
    question = window.state["question"]
    assert question == question | {"name": "dog/a.jpg", "given": "dog", "guess": "cat", "confidence": "90.0 %"}
    window.answer("cat")
    assert window.shown == "cat/a.jpg"
    window.answer("cat")
    assert window.shown is None
    assert doubted.labels() == {"cat/a.jpg": "cat", "dog/a.jpg": "cat"}
    assert rows(doubted.file)[-2:] == [("dog/a.jpg", "cat", "review"), ("cat/a.jpg", "cat", "review")]


def test_a_suspicious_label_comes_first_even_if_the_answer_agrees_with_it(example: Example):
    example.answer(
        [
            ("cat/a.jpg", "cat", "cat", "0.5", "owl", "0.4", "0.62"),
            ("dog/a.jpg", "dog", "cat", "0.9", "dog", "0.1", "0.31"),
        ]
    )
    window = review(example)
    assert window.state["question"]["name"] == "cat/a.jpg"
    assert (window.state["question"]["given"], window.state["question"]["guess"]) == ("cat", "owl")
    window.answer("cat")
    assert window.shown == "dog/a.jpg"


def test_a_label_that_was_kept_or_corrected_is_not_reviewed_again(doubted: Example):
    review(doubted).answer("dog")
    assert review(doubted).shown == "cat/a.jpg"
    review(doubted).answer("owl")
    assert review(doubted).session.n_left == 0


def test_an_undone_review_is_open_again(doubted: Example):
    window = review(doubted)
    window.answer("cat")
    window.undo()
    assert (window.shown, window.state["question"]["given"]) == ("dog/a.jpg", "dog")
    assert doubted.labels() == KNOWN
    assert review(doubted).shown == "dog/a.jpg"


def test_a_correction_counts_against_the_folder_of_the_image(doubted: Example):
    review(doubted).answer("cat")
    photos = find_photos(doubted.photos, doubted.file, min_classes=0)
    assert photos.class_names[photos.labels[photos.names.index("dog/a.jpg")]] == "cat"


def test_a_random_image_stays_a_random_image_after_its_review(doubted: Example):
    write_label_next(doubted.run, [])
    drawn = doubted.window().answer("dog")
    doubted.answer([(drawn, "dog", "owl", "0.7")])
    review(doubted).answer("owl")
    photos = find_photos(doubted.photos, doubted.file)
    assert [photos.names[k] for k in photos.random] == [drawn]


def test_a_review_needs_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="A review needs a fit of these photos"):
        open_session(folder_of(tmp_path / "photos", "1.png"), review=True)


# --- before any fit ---------------------------------------------------------------------------------------------------


def test_labelling_starts_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    photos = folder_of(tmp_path / "my photos", "2023/1.png", "2023/2.png", "3.png")
    window = Window(open_session(Path("my photos"), classes=["rose", "tulip"]))
    assert [each["name"] for each in window.state["classes"]] == ["rose", "tulip"]
    assert window.state["question"]["guess"] == ""
    assert window.session.n_left == 3
    window.answer("rose", "lily")
    assert {chosen for _, _, chosen in rows(tmp_path / "labels.csv")} == {"random"}
    assert shlex.split(window.session.command) == ["meanteacher", "fit", "my photos", "--labels", "labels.csv"]
    again = Window(open_session(photos))
    assert (again.session.n_left, [each["name"] for each in again.state["classes"]]) == (1, ["lily", "rose"])


def test_folders_are_classes_before_a_fit_only_beside_an_unlabelled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    photos = folder_of(tmp_path / "photos", "rose/1.png", "unlabelled/2.png", "unlabelled/3.png")
    window = Window(open_session(photos))
    assert (window.session.n_left, window.state["classes"][0]["name"]) == (2, "rose")


def test_names_are_those_of_a_fit_that_entered_the_only_folder(tmp_path: Path):
    example = make_example(tmp_path)
    outer = tmp_path / "outer"
    outer.mkdir()
    inner = example.photos.rename(outer / "photos")
    example.tell_of_the_fit(photos=str(inner.resolve()))
    window = Window(open_session(outer, example.run))
    assert window.shown == ONE
    window.answer("owl")
    assert rows(example.file)[-1] == (ONE, "owl", "next")
    assert shlex.split(window.session.command)[2] == str(inner)
    assert find_photos(inner, example.file).names == window.session.photos.names


def test_a_fit_of_other_photos_is_not_taken_for_one_of_these(example: Example, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(example.run.parent)
    example.run.rename("fit")
    assert open_session(example.photos).file == Path("labels.csv")
    Example(example.photos, Path("fit")).tell_of_the_fit(photos=str(example.photos.resolve()))
    assert open_session(example.photos).file == Path("fit/labels.csv")


# --- opening ----------------------------------------------------------------------------------------------------------


def test_the_next_command_can_be_run_as_it_stands(tmp_path: Path):
    example = make_example(tmp_path / "it's here & there")
    command = shlex.split(example.session().command)
    assert command[:2] == ["meanteacher", "fit"]
    assert command[2:] == [
        str(example.photos),
        *("--labels", str(example.file)),
        *("--minutes", "10"),
        *("--out", str(example.run)),
        "--overwrite",
    ]


def test_names_that_a_spreadsheet_must_not_calculate_are_found(tmp_path: Path):
    example = make_example(tmp_path, ["=a.jpg", "'b.jpg"])
    write_label_next(example.run, [("'=a.jpg", "'-1", "0.5", ""), ("'b.jpg", "cat", "", "")])
    example.tell_of_the_fit(class_names=["-1", "cat", "dog"])
    window = example.window()
    assert window.state["question"]["guess"] == "-1"
    window.answer("dog")
    question = window.state["question"]
    assert question == question | {"guess": "cat", "confidence": None, "name": "'b.jpg"}
    window.answer("dog")
    assert example.labels() == {**KNOWN, "=a.jpg": "dog", "'b.jpg": "dog"}


def test_a_name_that_is_not_utf8_is_shown_escaped_and_labelled_by_its_bytes(tmp_path: Path):
    example = make_example(tmp_path, ["caf\udce9.jpg"])
    write_label_next(example.run, [("caf\\xe9.jpg", "dog", "0.5", "")])
    window = example.window()
    assert window.shown == "caf\\xe9.jpg"
    window.answer("cat")
    assert b"caf\xe9.jpg,cat" in example.file.read_bytes()
    assert example.session().n_left == 0


def test_images_that_are_gone_are_not_asked_about(example: Example):
    (example.photos / ONE).unlink()
    window = example.window()
    assert (window.shown, window.session.n_left) == (TWO, 2)


def test_a_folder_that_no_fit_wrote_is_refused(example: Example, tmp_path: Path):
    with pytest.raises(InputError, match=r"There is no folder .*nowhere: give the folder that `meanteacher fit` wrote"):
        open_session(example.photos, tmp_path / "nowhere")
    for content in (b"{", b"[]", b'{"data": {}}'):
        (example.run / "fit.json").write_bytes(content)
        with pytest.raises(InputError, match=r"run has no readable fit\.json"):
            example.session()


def test_an_empty_list_of_the_fit_is_no_error_and_an_empty_file_is(example: Example):
    write_label_next(example.run, [])
    assert example.window().shown in ASKED
    (example.run / "label-next.csv").write_text("")
    with pytest.raises(InputError, match=r"label-next\.csv is empty: .* Fit again"):
        example.session()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("path,guess\na,b\n", "'path,guess' instead of path,guess,confidence,reason"),
        ("path,guess,confidence,reason\na,b,c,d,e\n", "row 2 has 5 cells instead of 4"),
    ],
)
def test_a_table_of_something_else_is_refused(example: Example, content: str, words: str):
    (example.run / "label-next.csv").write_text(content)
    with pytest.raises(InputError, match=f"{words}.* Fit again"):
        example.session()


def test_a_missing_table_is_said(example: Example):
    (example.run / "label-next.csv").unlink()
    with pytest.raises(InputError, match=r"There is no file .*label-next\.csv.* Fit again"):
        example.session()


def test_another_folder_of_photos_is_noticed(example: Example):
    example.ask_about(["elsewhere/x.jpg", "elsewhere/y.jpg"])
    with pytest.raises(InputError, match=r"photos contains none of the 2 images of .*, such as 'elsewhere/x\.jpg'"):
        example.session()


def test_the_labels_file_of_the_fit_is_asked_for_when_it_is_not_known(example: Example, tmp_path: Path):
    # Else its labels would be missing from the new file, and the names of folders taken for labels.
    example.tell_of_the_fit(source="csv")
    with pytest.raises(InputError, match=r"The labels file of the fit in .*run is missing: give .* with --labels"):
        example.session()
    write_table(tmp_path / "mine.csv", {**KNOWN, TWO: "owl"})
    assert open_session(example.photos, example.run, tmp_path / "mine.csv").n_left == 2


def test_a_place_that_cannot_be_written_is_noticed_at_once(example: Example, tmp_path: Path):
    with pytest.raises(InputError, match=r"Cannot write to the folder .*nowhere"):
        open_session(example.photos, example.run, tmp_path / "nowhere" / "labels.csv")


def test_an_npz_holds_its_labels_itself(example: Example, tmp_path: Path):
    np.savez(tmp_path / "photos.npz", images=np.zeros((3, 4, 4, 3), np.uint8), labels=np.array([0, 1, -1]))
    with pytest.raises(InputError, match="contains its labels"):
        open_session(tmp_path / "photos.npz", example.run)


def test_labelling_never_asks_for_torch_itself():
    script = "import sys; import meanteacher.photos.label.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
