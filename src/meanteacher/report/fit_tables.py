"""Tables and figures of a fit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from meanteacher.formats import count, percent, percentage
from meanteacher.report.compare import display_name
from meanteacher.report.figures import INK, PALETTE, WIDTH, page_colour, styled, to_svg
from meanteacher.report.fit_text import BASELINE, OURS, Fit

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


Point = Mapping[str, Any]


def fit_curves(curves: Mapping[str, Sequence[Point]]) -> Markup:
    """Error over steps of the baseline, the student and the teacher; the one that is shipped is drawn boldest.

    The baseline has one line: its averaged network where there is one, as for Mean Teacher.
    """
    lines = {
        display_name("supervised"): (_line(curves, "supervised", "teacher", "student"), "supervised", "-", 1.4),
        "Student": (_line(curves, "mean-teacher", "student"), "mean-teacher", "--", 1.1),
        "Teacher": (_line(curves, "mean-teacher", "teacher"), "mean-teacher", "-", 2.0),
    }
    drawn = {label: line for label, line in lines.items() if line[0]}
    if not drawn:
        return Markup("")
    with styled():
        figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
        axes = figure.add_subplot()
        for label, (points, method, dashes, width) in drawn.items():
            # One evaluation is no line, but it is still a point.
            marker = "o" if len(points) == 1 else ""
            axes.plot(
                *zip(*points, strict=True), dashes, marker=marker, color=PALETTE[method], linewidth=width, label=label
            )
        _from_zero(axes)
        axes.set_xlabel("Step")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axes.set_title("Error, %", loc="left", fontsize=9)
        figure.legend(loc="outside lower left", ncols=3, frameon=False, columnspacing=2.5)
        ends = ", ".join(f"{label} {percent(points[-1][1] / 100)}" for label, (points, *_) in drawn.items())
        return _described(figure, "Learning curves", f"Error over training steps. At the last step: {ends}.")


def reliability_diagram(bins: Sequence[Mapping[str, Any]]) -> Markup:
    """How often the model is right when it is this sure; on the diagonal it knows how sure it may be.

    The whiskers are 95 % intervals (Wilson's) of each group: a few images off the diagonal prove nothing.
    """
    filled = [each for each in bins if each["n"]]
    if not filled:
        return Markup("")
    largest = max(each["n"] for each in filled)
    with styled():
        figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 100], [0, 100], ":", color=INK, alpha=0.55, linewidth=1)
        for each in filled:
            x, y = 100 * each["confidence"], 100 * each["accuracy"]
            low, high = wilson(each["accuracy"], each["n"])
            axes.plot([x, x], [100 * low, 100 * high], color=PALETTE["mean-teacher"], alpha=0.45, linewidth=1.4)
            size = 3 + 7 * math.sqrt(each["n"] / largest)
            axes.plot([x], [y], "o", color=PALETTE["mean-teacher"], markersize=size, markeredgewidth=0)
        axes.set_xlim(0, 101)
        axes.set_ylim(0, 102)
        axes.set_xticks(range(0, 101, 20))
        axes.set_yticks(range(0, 101, 20))
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        axes.set_xlabel("Confidence, %")
        axes.set_title("Right, %", loc="left", fontsize=9)
        groups = "; ".join(
            f"{count(each['n'])}, {percent(each['confidence'])} sure, {percent(each['accuracy'])} right"
            for each in filled
        )
        return _described(figure, "Calibration", f"Confidence against how often the model is right. {groups}.")


def wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share that was seen in n trials, sensible for few trials and for shares of 0 and 1.

    >>> [round(end, 2) for end in wilson(1.0, 3)]
    [0.44, 1.0]
    """
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _line(curves: Mapping[str, Sequence[Point]], method: str, *networks: str) -> list[tuple[int, float]]:
    """(step, error in percent) of the first of the networks that was evaluated."""
    for network in networks:
        points = [(p["step"], 100 * p[network]) for p in curves.get(method) or () if p.get(network) is not None]
        if points:
            return points
    return []


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


def _described(figure: Figure, title: str, description: str) -> Markup:
    """With title and description inside, where readers of screens and of the file look for them."""
    svg = to_svg(figure, title)
    start = svg.index(">") + 1
    words = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    return Markup(svg[:start] + words + svg[start:])
