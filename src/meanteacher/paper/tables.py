"""A table of the paper beside our own runs, cell by cell: for a terminal, in Markdown and as a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from meanteacher.formats import count, duration
from meanteacher.records import Claim, Record
from meanteacher.report import compare
from meanteacher.report.compare import Difference, Spread, percent_spread, spread
from meanteacher.report.page import render

_NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of the paper, and the runs that are to reproduce it."""

    system: str
    column: str
    claim: Claim | None
    """The paper's number, whose metric is that of ours; None where the paper prints none."""
    quoted: str = ""
    """Why there is no recipe, where the paper quotes the number."""
    recipe: str = ""
    deviations: Sequence[str] = ()
    runs: Sequence[Record] = ()
    """The complete ones."""

    @property
    def ours(self) -> Spread | None:
        return spread([self.error(run) for run in self.runs])

    def error(self, run: Record) -> float | None:
        """The error of a run, by the metric of the cell."""
        errors = run.errors.last.teacher
        return errors.test if self.claim is None or self.claim.metric == "error" else errors.test_top5

    @property
    def n_images(self) -> int:
        return self.runs[0].data.n_test if self.runs else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """A table of the paper, or one of its parts."""

    title: str
    cells: Sequence[Cell]
    columns: Sequence[str] = ()
    """From left to right, as the paper has them: its first row may have no number in the first column. Those of other
    cells follow."""
    laptop: str = ""
    """The size of the runs of a laptop version, in words; empty for the paper's own size."""
    unfinished: int = 0

    def header(self) -> tuple[str, ...]:
        # A number of a laptop version never stands in a column of the paper's, and is not subtracted from one.
        if self.laptop:
            return ("System", "Setting", "Laptop, %", "n", "Cost per run", "Paper at full size, %")
        return ("System", "Setting", "Paper, %", "Ours, %", "n", "Difference", "Cost per run", "Notes")

    def lines(self) -> Iterator[tuple[str, ...]]:
        numbers = {note: str(i) for i, note in enumerate(self.footnotes(), start=1)}
        for cell in self.cells:
            paper = _NOTHING if cell.claim is None else str(replace(cell.claim, metric="error"))
            mean, n = percent_spread(cell.ours, cell.n_images), str(len(cell.runs))
            cost = duration(fmean(run.seconds for run in cell.runs)) if cell.runs else _NOTHING
            if self.laptop:
                yield cell.system, cell.column, mean, n, cost, paper
            else:
                notes = " ".join(numbers[note] for note in self._of(cell))
                yield cell.system, cell.column, paper, mean, n, _difference(cell), cost, notes or _NOTHING

    def footnotes(self) -> list[str]:
        """What deviates, and why a number is not reproduced; each once."""
        return list(dict.fromkeys(note for cell in self.cells for note in self._of(cell)))

    def _of(self, cell: Cell) -> list[str]:
        return [f"Quoted: {cell.quoted}"] if cell.quoted else list(cell.deviations)

    def caption(self) -> str:
        n_runs = sum(len(cell.runs) for cell in self.cells)
        left = f" Not complete: {count(self.unfinished, 'run')}." if self.unfinished else ""
        what = f"{count(n_runs, 'run')}; mean ± standard deviation over n label draws."
        return " ".join(filter(None, (self.laptop, what))) + left


def to_terminal(tables: Sequence[PaperTable], orderings: Sequence["Ordering"]) -> str:
    """In aligned columns, with the numbers of the notes; the notes themselves are in the files."""
    parts = [
        f"{table.title}\n{table.caption()}\n\n{compare.aligned([table.header(), *table.lines()])}" for table in tables
    ]
    if orderings:
        parts.append(compare.aligned([ORDERING_HEADER, *(ordering.line() for ordering in orderings)]))
    return "\n".join(parts)


def to_markdown(tables: Sequence[PaperTable], orderings: Sequence["Ordering"]) -> str:
    """All parts of a table of the paper, the orderings and the notes."""
    parts = []
    for table in tables:
        parts += [f"## {table.title}", table.caption(), compare.markdown_table(table.header(), table.lines(), n_left=2)]
        notes = table.footnotes()
        if notes:
            parts.append("\n".join(f"{i}. {note}" for i, note in enumerate(notes, start=1)))
    if orderings:
        rows = (ordering.line() for ordering in orderings)
        parts += ["## Which orderings of the paper hold", compare.markdown_table(ORDERING_HEADER, rows, n_left=2)]
    return "\n\n".join(parts) + "\n"


def to_html(title: str, tables: Sequence[PaperTable], orderings: Sequence["Ordering"]) -> str:
    """The same as one offline page."""
    return render(
        "paper.html.jinja",
        title=title,
        tables=[(table, table.header(), list(table.lines()), table.footnotes()) for table in tables],
        orderings=[ordering.line() for ordering in orderings],
        ordering_header=ORDERING_HEADER,
    )


ORDERING_HEADER = ("Setting", "Lower error expected for", "Paper: difference", "Ours: difference", "n", "Holds")
_FEWEST_RUNS = 3
"""Pairs of runs from which on an ordering is judged: the interval of two is too wide to say anything."""


@dataclass(frozen=True, slots=True)
class Ordering:
    """Whether the system that is better in the paper is better here, in one column of a table."""

    column: str
    better: str
    worse: str
    paper: float
    """Points by which the paper's error is lower."""
    ours: Difference
    """Difference of the better system's error to the other's, paired by label draw; negative if the order holds."""
    n_images: int

    @property
    def verdict(self) -> str:
        """Whether the 95 % interval of the difference lies below zero (yes), above it (no), or contains it."""
        interval = self.ours.interval
        if interval is None or self.ours.n < _FEWEST_RUNS:
            return f"not known from {count(self.ours.n, 'run')}"
        if interval.low <= 0 <= interval.high:
            return "not shown"
        return "yes" if interval.high < 0 else "no"

    def line(self) -> tuple[str, ...]:
        return (
            self.column,
            f"{self.better} than {self.worse}",
            f"−{self.paper:.2f}",
            self.ours.with_interval(self.n_images),
            str(self.ours.n),
            self.verdict,
        )


def orderings_of(tables: Sequence[PaperTable], systems: Sequence[str]) -> list[Ordering]:
    """Every pair of these systems in every column that has runs of both on the same labels, column by column."""
    found = []
    for table in tables:
        for column in dict.fromkeys([*table.columns, *(cell.column for cell in table.cells)]):
            cells = [
                cell
                for cell in table.cells
                if cell.column == column and cell.system in systems and cell.runs and cell.claim is not None
            ]
            for first, second in combinations(cells, 2):
                better, worse = sorted((first, second), key=_paper_error)
                higher, lower = (compare.one_run_per_seed(cell.runs) for cell in (worse, better))
                ours = compare.difference_by_seed(higher, lower, "test")
                paper = _paper_error(worse) - _paper_error(better)
                if ours is not None:
                    found.append(Ordering(column, better.system, worse.system, paper, ours, better.n_images))
    return found


def _paper_error(cell: Cell) -> float:
    return cell.claim.error if cell.claim else 0.0


def _difference(cell: Cell) -> str:
    if cell.ours is None or cell.claim is None:
        return _NOTHING
    points = 100 * cell.ours.mean - cell.claim.error
    return f"{points:+.2f}".replace("-", "−")
