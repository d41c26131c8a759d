"""A file is read as the value that was written, and anything else is one sentence."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fit_example import NO_PLOTS, as_fit, fit_example
from meanteacher.files import write_json
from meanteacher.files.typed import RecordError, read_json
from meanteacher.records import Fit, Record, WorkRecord, load_record, read_fit, write_record

ODD = "caf\udce9"
"""The name of a file with a byte that is not UTF-8, as os.fsdecode spells it."""


def test_a_record_is_read_as_it_was_written(run, tmp_path: Path):
    record = replace(run(), file="")
    odd = replace(record, data=replace(record.data, class_names=(ODD, "one")))
    for number, each in enumerate((record, odd)):
        path = tmp_path / f"{number}.json"
        write_record(path, each)
        assert load_record(path) == each
        assert load_record(path).file == str(path)
        assert "file" not in json.loads(path.read_text())


def test_names_that_are_not_utf8_are_read_as_they_were_written(tmp_path: Path):
    fit = as_fit(fit_example(**NO_PLOTS))
    names = (ODD, *fit.data.class_names[1:])
    data = replace(fit.data, class_names=names, photos=f"/photos/{ODD}", labels_file=f"/{ODD}.csv")
    fit = replace(fit, folder=f"/fits/{ODD}", data=data)
    write_json(tmp_path / "fit.json", asdict(fit))
    assert read_fit(tmp_path) == fit


@pytest.mark.parametrize("lone", ["\ud800", "a\0b"], ids=ascii)
def test_half_a_surrogate_pair_and_nul_are_no_name(lone: str, tmp_path: Path):
    write_json(tmp_path / "fit.json", fit_example(folder=lone))
    with pytest.raises(RecordError, match=r"fit\.json: Expected `str` matching regex .* at `\$\.folder`"):
        read_fit(tmp_path)


def test_a_sentence_that_no_terminal_shows_is_refused(tmp_path: Path):
    write_json(tmp_path / "fit.json", fit_example(title=ODD))
    with pytest.raises(RecordError, match=r"at `\$\.title`"):
        read_fit(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"spent": NaN}', "Expected `float` >= 0.0 - at `$.spent`"),
        ('{"spent": 1e999}', "Expected `float` <= 1e+100 - at `$.spent`"),
        ('{"spent": 1e308}', "Expected `float` <= 1e+100 - at `$.spent`"),  # the sum of two has no value
        (f'{{"spent": {10**400}}}', "Number out of range - at `$.spent`"),
        (f'{{"spent": {"9" * 5000}}}', "is not valid JSON"),
        ('{"steps": 1e3}', "Expected `int`, got `float` - at `$.steps`"),
        (f'{{"steps": {10**30}}}', "Expected `int` <= 1099511627776 - at `$.steps`"),
        ('{"flip": 1}', "Expected `bool`, got `int` - at `$.flip`"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"\\ud800": 1}', "surrogates not allowed"),
        ("{}", "Object missing required field"),
        ("[]", "Expected `object`, got `array`"),
    ],
    ids=lambda text: text[:25],
)
def test_what_is_no_work_file_is_refused_in_one_sentence_with_file_and_place(text: str, words: str, tmp_path: Path):
    (tmp_path / "work.json").write_text(text)
    with pytest.raises(RecordError) as refused:
        read_json(tmp_path / "work.json", WorkRecord, "Fit again.")
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / 'work.json'}: ")
    assert words in message
    assert message.endswith(". Fit again.")
    assert len(message) < 500


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "work.json").write_text(" " * 100)
    with pytest.raises(RecordError, match="100 bytes, at most 99 are read"):
        read_json(tmp_path / "work.json", WorkRecord, most=99)


def test_a_confusion_matrix_has_a_row_and_a_column_per_class(tmp_path: Path):
    for damage in ([], [[1]], fit_example()["confusion"][1:], [row[1:] for row in fit_example()["confusion"]]):
        write_json(tmp_path / "fit.json", fit_example(confusion=damage))
        with pytest.raises(RecordError, match="Expected a confusion matrix of 8 rows and columns"):
            read_fit(tmp_path)


@pytest.mark.parametrize("kind", [Record, Fit, WorkRecord])
def test_types_do_not_change(kind: type[Any]):
    assert kind.__dataclass_params__.frozen
    assert hasattr(kind, "__slots__")
