import json
from dataclasses import replace

import pytest

from meanteacher.report import RecordError, paired_difference, summarise
from methods_page import gathered, load_gathered


@pytest.fixture
def records(run):
    return [
        run(method, seed, student=0.2, teacher=error + 0.01 * seed**2)
        for method, error in (("supervised", 0.1), ("vat", 0.07))
        for seed in range(3)
    ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.json"


def test_the_gathered_runs_give_the_same_tables_and_differences(records, path):
    path.write_text(gathered(records), encoding="utf-8")
    again = load_gathered(path)
    assert summarise(again) == summarise(records)
    assert paired_difference(again, "supervised", "vat") == paired_difference(records, "supervised", "vat")


def test_a_run_keeps_what_is_needed_to_make_it_again(run, path):
    alarm = {"step": 3, "kind": "collapse", "sentence": "All is one."}
    record = run(seed=7, alarms=[alarm])
    path.write_text(gathered([record]), encoding="utf-8")
    (again,) = load_gathered(path)
    left_out = {"recipe": replace(record.recipe, fields={}), "curve": (), "vitals": ()}
    assert again == replace(record, **left_out)


def test_a_run_is_one_line(run):
    text = gathered([run("vat", seed) for seed in range(3)])
    assert len([line for line in text.splitlines() if '"seed"' in line]) == 3


def test_runs_on_several_data_sets_keep_their_own(run, path):
    path.write_text(gathered([run(n_test=500), run(n_test=600)]), encoding="utf-8")
    assert [record.data.n_test for record in load_gathered(path)] == [500, 600]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "schema is 2, this version reads 1"),
        ({"runs": [{}]}, r"missing required field `recipe` - at `\$.runs\[0\]`"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(records, path, change, words):
    path.write_text(json.dumps(json.loads(gathered(records)) | change), encoding="utf-8")
    with pytest.raises(RecordError, match=words):
        load_gathered(path)


@pytest.mark.parametrize("content", [None, "{"])
def test_a_file_that_cannot_be_read_is_refused(path, content):
    if content:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(
        RecordError, match=r"records.json: (cannot be read|is not valid) .* Write it again from the runs"
    ):
        load_gathered(path)
