import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from meanteacher.report import RecordError, load_record, render_page, write_page

EMPTY_ELEMENTS = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Text, attributes and nesting of a page."""

    def __init__(self, html):
        super().__init__()
        self.text, self.attributes, self.open, self.tags, self.elements = "", [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def attributes_of(self, tag):
        return [pair for its, attrs in self.elements for pair in attrs if its == tag]

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.elements.append((tag, attrs))
        self.attributes += attrs
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += " ".join([*data.split(), ""])


def curve_on(part, step=600):
    return [
        {"step": step, "part": part, "student": 0.4, "teacher": 0.5},
        {"step": 2 * step, "part": part, "student": 0.3, "teacher": 0.25},
    ]


@pytest.fixture
def records(run):
    errors = {"supervised": (0.10, 0.14, 0.12), "mean-teacher": (0.05, 0.06, 0.07)}
    return [
        run(method, seed, student=error + 0.01, teacher=error)
        for method, its in errors.items()
        for seed, error in enumerate(its)
    ]


def test_the_answer_comes_first(records):
    text = Page(render_page(records, "Digits")).text
    answer = "With 40 labels, the test error is 6.0 % with Mean Teacher and 12.0 % with supervised-only training"
    assert text.startswith(
        f"Digits Digits {answer}: 6.0 points lower, with a standard error of 1.0 over 3 label draws."
    )


def test_the_table_holds_both_networks_of_every_method(records):
    text = Page(render_page(records, "Digits")).text
    assert "Supervised-only 13.0 ± 2.0 12.0 ± 2.0 – 3 " in text
    assert "Mean Teacher 7.0 ± 1.0 6.0 ± 1.0 −6.0 ± 1.0 3 " in text


def test_the_page_is_well_formed_and_its_ids_are_unique(records, run):
    more = [run(method, seed, n_labelled=100) for method in ("supervised", "mean-teacher") for seed in (0, 1)]
    page = Page(render_page(records + more, "Digits"))
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) > 8
    assert sorted(ids) == sorted(set(ids))
    assert page.tags.count("svg") == 4


def test_the_page_fetches_nothing(records):
    html = render_page(records, "Digits")
    links = [v for n, v in Page(html).attributes if n in ("src", "srcset", "href", "xlink:href", "action", "data")]
    assert links
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)]*)", html))
    assert "@import" not in html
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))
    assert "default-src 'none'" in html
    assert not {"script", "iframe", "object", "embed", "img"} & set(Page(html).tags)
    assert Page(html).attributes_of("link") == [("rel", "icon"), ("href", "data:,")]


def test_a_script_in_a_record_is_shown_and_not_run(content, write):
    def hostile(place):
        return f"<script>{place}</script>"

    record = content(hostile("method"), 0)
    record["recipe"] = {
        "name": hostile("recipe"),
        "fingerprint": hostile("fingerprint"),
        "fields": {hostile("key"): [hostile("value")]},
        "claim": {"error": 1.0, "spread": None, "where": hostile("where"), "metric": "error"},
        "deviations": [hostile("deviation")],
    }
    record["data"]["class_names"] = [hostile("class"), "one"]
    record["environment"] = {hostile("tool"): hostile("version")}
    record["vitals"][0]["gradients"] = {hostile("cost"): 1.0}
    record["alarms"] = [{"step": 1, "kind": "x", "sentence": hostile("sentence")}]
    html = render_page([load_record(write(record))], hostile("title"))
    assert "<script" not in html
    text = Page(html).text
    for place in (
        *("method", "recipe", "fingerprint", "key", "value", "class"),
        *("tool", "version", "cost", "sentence", "title", "where", "deviation"),
    ):
        assert hostile(place) in text


def test_alarms_are_plain_sentences_announced_at_the_top(records, run):
    alarm = {"step": 10, "kind": "dead-cost", "sentence": "The consistency cost moves nothing."}
    text = Page(render_page([*records, run(seed=3, alarms=[alarm])], "Digits")).text
    assert "1 alarm: see Health checks" in text
    assert "digits/mean-teacher, label draw 3, step 10: The consistency cost moves nothing." in text
    assert "No alarms" not in text


def test_no_alarms_is_said_with_the_number_of_checks(records):
    text = Page(render_page(records, "Digits")).text
    assert "No alarms in 6 checks of 6 runs." in text
    assert "see Health checks" not in text


def test_runs_without_checks_are_not_called_healthy(run):
    text = Page(render_page([run(vitals=[])], "Digits")).text
    assert "No alarms, but the runs made no checks either." in text


def test_the_last_check_of_every_cost_is_shown(content, write):
    record = content()
    later = {"step": 9, "gradients": {"consistency": 0.5}, "distance": None, "largest_class_share": 0.25}
    record["vitals"].append(record["vitals"][0] | later)
    text = Page(render_page([load_record(write(record))], "Digits")).text
    assert "Gradient, classification Gradient, consistency Distance Largest class" in text
    assert "Mean Teacher – 0.5 – 25.0 %" in text


def test_provenance_holds_versions_fingerprints_and_times(content, write):
    records = [content(seed=0, seconds=75.0), content(seed=1, seconds=5.0)]
    for record in records:
        record["environment"]["commit"] = None
    text = Page(render_page([load_record(write(record)) for record in records], "Digits")).text
    for words in (
        "torch 2.13.0",
        "commit not recorded",
        "threads 2",
        "data data-of-digits",
        "1,200 to train",
        "3: zero, one, two",
        "recipe-of-mean-teacher",
        "split-40-0",
        "2 runs, 1 min 20 s together",
        "1 min 15 s",
        "5.0 s",
        '"learning_rate": 0.003',
    ):
        assert words in text
    assert "differ in" not in text


def test_runs_made_under_different_conditions_are_said_to_differ(content, records, write):
    record = content(seed=3)
    record["environment"]["threads"] = 8
    text = Page(render_page([*records, load_record(write(record))], "Digits")).text
    assert "they differ in threads." in text
    assert "threads 2 / 8" in text


def test_every_number_of_labels_has_its_own_answer(records, run):
    more = [run(method, seed, n_labelled=100) for method in ("supervised", "mean-teacher") for seed in (0, 1)]
    text = Page(render_page(more + records, "Digits")).text
    assert 0 < text.index("With 40 labels, the test") < text.index("With 100 labels, the test")


def test_a_page_can_be_about_validation_images(content, write):
    record = content()
    record["data"]["n_validation"] = 200
    record["errors"]["last"]["teacher"]["validation"] = 0.25
    record["curve"] = curve_on("validation")
    text = Page(render_page([load_record(write(record))], "Own images", part="validation")).text
    assert "the validation error is 25.0 % with Mean Teacher." in text
    assert "200 validation images" in text
    assert "Validation error, %" in text


def test_a_run_that_evaluated_validation_images_shows_their_curve_beside_its_test_error(run):
    text = Page(render_page([run(curve=curve_on("validation"))], "Digits")).text
    assert "the test error is 8.0 % with Mean Teacher." in text
    assert "Validation error, %" in text


@pytest.mark.parametrize("n_points", [0, 1])
def test_runs_without_a_curve_have_no_empty_plot(run, n_points):
    runs = [run(seed=seed, curve=curve_on("test", 600 + seed)[:n_points]) for seed in (0, 1)]
    page = Page(render_page(runs, "Digits"))
    assert page.tags.count("svg") == 1
    assert "During training" not in page.text
    assert "During training" in Page(render_page([run(seed=3)], "Digits")).text


def test_a_pair_on_different_labelled_sets_makes_no_page(content, run, write):
    other = content("mean-teacher")
    other["split_fingerprint"] = "another"
    with pytest.raises(RecordError, match="not the labelled set"):
        render_page([run("supervised"), load_record(write(other))], "Digits")


def test_runs_that_hold_out_other_images_have_their_own_answer(content, records, write):
    held_out = content("mean-teacher", recipe="digits/held-out")
    held_out["data"]["n_validation"] = 100
    held_out["split_fingerprint"] = "of other labels"
    text = Page(render_page([*records, load_record(write(held_out))], "Digits")).text
    assert text.count("With 40 labels, the test error") == 2
    assert text.count("There is no other method to compare with") + text.count("no supervised-only runs") == 1


def test_no_records_make_no_page():
    with pytest.raises(RecordError, match="There is no run to report"):
        render_page([], "Digits")


def test_the_page_is_written_whole_into_a_new_folder(records, tmp_path: Path):
    path = write_page(records, tmp_path / "new" / "report.html", "Digits")
    assert path.read_text(encoding="utf-8") == render_page(records, "Digits")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_a_failure_while_writing_keeps_the_old_page(records, tmp_path: Path, monkeypatch):
    path = tmp_path / "page" / "report.html"
    path.parent.mkdir()
    path.write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_page(records, path, "Digits")
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_the_same_records_give_the_same_bytes_in_every_process_without_torch(records, tmp_path: Path):
    program = (
        "import sys; from meanteacher.report import load_records, write_page; "
        "write_page(load_records(sys.argv[1]), sys.argv[2], 'Digits'); "
        "loaded = {'torch', 'matplotlib.pyplot'} & set(sys.modules); sys.exit(f'imported {loaded}' if loaded else 0)"
    )
    pages = []
    for hash_seed in ("1", "2"):
        page = tmp_path / f"{hash_seed}.html"
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "runs"), str(page)],
            check=True,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
        )
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]
