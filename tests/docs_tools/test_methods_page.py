import re

import pytest

from meanteacher.report import RecordError
from methods_page import MethodText, description, gathered, load_gathered, median_run, methods_page

TEXTS = {
    "supervised": MethodText("Supervised-only", None, "the labels, nothing else.", "Learn from the labels."),
    "vat": MethodText("VAT", "Miyato et al. 2017", "be smooth.", "No small step may change the `class`."),
    "mean-teacher": MethodText("Mean Teacher", "Tarvainen & Valpola 2017", "agree.", "The teacher is an average."),
}


def runs_of(run, method, errors, **changes):
    return [
        run(method, seed, student=2 * error, teacher=error, n_labelled=6, n_test=1000, **changes)
        for seed, error in enumerate(errors)
    ]


@pytest.fixture
def records(run):
    return [
        *runs_of(run, "supervised", (0.10, 0.12, 0.14), cpu_seconds=1.5),
        *runs_of(run, "vat", (0.14, 0.12, 0.16), cpu_seconds=2.0),
        *runs_of(run, "mean-teacher", (0.02, 0.03, 0.07), cpu_seconds=3.0),
    ]


def row(page, title):
    (line,) = [line for line in page.splitlines() if line.startswith(f"| [{title}]")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def section(page, title):
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |^---$)", page, re.MULTILINE | re.DOTALL)
    return text


def test_a_row_holds_both_errors_the_paired_difference_and_the_seconds(records):
    page = methods_page(records, TEXTS)
    assert row(page, "Supervised-only") == ["24.0 ± 4.0", "12.0 ± 2.0", "–", "1.5"]
    # The differences are 4, 0 and 2: mean 2, deviation 2, which 3 draws divide by the root of 3.
    assert row(page, "VAT") == ["28.0 ± 4.0", "14.0 ± 2.0", "+2.0 ± 1.2", "2.0"]
    # The differences are -8, -9 and -7.
    assert row(page, "Mean Teacher") == ["8.0 ± 5.3", "4.0 ± 2.6", "−8.0 ± 0.6", "3.0"]


def test_the_introduction_counts_points_and_draws_from_the_records(records):
    introduction = methods_page(records, TEXTS).split("\n\n")[2]
    assert "6 labelled and 1194 unlabelled points" in introduction
    assert "1,000 others, for the same 3 draws" in introduction
    assert len(re.findall(r"\.(?: |$)", introduction)) == 2


def test_a_method_that_does_not_help_is_reported_as_it_is(records):
    page = methods_page(records, TEXTS)
    assert "VAT does not beat supervised-only here: its mean error is 2.0 percentage points higher." in page
    assert "Mean Teacher does not beat" not in page
    assert "Within two standard errors" not in page


def test_a_method_that_is_as_good_as_the_baseline_does_not_beat_it(run):
    records = [*runs_of(run, "supervised", (0.1, 0.2)), *runs_of(run, "vat", (0.2, 0.1))]
    page = methods_page(records, {name: TEXTS[name] for name in ("supervised", "vat")})
    assert "VAT does not beat supervised-only here: its mean error is the same." in page
    assert row(page, "VAT")[2] == "0.0 ± 10.0"


def test_a_gain_within_two_standard_errors_is_not_called_one(run):
    records = [
        *runs_of(run, "supervised", (0.10, 0.12, 0.14)),
        *runs_of(run, "vat", (0.02, 0.12, 0.13)),
        *runs_of(run, "mean-teacher", (0.01, 0.12, 0.14)),
    ]
    page = methods_page(records, TEXTS)
    (told,) = [line for line in page.splitlines() if line.startswith("Within two standard errors of supervised-only")]
    assert told.endswith("these runs do not show a difference: VAT and Mean Teacher.")


def test_sections_follow_the_given_order_with_paper_summary_picture_and_caption(records):
    page = methods_page(records, TEXTS)
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["Supervised-only", "VAT", "Mean Teacher"]
    vat = section(page, "VAT").strip().split("\n\n")
    assert vat[:2] == ["Miyato et al. 2017: be smooth.", "No small step may change the `class`."]
    assert vat[2].startswith("$$\nJ = C + w")
    assert vat[2].endswith("\n$$")
    assert vat[3].startswith('<img src="methods/vat.svg" width="480" alt="VAT: ')
    assert vat[4] == (
        "*The teacher of draw 1 (seed 0), with a test error of 14.0 %: the median of 3 draws, which range from "
        "12.0 to 16.0 %.*"
    )
    assert vat[5] == "`examples/methods/vat.py` is a whole program."
    assert section(page, "Supervised-only").startswith("\nThe labels, nothing else.\n")


def test_the_table_links_to_the_sections(records):
    texts = TEXTS | {"vat": MethodText("VAT (K+1), decided", None, "be smooth.", "So it is.")}
    assert "| [VAT (K+1), decided](#vat-k1-decided) |" in methods_page(records, texts)


def test_the_picture_shows_the_run_in_the_middle_and_the_worse_of_two(run):
    assert median_run(runs_of(run, "vat", (0.3, 0.1, 0.2))).seed == 2
    even = runs_of(run, "vat", (0.3, 0.1, 0.4, 0.2))
    assert median_run(even).seed == 0
    records = [*runs_of(run, "supervised", (0.1, 0.2, 0.3, 0.4)), *even]
    page = methods_page(records, {name: TEXTS[name] for name in ("supervised", "vat")})
    assert "draw 1 (seed 0), with a test error of 30.0 %: the higher of the two middle errors" in page


def test_equal_errors_choose_the_same_run_in_any_order(run):
    runs = runs_of(run, "vat", (0.2, 0.2, 0.2, 0.2))
    assert median_run(runs).seed == median_run(runs[::-1]).seed == 2


def test_a_picture_is_described_for_readers_who_do_not_see_it(records):
    texts = TEXTS | {"vat": MethodText('"VAT" & more', None, "be smooth.", "So it is.")}
    assert 'alt="&#34;VAT&#34; &amp; more: the plane' in methods_page(records, texts)
    words = description("VAT", median_run(records))
    assert "1,000 test points and the 6 labelled points of draw" in words


def test_alarms_are_told(run, records):
    alarm = {"step": 3, "kind": "collapse", "sentence": "All is one."}
    records = [record for record in records if record.method != "vat"]
    records += [*runs_of(run, "vat", (0.1, 0.1), alarms=[alarm]), run("vat", 2, n_labelled=6, n_test=1000)]
    page = methods_page(records, TEXTS)
    assert "The health checks raised an alarm in 2 runs: collapse." in section(page, "VAT")
    assert page.count("alarm") == 1


def test_the_note_and_the_conditions_are_on_the_page(records):
    page = methods_page(records, TEXTS, note="Weights were chosen elsewhere.")
    assert "Weights were chosen elsewhere.\n" in page
    assert "holds 9 runs made with meanteacher 0.1.0, python 3.11.7, torch 2.13.0" in page
    assert "commit abc1234" in page


def test_the_page_is_the_same_from_the_gathered_records(records, tmp_path):
    path = tmp_path / "records.json"
    path.write_text(gathered(records), encoding="utf-8")
    assert methods_page(load_gathered(path), TEXTS) == methods_page(records, TEXTS)


def test_methods_over_other_draws_are_refused(records, run):
    with pytest.raises(RecordError, match=r"vat has run the draws \[0, 1\] and supervised \[0, 1, 2\]"):
        methods_page([record for record in records if (record.method, record.seed) != ("vat", 2)], TEXTS)
    with pytest.raises(RecordError, match=r"supervised has run the draws \[\]"):
        methods_page(runs_of(run, "vat", (0.1, 0.2)), {"vat": TEXTS["vat"]})


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        ("Mean Teacher (Tarvainen & Valpola 2017): agree.", ("Mean Teacher", "Tarvainen & Valpola 2017", "agree.")),
        ("The Gamma model (Rasmus 2015): undo\nthe noise.", ("Gamma model", "Rasmus 2015", "undo the noise.")),
        ("Mean Teacher with VAT: both (at once): yes.", ("Mean Teacher with VAT", None, "both (at once): yes.")),
    ],
)
def test_title_paper_idea_and_summary_are_read_from_the_docstring_of_a_method(opening, expected):
    text = MethodText.of(f"{opening}\n\n    First\n    paragraph.\n\n    Second.")
    assert (text.title, text.paper, text.idea) == expected
    assert text.summary == "First paragraph."


@pytest.mark.parametrize("opening", [None, "", "A method."])
def test_a_docstring_that_does_not_name_its_method_is_refused(opening):
    with pytest.raises(ValueError, match="expected a line such as 'Mean Teacher"):
        MethodText.of(opening)
