"""Every answer is in the file at once, nothing that stood there is lost, and a sitting goes on where one stopped."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from label_example import ASKED, KNOWN, Example, make_example, write_label_next
from meanteacher.core import InputError
from meanteacher.photos.folder.tables import read_labels, write_labels
from meanteacher.photos.label import session as session_module
from meanteacher.photos.label.session import open_session
from support import held_by_another_process

ONE, TWO, THREE = ASKED


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return make_example(tmp_path)


def test_every_answer_is_in_the_file_at_once_beside_the_labels_known_before(example: Example):
    session = example.session()
    assert not example.file.exists()
    session.answer(0, "owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}
    session.answer(1, "cat")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "cat"}


def test_a_question_says_what_the_model_makes_of_the_image(example: Example):
    assert example.session().state()["question"] == {
        "position": 0,
        "number": 1,
        "name": ONE,
        "guess": "dog",
        "confidence": "41.2 %",
        "reason": "hesitates between dog (41.2 %) and cat (38.0 %)",
    }


def test_images_are_asked_in_the_order_of_the_fit_until_none_is_left(example: Example):
    session = example.session()
    asked = []
    while question := session.state()["question"]:
        asked.append(question["name"])
        session.answer(question["position"], "cat")
    assert asked == list(ASKED)
    state = session.state()
    assert (state["total"], state["labelled"], state["skipped"], session.n_left) == (3, 3, 0, 0)


def test_a_new_sitting_goes_on_where_the_last_one_stopped(example: Example):
    first = example.session()
    first.answer(0, "owl")
    first.skip(1)
    second = example.session()
    assert second.state()["question"]["name"] == TWO
    assert (second.state()["labelled"], second.n_left, second.n_answered) == (1, 2, 0)
    second.answer(1, "dog")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "dog"}


def test_undo_takes_the_label_out_of_the_file_and_asks_again(example: Example):
    session = example.session()
    session.answer(0, "owl")
    session.answer(1, "cat")
    session.undo()
    assert example.labels() == {**KNOWN, ONE: "owl"}
    assert session.state()["question"]["name"] == TWO
    session.undo()
    assert example.labels() == KNOWN
    assert session.state()["question"]["name"] == ONE
    assert session.state()["last"] is None
    session.undo()
    assert session.state()["question"]["name"] == ONE


def test_undo_names_the_label_it_takes_back_and_puts_back_what_stood_there(example: Example):
    write_labels(example.file, {**KNOWN, ONE: ""})
    session = example.session()
    session.answer(0, "owl")
    session.answer(1, "cat")
    assert session.state()["last"] == {"label": "cat"}
    session.undo()
    assert session.state()["last"] == {"label": "owl"}
    session.answer(1, "dog")
    session.undo()
    session.undo()
    assert example.labels() == {**KNOWN, ONE: ""}
    assert session.n_answered == 0


def test_undo_leaves_a_label_that_another_sitting_has_written(example: Example):
    first, second = example.session(), example.session()
    first.answer(0, "owl")
    second.answer(0, "cat")
    first.undo()
    assert example.labels() == {**KNOWN, ONE: "cat"}
    assert first.state()["question"]["name"] == ONE
    second.undo()
    assert example.labels() == {**KNOWN, ONE: "owl"}


def test_undo_takes_a_skip_back(example: Example):
    session = example.session()
    session.skip(0)
    assert (session.state()["question"]["name"], session.state()["skipped"]) == (TWO, 1)
    assert session.state()["last"] == {"label": None}
    session.undo()
    assert (session.state()["question"]["name"], session.state()["skipped"]) == (ONE, 0)
    assert not example.file.exists()


def test_skipped_images_can_be_asked_again_at_the_end(example: Example):
    session = example.session()
    session.skip(0)
    session.answer(1, "cat")
    session.skip(2)
    assert session.state()["question"] is None
    assert session.n_left == 2
    session.ask_skipped_again()
    assert (session.state()["question"]["name"], session.state()["skipped"]) == (ONE, 0)
    # What is left to undo is the answer; it is asked first, then the skipped ones.
    session.undo()
    assert session.state()["question"]["name"] == TWO
    for label in ("dog", "owl", "cat"):
        session.answer(session.state()["question"]["position"], label)
    assert example.labels() == {**KNOWN, TWO: "dog", ONE: "owl", THREE: "cat"}


def test_an_answer_to_an_image_that_is_not_asked_changes_nothing(example: Example):
    session = example.session()
    session.answer(0, "owl")
    session.answer(0, "cat")
    session.answer(2, "cat")
    session.skip(0)
    session.skip(-1)
    assert example.labels() == {**KNOWN, ONE: "owl"}
    assert session.state()["question"]["name"] == TWO
    session.answer(1, "cat")
    session.answer(2, "cat")
    session.answer(2, "dog")
    assert example.labels()[THREE] == "cat"


def test_a_class_that_is_new_joins_the_others_with_a_key_of_its_own(example: Example):
    session = example.session()
    session.answer(0, "  snowy owl ")
    assert example.labels()[ONE] == "snowy owl"
    assert session.state()["classes"] == [
        {"name": "cat", "keys": ("c", "C")},
        {"name": "dog", "keys": ("d", "D")},
        {"name": "owl", "keys": ("o", "O")},
        {"name": "snowy owl", "keys": ("s", "S")},
    ]
    assert example.session().state()["classes"] == session.state()["classes"]


@pytest.mark.parametrize("label", ["", "  ", "two\nlines", "\x07", "\udcff", "x" * 101])
def test_a_class_has_a_name_of_one_line(example: Example, label: str):
    session = example.session()
    with pytest.raises(InputError, match="one line of 1 to 100 printable characters"):
        session.answer(0, label)
    assert session.state()["question"]["name"] == ONE
    assert not example.file.exists()


def test_a_disk_that_fails_loses_nothing_and_the_question_remains(example: Example, monkeypatch):
    session = example.session()
    session.answer(0, "owl")

    def full(*_: object) -> None:
        raise InputError("Could not write.")

    monkeypatch.setattr(session_module, "write_labels", full)
    for action in (lambda: session.answer(1, "cat"), session.undo):
        with pytest.raises(InputError, match="Could not write"):
            action()
        assert session.state()["question"]["name"] == TWO
        assert session.n_answered == 1
    assert example.labels() == {**KNOWN, ONE: "owl"}


def test_a_folder_that_disappears_loses_nothing_once_it_is_back(example: Example):
    session = example.session()
    away = example.run.rename(example.run.with_name("away"))
    with pytest.raises(InputError, match=r"The folder .*run is missing"):
        session.answer(0, "owl")
    away.rename(example.run)
    session.answer(0, "owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}


def test_rows_that_others_write_meanwhile_are_kept(example: Example):
    first, second = example.session(), example.session()
    first.answer(0, "owl")
    second.skip(0)
    second.answer(1, "dog")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "dog"}
    first.undo()
    assert example.labels() == {**KNOWN, TWO: "dog"}


def test_an_answer_waits_for_another_sitting_to_write_its_own(example: Example, monkeypatch: pytest.MonkeyPatch):
    session = example.session()
    monkeypatch.setattr(session_module, "_SECONDS", 0.1)
    with (
        held_by_another_process(example.run / ".labels.csv.lock"),
        pytest.raises(InputError, match=r"Another program has been writing .*labels\.csv .*: answer again"),
    ):
        session.answer(0, "owl")
    assert session.state()["question"]["name"] == ONE
    session.answer(0, "owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}


def test_a_file_system_without_locks_can_be_labelled_on(example: Example, monkeypatch: pytest.MonkeyPatch):
    def no_locks(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(session_module, "locked", no_locks)
    example.session().answer(0, "owl")
    assert example.labels() == {**KNOWN, ONE: "owl"}


def test_a_labels_file_that_is_deleted_meanwhile_is_written_anew(example: Example):
    session = example.session()
    session.answer(0, "owl")
    example.file.unlink()
    session.answer(1, "cat")
    assert example.labels() == {**KNOWN, ONE: "owl", TWO: "cat"}


def test_a_labels_file_of_ones_own_keeps_its_rows(example: Example, tmp_path: Path):
    file = tmp_path / "mine.csv"
    rows = {"photos/dog/a.jpg": "dog", "cat/a.jpg": "cat", f"photos/{ONE}": "", TWO: "owl"}
    write_labels(file, rows)
    session = open_session(example.photos, example.run, file)
    assert [session.state()["question"]["name"], session.n_left] == [ONE, 2]
    session.answer(0, "cat")
    session.answer(2, "dog")
    assert [row[1:] for row in read_labels(file)] == [*rows.items(), (ONE, "cat"), (THREE, "dog")]
    # Whatever spelling the rows have, the images are what was said.
    assert open_session(example.photos, example.run, file).n_left == 0


def test_a_row_without_a_label_takes_none_away(example: Example):
    example.file.write_text(f"path,label\ncat/a.jpg,cat\ndog/a.jpg,dog\n{ONE},owl\n{ONE},\n")
    example.session().answer(1, "cat")
    assert example.labels()[ONE] == "owl"


def test_a_labels_file_starts_with_the_rows_of_the_one_that_the_fit_was_given(example: Example, tmp_path: Path):
    used = tmp_path / "used.csv"
    write_labels(used, {"photos/cat/a.jpg": "cat", "photos/dog/a.jpg": "dog", f"photos/{TWO}": "owl"})
    example.tell_of_the_fit(source="csv", labels_file=str(used))
    session = example.session()
    session.answer(0, "cat")
    assert session.state()["question"]["name"] == THREE
    assert example.labels() == {**KNOWN, ONE: "cat", TWO: "owl"}


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
    session = example.session()
    assert session.state()["question"]["guess"] == "-1"
    session.answer(0, "dog")
    assert (
        session.state()["question"] | {"guess": "cat", "confidence": None, "name": "'b.jpg"}
        == (session.state()["question"])
    )
    session.answer(1, "dog")
    assert example.labels() == {**KNOWN, "=a.jpg": "dog", "'b.jpg": "dog"}


def test_a_name_that_is_not_utf8_is_shown_escaped_and_labelled_by_its_bytes(tmp_path: Path):
    example = make_example(tmp_path, ["caf\udce9.jpg"])
    write_label_next(example.run, [("caf\\xe9.jpg", "dog", "0.5", "")])
    session = example.session()
    assert session.state()["question"]["name"] == "caf\\xe9.jpg"
    session.answer(0, "cat")
    assert b"caf\xe9.jpg,cat" in example.file.read_bytes()
    assert example.session().n_left == 0


def test_images_that_are_gone_are_not_asked_about(example: Example):
    (example.photos / ONE).unlink()
    session = example.session()
    assert session.state()["question"]["name"] == TWO
    assert session.state()["total"] == 2


def test_a_folder_that_no_fit_wrote_is_refused(example: Example, tmp_path: Path):
    with pytest.raises(InputError, match=r"There is no folder .*nowhere: give the folder that `meanteacher fit` wrote"):
        open_session(example.photos, tmp_path / "nowhere")
    for content in (b"{", b"[]", b'{"data": {}}'):
        (example.run / "fit.json").write_bytes(content)
        with pytest.raises(InputError, match=r"run has no readable fit\.json"):
            example.session()


def test_nothing_to_ask_is_said(example: Example):
    write_label_next(example.run, [])
    with pytest.raises(InputError, match=r"label-next\.csv lists no image"):
        example.session()
    (example.run / "label-next.csv").write_text("")
    with pytest.raises(InputError, match=r"label-next\.csv is empty: .* Fit again"):
        example.session()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("path,guess\na,b\n", "'path,guess' instead of path,guess,confidence,reason"),
        ("path,guess,confidence,reason\na,b\n", "row 2 has 2 cells instead of 4"),
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
    with pytest.raises(InputError, match=r"does not name the labels file .*: give that file with --labels"):
        example.session()
    write_labels(tmp_path / "mine.csv", {**KNOWN, TWO: "owl"})
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
