"""Plots of a fit as inline SVG: the learning curves, and how far a confidence can be believed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from meanteacher.formats import count, percent
from meanteacher.report.figures import WIDTH
from meanteacher.report.names import display_name
from meanteacher.report.svg import INK, PALETTE, styled, to_svg

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
