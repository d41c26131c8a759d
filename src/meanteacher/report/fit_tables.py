"""The numbers of a fit as a template prints them: errors with intervals, confusions, classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meanteacher.formats import percent, percentage
from meanteacher.report.fit_answer import BASELINE, OURS, Fit
from meanteacher.report.names import display_name
from meanteacher.report.svg import PALETTE, page_colour

MOST_CLASSES = 20
"""A matrix of more is no picture any more: the pairs that are confused most often are listed instead."""

N_PAIRS = 20

DARKEST = 0.45
"""The strongest shade of a cell, on which its number is still easily read."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A method's error; positions are in percent of the plot's width."""

    label: str
    colour: str
    error: str
    low: str
    high: str
    wrong: int | None
    left: str
    at: str
    width: str


@dataclass(frozen=True, slots=True)
class Intervals:
    """The errors on one axis from zero."""

    rows: Sequence[Interval]
    ticks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of the confusion matrix, and its shade: the root of its share of the row, so that few are seen too."""

    n: int
    heat: str
    right: bool


@dataclass(frozen=True, slots=True)
class Confused:
    """Images of one class that were taken for another."""

    true: str
    taken_for: str
    n: int
    of: int


@dataclass(frozen=True, slots=True)
class ClassRow:
    """A class in the table of classes."""

    name: str
    n_labelled: int
    n_predicted: int | None
    error: str
    wrong: str
    bar: str


def intervals(fit: Fit) -> Intervals | None:
    """The errors that were estimated, on the shortest axis of round numbers that holds their intervals."""
    estimate = fit.get("estimate")
    methods = [method for method in (OURS, BASELINE) if estimate and estimate.get(method)]
    if not estimate or not methods:
        return None
    ticks = _ticks(max(0.01, *(estimate[method]["high"] for method in methods)))
    return Intervals([_interval(estimate[method], method, estimate["n"], ticks[-1]) for method in methods], ticks)


def matrix(fit: Fit) -> list[tuple[str, list[Cell]]]:
    """Rows of the confusion matrix with the name of their true class; empty where there are too many classes."""
    names, confusion = fit["data"]["class_names"], fit.get("confusion") or []
    if not confusion or len(confusion) > MOST_CLASSES:
        return []
    return [
        (name, [Cell(n, f"{DARKEST * math.sqrt(n / max(sum(row), 1)):.3f}", i == j) for j, n in enumerate(row)])
        for i, (name, row) in enumerate(zip(names, confusion, strict=True))
    ]


def confused_pairs(fit: Fit) -> list[Confused]:
    """The confusions in order of how often they happened, the most frequent only."""
    names, confusion = fit["data"]["class_names"], fit.get("confusion") or []
    wrong = [(n, i, j) for i, row in enumerate(confusion) for j, n in enumerate(row) if n and i != j]
    worst = sorted(wrong, key=lambda pair: (-pair[0], pair[1:]))[:N_PAIRS]
    return [Confused(names[i], names[j], n, sum(confusion[i])) for n, i, j in worst]


def class_rows(fit: Fit) -> list[ClassRow]:
    """The classes in their own order, or the highest errors first where there are too many to look through."""
    rows = list(fit.get("per_class") or ())
    if len(rows) > MOST_CLASSES:
        rows.sort(key=lambda row: -1.0 if row.get("error") is None else row["error"], reverse=True)
    return [
        ClassRow(
            name=row["name"],
            n_labelled=row["n_labelled"],
            n_predicted=row.get("n_predicted"),
            error="–" if not judged else percent(row["error"]),
            wrong="" if not judged else f"{round(row['error'] * row['n_judged']):,} of {row['n_judged']:,}",
            bar="0" if not judged else f"{100 * row['error']:.1f}",
        )
        for row in rows
        for judged in [row.get("error") is not None and row.get("n_judged")]
    ]


def _interval(estimate: Fit, method: str, n: int, end: int) -> Interval:
    error, low, high = (estimate[key] for key in ("error", "low", "high"))
    return Interval(
        label=display_name(method),
        colour=page_colour(PALETTE[method]),
        error=percentage(error, n),
        low=percentage(low, n),
        high=percentage(high, n),
        wrong=estimate.get("wrong"),
        left=f"{1e4 * low / end:.2f}",
        at=f"{1e4 * error / end:.2f}",
        width=f"{1e4 * (high - low) / end:.2f}",
    )


def _ticks(highest: float) -> list[int]:
    """Round percentages from zero to beyond the highest.

    >>> _ticks(0.31), _ticks(0.55), _ticks(0.03), _ticks(1.0)
    ([0, 10, 20, 30, 40], [0, 20, 40, 60], [0, 1, 2, 3], [0, 20, 40, 60, 80, 100])
    """
    step = next(step for step in (1, 2, 5, 10, 20) if 100 * highest <= 5 * step or step == 20)
    return list(range(0, -int(-100 * highest // step) * step + 1, step))
