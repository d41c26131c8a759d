import copy
import json
from pathlib import Path

import pytest

from meanteacher.report import RecordError, load_record, load_records

OPTIONAL = {
    ("schema",),
    ("recipe", "claim"),
    ("recipe", "deviations"),
    ("errors", "best_validation"),
    ("errors", "last", "student", "validation"),
    ("errors", "last", "teacher", "validation"),
}
FREE = {("recipe", "fields"), ("environment",)}


def places(value, at=()):
    """Every place in a record, from the outermost in."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*at, key)
        if (*at, key) not in FREE:
            yield from places(child, (*at, key))


def change(record, place, value):
    record = copy.deepcopy(record)
    parent = record
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    return record


def remove(record, place):
    record = copy.deepcopy(record)
    parent = record
    for key in place[:-1]:
        parent = parent[key]
    del parent[place[-1]]
    return record


def spelled(place):
    """As an error names the object that lacks the field."""
    inside = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place[:-1])
    return f"missing required field `{place[-1]}`" + (f" - at `${inside}`" if inside else "")


def test_a_record_is_read_as_it_was_written(run):
    alarm = {"step": 10, "kind": "dead-cost", "sentence": "It moves nothing."}
    record = run("pi-model", 3, student=0.12, teacher=0.08, alarms=[alarm])
    assert (record.recipe.name, record.method, record.seed) == ("digits/pi-model", "pi-model", 3)
    assert record.errors.last.student.test == 0.12
    assert record.errors.last.teacher.test == 0.08
    assert record.errors.last.student.validation is None
    assert record.data.n_labelled == 40
    assert record.data.class_names == ("zero", "one", "two")
    assert record.split_fingerprint == "split-40-3"
    assert [(point.step, point.teacher) for point in record.curve] == [(300, 0.6), (600, 0.08)]
    assert record.vitals[0].gradients == {"classification": 1.2, "consistency": 0.01}
    assert record.alarms[0].sentence == "It moves nothing."
    assert record.environment["threads"] == 2


def test_the_error_of_a_run_is_the_teacher_s(run):
    assert run(student=0.12, teacher=0.08).error("test") == 0.08


def test_an_error_that_was_not_measured_is_not_invented(run):
    with pytest.raises(RecordError, match=r"no validation error.*run the recipe with validation images"):
        run().error("validation")


def test_a_missing_field_is_named(content, write):
    record = content(alarms=[{"step": 10, "kind": "dead-cost", "sentence": "It moves nothing."}])
    named = [place for place in places(record) if isinstance(place[-1], str) and place not in OPTIONAL]
    free = [place for place in named if place[:2] == ("vitals", 0) and place[2] == "gradients"]
    required = [place for place in named if place not in free or place[-1] == "gradients"]
    assert len(required) > 40
    for place in required:
        with pytest.raises(RecordError) as error:
            load_record(write(remove(record, place)))
        assert spelled(place) in str(error.value)


def test_no_broken_field_escapes_as_another_error(content, write):
    record = content(alarms=[{"step": 10, "kind": "dead-cost", "sentence": "It moves nothing."}])
    path = write(record)
    complaints = []
    for place in places(record):
        for junk in (None, True, -1, 10**400, "junk", [1], {"a": 1}, float("nan")):
            path.write_text(json.dumps(change(record, place, junk)))
            try:
                load_record(path)
            except RecordError as error:
                complaints.append(str(error))
    assert len(complaints) > 300
    assert all(str(path) in complaint for complaint in complaints)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("errors", "last", "teacher", "test"), 3.1, r"Expected `float` <= 1.0 - at `\$.errors.last.teacher.test`"),
        (("curve", 1, "student"), -0.1, r"Expected `float` >= 0.0 - at `\$.curve\[1\].student`"),
        (("curve", 0, "part"), "train", r"Invalid enum value 'train' - at `\$.curve\[0\].part`"),
        (("seed",), True, r"Expected `int`, got `bool` - at `\$.seed`"),
        (("seconds",), float("nan"), r"Expected `float` >= 0.0 - at `\$.seconds`"),
        (("seconds",), -1, r"Expected `float` >= 0.0 - at `\$.seconds`"),
        (("method",), "", r"Expected `str` of length >= 1 - at `\$.method`"),
        (("data",), [], r"Expected `object`, got `array` - at `\$.data`"),
        (("alarms",), {}, r"Expected `array`, got `object` - at `\$.alarms`"),
        (("environment", "torch"), [1], r"got `array` - at `\$.environment\[...\]`"),
        (("errors", "last"), None, r"Expected `object`, got `null` - at `\$.errors.last`"),
        (("schema",), 2, "the schema is 2, this version reads 1. Use the version of meanteacher that wrote it"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(content, write, place, value, words):
    with pytest.raises(RecordError, match=words):
        load_record(write(change(content(), place, value)))


@pytest.mark.parametrize("text", [b'{"schema": 1, "recipe"', b"\xff\xfe", b""])
def test_a_file_cut_short_or_not_text_is_a_record_error(tmp_path: Path, text):
    path = tmp_path / "record.json"
    path.write_bytes(text)
    with pytest.raises(RecordError, match=r"record\.json: is not valid JSON"):
        load_record(path)


def test_a_record_that_is_not_an_object_is_a_record_error(tmp_path: Path):
    path = tmp_path / "record.json"
    path.write_text("[]")
    with pytest.raises(RecordError, match=r"record.json: Expected `object`, got `array`"):
        load_record(path)


def test_a_missing_file_is_a_record_error(tmp_path: Path):
    with pytest.raises(RecordError, match="cannot be read"):
        load_record(tmp_path / "record.json")


def test_records_are_found_below_a_folder_in_the_order_of_their_paths(content, tmp_path: Path):
    for name in ("b/1", "a/deep/er", "a-b", "b/0"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(content()))
        (folder / "notes.json").write_text("not a record")
    found = [Path(record.file).parent.relative_to(tmp_path).as_posix() for record in load_records(tmp_path)]
    assert found == ["a/deep/er", "a-b", "b/0", "b/1"]


def test_a_folder_without_records_says_so(tmp_path: Path):
    with pytest.raises(RecordError, match=r"no record\.json below it. Run a recipe"):
        load_records(tmp_path)
    with pytest.raises(RecordError, match="is not a folder"):
        load_records(tmp_path / "missing")
