"""Every number of the paper's tables has its place: a recipe that claims it, or a reason why there is none."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meanteacher.paper.layout import FIGURES, LAPTOP, LAPTOP_FIGURES, LAPTOP_TABLES, TABLES, Figure, Quoted
from meanteacher.paper.recipes import shared as paper
from meanteacher.recipes import RECIPES

Numbers = tuple[float, float | None] | None
"""Mean and spread as the paper prints them, or nothing."""

TRANSCRIPTION = Path(__file__).parent / "paper_tables.txt"
PAPER = Path(__file__).parents[2].parent / "shared" / "paper.tex"
"""Beside the project, where somebody has it: it is not ours to distribute."""
PARTS = [(f"{number}, {part.columns[0]}", part) for number, parts in TABLES.items() for part in parts]


def transcribed() -> list[list[list[Numbers]]]:
    """Part of a table -> row -> column."""
    parts: list[list[list[Numbers]]] = []
    for line in TRANSCRIPTION.read_text(encoding="utf-8").splitlines():
        if line.startswith("table"):
            parts.append([])
        else:
            parts[-1].append([_numbers(cell.split()) for cell in line.split("|")])
    return parts


def _numbers(words: list[str]) -> Numbers:
    if words == ["-"] or not words:
        return None
    mean, *spread = map(float, words)
    return mean, spread[0] if spread else None


def printed(tex: str) -> Iterator[list[list[Numbers]]]:
    """The same of the paper's source: rows with a number, of the tables of errors."""
    without_comments = re.sub(r"(?<!\\)%.*", "", tex)
    for tabular in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", without_comments, flags=re.DOTALL):
        rows = []
        for row in re.split(r"\\\\(?!\w)", tabular):
            _, *cells = row.split("&")
            if r"\multicolumn{2}" in row:
                cells = ["", *cells]
            numbers = [_numbers(re.findall(r"\d+\.\d+|(?<=\\pm )\d+", cell)) for cell in cells]
            if any(numbers) and r"\pm" in tabular:
                rows.append(numbers)
        if rows:
            yield rows


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not beside the project")
def test_the_transcription_is_what_the_paper_prints():
    assert list(printed(PAPER.read_text(encoding="utf-8"))) == transcribed()


def test_the_transcription_holds_all_tables_of_errors():
    sizes = [sum(number is not None for row in part for number in row) for part in transcribed()]
    assert sizes == [21, 18, 6, 7, 33, 32]


def claimed(cell: str | Quoted | None) -> Numbers:
    if cell is None:
        return None
    if isinstance(cell, Quoted):
        return cell.claim.error, cell.claim.spread
    claim = RECIPES[cell].claim
    return None if claim is None else (claim.error, claim.spread)


@pytest.mark.parametrize("index", range(len(PARTS)), ids=[name for name, _ in PARTS])
def test_every_number_of_a_table_is_claimed_by_its_recipe_or_quoted(index: int):
    part, expected = PARTS[index][1], transcribed()[index]
    assert len(PARTS) == len(transcribed())
    assert [[claimed(cell) for cell in row] for row in part.rows.values()] == expected
    assert {len(row) for row in part.rows.values()} == {len(part.columns)}


def _cells() -> Iterator[str | Quoted | None]:
    for _, part in PARTS:
        for row in part.rows.values():
            yield from row


def test_what_is_quoted_says_whose_it_is_and_why_there_is_no_recipe():
    quoted = [cell for cell in _cells() if isinstance(cell, Quoted)]
    assert {cell.claim.error for cell in quoted} == {35.24, 2.86, 3.79}
    assert all(re.fullmatch(r"[A-Z][a-z]+ .*20\d\d, .*; .*\.", cell.why) for cell in quoted)


def test_every_recipe_of_the_paper_has_a_place_and_every_place_a_recipe():
    placed = {cell for cell in _cells() if isinstance(cell, str)}
    placed |= {cell for (part,) in LAPTOP_TABLES.values() for row in part.rows.values() for cell in row}
    figures = [*FIGURES.values(), *LAPTOP_FIGURES.values()]
    placed |= {name for figure in figures for panel in figure.panels.values() for name in panel.values()}
    ours = {name for name in RECIPES if name.startswith(("table", "figure", LAPTOP))}
    assert placed == {name for name in ours if not name.endswith(f"/{paper.AS_CODED}")}


def test_columns_and_rows_of_a_laptop_version_are_some_of_the_papers():
    for name, (part,) in LAPTOP_TABLES.items():
        (whole,) = TABLES[name]
        assert set(part.columns) <= set(whole.columns)
        for system, row in part.rows.items():
            (theirs,) = [cells for other, cells in whole.rows.items() if other.partition(" (")[0] == system][-1:]
            for column, cell in zip(part.columns, row, strict=True):
                assert cell == f"{LAPTOP}{theirs[whole.columns.index(column)]}"


def test_laptop_versions_claim_none_of_the_papers_numbers():
    assert all(recipe.claim is None for name, recipe in RECIPES.items() if name.startswith(LAPTOP))


def test_a_claim_is_of_a_table_in_which_the_recipe_stands():
    for part_name, part in PARTS:
        number = part_name.partition(",")[0]
        for cell in (cell for row in part.rows.values() for cell in row if isinstance(cell, str)):
            claim = RECIPES[cell].claim
            assert claim is None or claim.where <= f"Table {number}", "the first table that has it"
    assert all(recipe.claim is None for name, recipe in RECIPES.items() if name.startswith("figure"))


@pytest.mark.parametrize(
    "figure", [*FIGURES.values(), *LAPTOP_FIGURES.values()], ids=[*FIGURES, *map("laptop {}".format, LAPTOP_FIGURES)]
)
def test_settings_of_a_figure_are_unique_and_the_evaluation_setting_is_one_of_them(figure: Figure):
    if figure.evaluation:
        panel, label = figure.evaluation
        assert figure.panels[panel][label].removeprefix(LAPTOP) == "figure4/evaluation"
        names = [name for settings in figure.panels.values() for name in settings.values()]
        assert len(set(names)) == len(names)
    else:
        assert figure in (FIGURES["3"], LAPTOP_FIGURES["3"])


def test_the_page_on_paper_and_code_names_recipes_that_exist():
    page = (Path(__file__).parents[2] / "docs" / "paper-and-code.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:table|figure)\d\w?/[\w.-]+(?:/[\w-]+)*", page))
    assert named
    assert named <= set(RECIPES)
