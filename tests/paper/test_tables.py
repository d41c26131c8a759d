import re
from html.parser import HTMLParser

import pytest

from meanteacher.paper.tables import Cell, PaperTable, orderings_of, to_html, to_markdown, to_terminal
from meanteacher.records import Claim

SYSTEMS = ("Supervised-only", "Mean Teacher")
LAPTOP = "Laptop version: 6,000 steps."


class Rows(HTMLParser):
    """The cells of all tables of a page, row by row, and what it would execute."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.scripts, self._cell = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell = ""
        elif tag == "script":
            self.scripts.append(attrs)

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None


def claim_of(error, spread, metric="error"):
    return Claim(error=error, spread=spread, where="Table 1", metric=metric)


@pytest.fixture
def cell(run):
    """A cell with runs of these errors of the teacher, seed by seed."""

    def cell(system="Mean Teacher", errors=(), paper=(5.0, 0.25), seconds=4.2, column="500 labels", **changes):
        top5, metric = changes.pop("top5", None), changes.pop("metric", "error")
        runs = []
        for seed, error in enumerate(errors):
            last = {
                "step": 600,
                "student": {"test": 0.9, "validation": None},
                "teacher": {"test": error, "validation": None},
            }
            if top5:
                last["student"]["test_top5"], last["teacher"]["test_top5"] = 0.8, top5[seed]
            runs.append(
                run(
                    seed=seed,
                    recipe=f"table1/{system}",
                    n_test=20_000,
                    seconds=seconds,
                    errors={"last": last, "best_validation": None},
                )
            )
        claim = None if paper is None else claim_of(*paper, metric)
        return Cell(system=system, column=column, claim=claim, recipe=f"table1/{system}", runs=runs, **changes)

    return cell


def by_name(table):
    """Of the first line: heading -> cell."""
    return dict(zip(table.header(), next(iter(table.lines())), strict=True))


def all_forms(table, orderings=()):
    return {
        "terminal": to_terminal([table], orderings),
        "markdown": to_markdown([table], orderings),
        "page": to_html("Table 1", [table], orderings),
    }


def test_cell_has_the_papers_number_ours_the_number_of_runs_difference_and_cost(cell):
    # Mean of 0.04, 0.05, 0.09: 6.00 %; squared deviations 4 + 1 + 9 = 14, variance 7, deviation 2.65 points.
    table = PaperTable(title="Table 1", cells=[cell(errors=(0.04, 0.05, 0.09), seconds=75.0)])
    assert by_name(table) == {
        "System": "Mean Teacher",
        "Setting": "500 labels",
        "Paper, %": "5.00 ± 0.25",
        "Ours, %": "6.00 ± 2.65",
        "n": "3",
        "Difference": "+1.00",
        "Cost per run": "1 min 15 s",
        "Notes": "–",
    }


@pytest.mark.parametrize("form", ["terminal", "markdown", "page"])
def test_all_forms_hold_the_same_cells(cell, form):
    table = PaperTable(title="Table 1. SVHN", cells=[cell(errors=(0.04, 0.05, 0.09)), cell("Supervised-only")])
    text = all_forms(table)[form]
    for line in (table.header(), *table.lines()):
        if form == "page":
            assert list(line) in Rows(text).rows
        else:
            pattern = (r"\s+\|\s+" if form == "markdown" else r"\s+").join(map(re.escape, line))
            assert re.search(pattern, text), line
    assert "Table 1. SVHN" in text


def test_difference_to_a_better_result_is_negative(cell):
    assert by_name(PaperTable(title="", cells=[cell(errors=(0.04,))]))["Difference"] == "−1.00"


def test_single_run_has_no_spread_and_the_papers_may_have_none(cell):
    line = by_name(PaperTable(title="", cells=[cell(errors=(0.04,), paper=(2.86, None))]))
    assert (line["Ours, %"], line["Paper, %"], line["n"]) == ("4.00", "2.86", "1")


def test_cell_without_runs_and_one_without_a_number_of_the_papers_stay_empty(cell):
    without_runs = by_name(PaperTable(title="", cells=[cell()]))
    assert [without_runs[name] for name in ("Ours, %", "n", "Difference", "Cost per run")] == ["–", "0", "–", "–"]
    without_number = by_name(PaperTable(title="", cells=[cell(errors=(0.04,), paper=None)]))
    assert [without_number[name] for name in ("Paper, %", "Ours, %", "Difference")] == ["–", "4.00", "–"]


def test_top_5_error_of_the_paper_is_compared_with_ours(cell):
    line = by_name(
        PaperTable(title="", cells=[cell(errors=(0.3,), top5=(0.09,), paper=(9.5, 0.1), metric="top-5 error")])
    )
    assert (line["Ours, %"], line["Difference"]) == ("9.00", "−0.50")
    unmeasured = by_name(PaperTable(title="", cells=[cell(errors=(0.3,), paper=(9.5, 0.1), metric="top-5 error")]))
    assert (unmeasured["Ours, %"], unmeasured["Difference"]) == ("–", "–")


def test_quoted_cell_says_whose_number_it_is_and_why_it_is_not_run():
    quoted = Cell(
        system="SOTA", column="all labels", claim=claim_of(2.86, None), quoted="Somebody 2017; there is no network."
    )
    table = PaperTable(title="Table 4", cells=[quoted])
    assert by_name(table)["Paper, %"] == "2.86"
    assert by_name(table)["Ours, %"] == "–"
    number = by_name(table)["Notes"]
    assert re.search(rf"(?m)^{number}\. .*Somebody 2017; there is no network\.", to_markdown([table], []))
    assert "Somebody 2017; there is no network." in to_html("Table 4", [table], [])


def test_each_note_stands_once_and_the_cells_give_its_number(cell):
    both, own = "The average starts otherwise.", "The ramp is shorter."
    cells = [cell(deviations=(both,)), cell("Pi model", deviations=(own, both)), cell("GAN")]
    table = PaperTable(title="", cells=cells)
    assert table.footnotes() == [both, own]
    assert [line[-1] for line in table.lines()] == ["1", "2 1", "–"]
    for text in (to_markdown([table], []), to_html("", [table], [])):
        assert text.count(both) == text.count(own) == 1


def test_number_of_a_laptop_stands_in_no_column_of_the_papers_and_has_no_difference(cell):
    whole = cell(errors=(0.04, 0.06))
    table = PaperTable(title="Table 1", cells=[whole], laptop=LAPTOP)
    line = by_name(table)
    (ours,) = [name for name, content in line.items() if content == "5.00 ± 1.41"]
    assert "Laptop" in ours
    assert "aper" not in ours
    assert not any("ifference" in name for name in line)
    (papers,) = [name for name in line if "aper" in name]
    assert line[papers] == "5.00 ± 0.25"
    assert "full size" in papers
    for text in all_forms(table).values():
        assert LAPTOP.partition(" ")[0] in text
        assert "Ours, %" not in text


@pytest.mark.parametrize("form", ["markdown", "page"])
def test_laptop_version_has_its_notes_in_the_files(cell, form):
    table = PaperTable(title="Table 1", cells=[cell(deviations=("Shorter ramps.",))], laptop=LAPTOP)
    assert "Shorter ramps." in all_forms(table)[form]


def test_caption_counts_the_runs_and_those_that_are_missing(cell):
    cells = [cell(errors=(0.1, 0.2)), cell("GAN", errors=(0.1,))]
    assert PaperTable(title="", cells=cells).caption().startswith("3 runs")
    assert "Not complete: 7 runs" in PaperTable(title="", cells=cells, unfinished=7).caption()
    assert "Not complete" not in PaperTable(title="", cells=cells).caption()
    assert PaperTable(title="", cells=cells, laptop=LAPTOP).caption().startswith(LAPTOP)


def ordering(cell, supervised, mean_teacher, *, papers=(12.0, 5.0), **changes):
    cells = [
        cell("Supervised-only", supervised, (papers[0], 0.5), **changes),
        cell("Mean Teacher", mean_teacher, (papers[1], 0.5), **changes),
    ]
    return orderings_of([PaperTable(title="", cells=cells)], SYSTEMS)


def test_ordering_that_holds_by_hand(cell):
    # Differences -0.05, -0.08, -0.05: mean -0.06, standard error (0.0003 / 3) ** 0.5 = 0.01.
    # The t quantile of 2 degrees of freedom is 4.30.
    (found,) = ordering(cell, (0.10, 0.14, 0.12), (0.05, 0.06, 0.07))
    assert (found.better, found.worse, found.column) == ("Mean Teacher", "Supervised-only", "500 labels")
    assert found.paper == pytest.approx(7.0)
    assert found.ours.mean == pytest.approx(-0.06)
    assert found.ours.standard_error == pytest.approx(0.01)
    assert found.verdict == "yes"
    assert found.line()[2:5] == ("−7.00", "−6.00 (−10.30 to −1.70)", "3")


def test_ordering_that_does_not_hold(cell):
    (found,) = ordering(cell, (0.05, 0.06, 0.07), (0.10, 0.14, 0.12))
    assert found.ours.mean == pytest.approx(0.06)
    assert found.verdict == "no"
    (turned,) = ordering(cell, (0.05, 0.06, 0.07), (0.10, 0.14, 0.12), papers=(5.0, 12.0))
    assert (turned.better, turned.verdict) == ("Supervised-only", "yes")


@pytest.mark.parametrize("sign", [1, -1])
def test_interval_that_contains_zero_decides_nothing(cell, sign):
    # Differences of 0.01, 0.02 and 0.06: mean 0.03, standard error 0.0153, half of the interval 0.066.
    others = [error + sign * more for error, more in zip((0.10, 0.12, 0.14), (0.01, 0.02, 0.06), strict=True)]
    (found,) = ordering(cell, (0.10, 0.12, 0.14), others)
    assert found.verdict == "not shown"


def test_luck_of_the_label_draws_cancels(cell):
    """The errors differ by far more between the draws than between the systems, always in the same direction."""
    (found,) = ordering(cell, (0.10, 0.20, 0.30), (0.09, 0.189, 0.291))
    assert found.verdict == "yes"


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_pairs_of_runs_decide_nothing(cell, n):
    (found,) = ordering(cell, (0.5, 0.6, 0.7)[:n], (0.1, 0.2, 0.3))
    assert found.verdict == f"not known from {n} run{'s' if n > 1 else ''}"


def test_ordering_needs_runs_of_both_on_the_same_labels_and_numbers_of_the_papers(cell, run):
    assert ordering(cell, (0.1, 0.2), ()) == []
    other = Cell(system="Mean Teacher", column="500 labels", claim=claim_of(5.0, 0.5), runs=[run(seed=7)])
    cells = [cell("Supervised-only", (0.1, 0.2)), other]
    assert orderings_of([PaperTable(title="", cells=cells)], SYSTEMS) == []
    no_number = [cell("Supervised-only", (0.1, 0.2), paper=None), cell(errors=(0.1, 0.2))]
    assert orderings_of([PaperTable(title="", cells=no_number)], SYSTEMS) == []
    columns = [cell("Supervised-only", (0.1, 0.2)), cell(errors=(0.1, 0.2), column="all labels")]
    assert orderings_of([PaperTable(title="", cells=columns)], SYSTEMS) == []


def test_orderings_stand_in_the_order_of_the_papers_columns_also_where_the_first_row_leaves_one_out(cell):
    columns = ("250 labels", "500 labels", "1000 labels")
    other = [cell("Another's", column=column) for column in columns[1:]]
    ours = [cell(system, (0.1, 0.2), column=column) for system in SYSTEMS for column in columns]
    found = orderings_of([PaperTable(title="", cells=[*other, *ours], columns=columns)], SYSTEMS)
    assert [ordering.column for ordering in found] == list(columns)


@pytest.mark.parametrize("form", ["markdown", "page"])
def test_orderings_stand_in_the_files(cell, form):
    (found,) = orderings = ordering(cell, (0.10, 0.14, 0.12), (0.05, 0.06, 0.07))
    text = all_forms(PaperTable(title="", cells=[cell()]), orderings)[form]
    if form == "page":
        assert list(found.line()) in Rows(text).rows
    else:
        assert f"| {' | '.join(found.line())} |" in text


def test_hostile_names_are_text_on_the_page(cell):
    hostile = "<script>alert(1)</script>"
    table = PaperTable(title=hostile, cells=[cell(hostile, column=hostile, deviations=(hostile,))], laptop=hostile)
    page = to_html(hostile, [table], [])
    assert Rows(page).scripts == Rows(to_html("", [], [])).scripts
    assert "<script>alert" not in page
    assert [hostile, hostile] == Rows(page).rows[1][:2]
