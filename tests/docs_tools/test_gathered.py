import json

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
    kept = ("recipe", "recipe_fingerprint", "seed", "split_fingerprint", "data", "environment", "steps", "alarms")
    assert {name: getattr(again, name) for name in kept} == {name: getattr(record, name) for name in kept}


def test_a_run_is_one_line_and_runs_share_what_is_equal(run):
    elsewhere = run("vat", 1).environment | {"threads": 8}
    text = gathered([run("vat", 0), run("vat", 1), run("vat", 2, environment=elsewhere)])
    content = json.loads(text)
    assert len(content["data"]) == 1
    assert [environment["threads"] for environment in content["environments"]] == ["2", "8"]
    assert [line["environment"] for line in content["runs"]] == [0, 0, 1]
    assert len([line for line in text.splitlines() if '"seed"' in line]) == 3


def test_runs_on_several_data_sets_keep_their_own(run, path):
    path.write_text(gathered([run(n_test=500), run(n_test=600)]), encoding="utf-8")
    assert [record.data.n_test for record in load_gathered(path)] == [500, 600]


def test_an_unfinished_run_is_left_out(run, path):
    path.write_text(gathered([run(seed=0), run(seed=1, status="diverged")]), encoding="utf-8")
    assert [record.seed for record in load_gathered(path)] == [0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "schema is 2, this version reads 1"),
        ({"data": []}, r"runs\[0\].data is 0, expected a place in the list of 0"),
        ({"runs": [{}]}, r"the field runs\[0\].student is missing"),
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
