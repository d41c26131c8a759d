"""labels.csv as people write it: read, or refused with the row that is wrong."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meanteacher.core import InputError
from meanteacher.photos.folder.tables import LabelRow, read_labels, write_labels

PLAIN = [LabelRow(2, "a.jpg", "cat"), LabelRow(3, "b/c.jpg", "")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "labels.csv"


@pytest.mark.parametrize(
    "data",
    [
        b"path,label\na.jpg,cat\nb/c.jpg,\n",
        b"path,label\r\na.jpg,cat\r\nb/c.jpg,\r\n",
        b"path,label\ra.jpg,cat\rb/c.jpg,\r",
        b"path,label\na.jpg,cat\nb/c.jpg,",
        b"\xef\xbb\xbfpath,label\na.jpg,cat\nb/c.jpg,\n",
        b"path;label\na.jpg;cat\nb/c.jpg;\n",
        b'"path";"label"\r\n"a.jpg";"cat"\r\n"b/c.jpg";""\r\n',
        b"path\tlabel\na.jpg\tcat\nb/c.jpg\t\n",
        b"Path, Label\na.jpg, cat \nb/c.jpg,  \t \n",
        b"path,label\na.jpg,cat\nb/c.jpg,\n\n,\n  \n",
        b"label,path\ncat,a.jpg\n,b/c.jpg\n",
        b"path,label,plant\na.jpg,cat,7\nb/c.jpg,\n",
    ],
    ids=[
        "plain",
        "CRLF",
        "CR",
        "no end",
        "BOM",
        "semicolons",
        "quotes",
        "tabs",
        "spaces",
        "empty rows",
        "order",
        "more",
    ],
)
def test_the_ways_of_writing_the_same_file(data: bytes, file: Path) -> None:
    file.write_bytes(data)
    assert read_labels(file) == PLAIN


def test_rows_are_counted_as_a_person_counts_lines(file: Path) -> None:
    file.write_text('path,label\n\na.jpg,"two\nlines"\nb.jpg,cat\n')
    assert [row.number for row in read_labels(file)] == [3, 5]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", r"labels.csv is empty: its first row must be path,label"),
        (b"\xef\xbb\xbf \r\n", r"is empty"),
        (b"name,class\na.jpg,cat\n", r"the columns 'name,class' instead of path,label"),
        (b"a.jpg,cat\nb.jpg,dog\n", r"columns 'a.jpg,cat' instead of path,label"),
        (b"path,guess,confidence\na.jpg,cat,1\n", r"columns 'path,guess,confidence' instead of path,label"),
        (b"path,label,plant\na.jpg,cat,1,2\n", r"row 2 has 4 cells instead of 3"),
        (b"label,plant,path\na.jpg,cat\n", r"row 2 has 2 cells instead of 3"),
        (b"path,label\na.jpg,cat\nb.jpg\n", r"row 3 has 1 cell instead of 2"),
        (
            b"path,label\na, b.jpg,cat\n",
            r'row 2 has 3 cells instead of 2: put a name that contains a "," in double quotes',
        ),
        (b"path;label\na;b.jpg;cat\n", r'row 2 has 3 cells .* contains a ";"'),
        (b"path,label\n\n,cat\n", r"row 3 has the label 'cat' but no path"),
        (b"path,label\na.jpg,caf\xe9\n", r"row 2 has a label that is not UTF-8: save it as \"CSV UTF-8\""),
        (b'path,label\na.jpg,cat\nb.jpg,"dog\nc.jpg,cat\n', r"row 3 cannot be read .* check its double quotes"),
        (b'path,label\n"a"b.jpg,cat\n', r"row 2 cannot be read .* check its double quotes"),
        ("path,label\na.jpg,cat\n".encode("utf-16"), r"is UTF-16 instead of UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_by_its_row(data: bytes, words: str, file: Path) -> None:
    file.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_labels(file)
    assert str(file) in str(caught.value)


def test_a_file_that_cannot_be_read_is_said_to_be_missing_or_why(file: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*labels.csv: expected a CSV"):
        read_labels(file)
    file.mkdir()
    with pytest.raises(InputError, match=r"Cannot read .*labels.csv \(Is a directory\)"):
        read_labels(file)


NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: b"\0" not in name and name.strip()).map(os.fsdecode)
LABELS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.strip)


@settings(max_examples=40, deadline=None, database=None)
@given(st.dictionaries(NAMES.filter(lambda name: bool(name.strip())), LABELS, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: dict[str, str]) -> None:
    file = tmp_path_factory.getbasetemp() / "labels.csv"
    write_labels(file, [LabelRow(0, *each) for each in rows.items()])
    assert [(row.path, row.label) for row in read_labels(file)] == list(rows.items())


@pytest.mark.parametrize(
    "label", ["a/b", 'say "x"', "it's", "a,b", "a;b", "two\nlines", "cr\rlf", "=1+1", "@x", "-", "é"]
)
def test_a_class_may_have_any_name(label: str, file: Path) -> None:
    write_labels(file, [LabelRow(0, "a.jpg", label), LabelRow(0, "b.jpg", "cat")])
    assert [row.label for row in read_labels(file)] == [label, "cat"]


def test_a_failed_write_leaves_the_old_file_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_labels(file, [LabelRow(0, "a.jpg", "cat")])
    before = file.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meanteacher.files.os.fsync", fail)
    with pytest.raises(InputError, match=r"Could not write .*labels.csv \(No space left on device\)"):
        write_labels(file, [LabelRow(0, "a.jpg", "dog")])
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
