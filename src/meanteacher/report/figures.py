"""Figures of runs and of fits as SVG: learning curves, dot plots, calibration."""

import io
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from meanteacher.formats import count, percent, percentage
from meanteacher.records import TOP5, CalibrationBin, Part, Record
from meanteacher.report.compare import one_run_per_seed, place, recipe_labels

INK = "#010203"
"""Drawn in this colour, a line or a text takes the colour of the text around the figure."""

PALETTE = {"supervised": "#6b7280", "pi-model": "#d55e00", "mean-teacher": "#0072b2"}
"""Colours that stay apart for colour-blind readers (Okabe and Ito's, with grey for the baseline)."""

OTHERS = ("#009e73", "#cc79a7", "#b8860b", "#56b4e9")

COLOURS = (*PALETTE.values(), *OTHERS)


def page_colour(colour: str) -> str:
    """The custom property a page sets for a colour, with the colour itself where it sets none.

    >>> page_colour("#0072b2")
    'var(--series-3, #0072b2)'
    """
    return f"var(--series-{1 + COLOURS.index(colour)}, {colour})"


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the pages, whatever the reader's own matplotlib settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.fonttype": "none",
                # A dollar sign in a name is a dollar sign.
                "text.parse_math": False,
                "font.family": "sans-serif",
                "font.sans-serif": ["DejaVu Sans"],
                "font.size": 9.0,
                "text.color": INK,
                "axes.edgecolor": INK,
                "axes.labelcolor": INK,
                "xtick.color": INK,
                "ytick.color": INK,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.linewidth": 0.6,
                "xtick.major.width": 0.6,
                "ytick.major.width": 0.6,
            }
        )
        yield


def to_svg(figure: Figure, description: str, details: str = "") -> str:
    """The figure as one `<svg>` element: the same figure always gives the same text.

    Colours become custom properties, so that a page can lighten them in dark mode and the element still
    stands alone.
    """
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Salted by the description: the ids of two figures in one page must differ.
    with mpl.rc_context({"svg.hashsalt": description}):
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    # Names of groups repeat from figure to figure, and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
    if details:
        words = f"<title>{escape(description)}</title><desc>{escape(details)}</desc>"
        svg = svg.replace(">", f">{words}", 1)
    svg = svg.replace(INK, "currentColor")
    for colour in COLOURS:
        svg = svg.replace(colour, page_colour(colour))
    return svg.strip() + "\n"


WIDTH = 4.2
"""Inches: narrow enough that the text is still readable when the figure is as wide as a phone."""

MARKERS = "osD^vPX"


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one recipe and how they are drawn."""

    label: str
    colour: str
    marker: str
    runs: Sequence[Record]


def learning_curves(records: Sequence[Record], *, part: Part = "test") -> str:
    """Error over steps, the mean of the runs: the teacher solid, in a band from its lowest run to its highest.

    The student is dashed and has no band: two bands per method would hide each other. Only steps that all
    runs of a recipe evaluated are drawn, for a mean over changing runs would jump where no run does.
    """
    everything = all_series(records)
    with styled():
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        axes = figure.add_subplot()
        shown: list[float] = []
        any_student = False
        for series in everything:
            teacher = curve(series.runs, part, "teacher")
            student = curve(series.runs, part, "student")
            low, high = [min(errors) for errors in teacher.values()], [max(errors) for errors in teacher.values()]
            axes.fill_between(list(teacher), low, high, color=series.colour, alpha=0.16, linewidth=0)
            _line(axes, teacher, series.colour, "-", width=1.7)
            shown += [value for values in teacher.values() for value in values]
            # A method without a teacher records the same network twice: one line tells it all.
            if student != teacher:
                any_student = True
                _line(axes, student, series.colour, "--", width=1.1)
                shown += [value for values in student.values() for value in values]
        _error_axis(axes, shown)
        axes.set_xlabel("Step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
        axes.set_title(f"{part.capitalize()} error, %", loc="left", fontsize=9)
        _legend(figure, axes, everything, any_student)
        return to_svg(figure, f"{part.capitalize()} error over steps, {_scope(everything)}")


def dot_plot(records: Sequence[Record], *, part: Part = "test") -> str:
    """The error of every run, one row per recipe; a line joins the runs on the same labelled set.

    A dotted bar is the error that the paper reports, where that is not the top-5 error.
    """
    everything = all_series(records)
    with styled():
        figure = Figure(figsize=(WIDTH, 1.0 + 0.75 * len(everything)), layout="constrained")
        axes = figure.add_subplot()
        before: dict[tuple[int, str], float] = {}
        for row, series in enumerate(everything):
            errors = {(run.seed, run.split_fingerprint): 100 * run.error(part) for run in series.runs}
            for draw in [draw for draw in errors if draw in before]:
                ends = [before[draw], errors[draw]]
                axes.plot(ends, [row - 1, row], color=INK, alpha=0.25, linewidth=0.8, zorder=1)
            dots: dict[str, Any] = {"color": series.colour, "alpha": 0.75, "markersize": 6, "markeredgewidth": 0}
            axes.plot(list(errors.values()), [row] * len(errors), series.marker, **dots)
            mean = fmean(run.error(part) for run in series.runs)
            axes.plot([100 * mean] * 2, [row - 0.2, row + 0.2], color=series.colour, linewidth=2)
            claim = series.runs[0].recipe.claim
            if claim is not None and claim.metric != TOP5 and part == "test":
                axes.plot([claim.error] * 2, [row - 0.2, row + 0.2], ":", color=INK, linewidth=1.5)
            axes.annotate(
                percentage(mean, series.runs[0].data.n_images(part)),
                (100 * mean, row - 0.2),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
            )
            before = errors
        axes.set_yticks(range(len(everything)), [_wrapped(s.label, 18) for s in everything])
        axes.set_ylim(len(everything) - 0.6, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"{part.capitalize()} error, %")
        return to_svg(figure, f"{part.capitalize()} error of every run, {_scope(everything)}")


def _wrapped(label: str, width: int) -> str:
    return "\n".join(textwrap.wrap(label, width, break_on_hyphens=False, break_long_words=False))


def all_series(records: Sequence[Record]) -> list[Series]:
    """The runs by recipe, in the order of the tables; a method keeps its colour in every figure."""
    labels = recipe_labels(records)
    by_recipe: defaultdict[str, list[Record]] = defaultdict(list)
    for run in records:
        by_recipe[run.recipe.name].append(run)
    taken: set[str] = set()
    series = []
    ordered = sorted(by_recipe.items(), key=lambda item: place(item[1][0].method, item[0]))
    for i, (recipe, its_runs) in enumerate(ordered):
        one_run_per_seed(its_runs)
        own = PALETTE.get(its_runs[0].method)
        free = [colour for colour in OTHERS if colour not in taken] or list(OTHERS)
        colour = own if own is not None and own not in taken else free[0]
        taken.add(colour)
        series.append(Series(labels[recipe], colour, MARKERS[i % len(MARKERS)], its_runs))
    return series


def curve(runs: Sequence[Record], part: Part, model: Literal["student", "teacher"]) -> dict[int, list[float]]:
    """step -> the error of every run in percent, at the steps that all runs evaluated."""
    return at_common_steps(
        [(point.step, 100 * getattr(point, model)) for run in runs for point in run.curve if point.part == part],
        len(runs),
    )


def at_common_steps(points: Iterable[tuple[int, float]], n_runs: int) -> dict[int, list[float]]:
    """step -> the value of every run, at the steps that all runs evaluated."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    for step, value in points:
        values[step].append(value)
    return {step: its for step, its in sorted(values.items()) if len(its) == n_runs}


def _scope(everything: Sequence[Series]) -> str:
    """Which runs a figure is about, for readers who do not see it."""
    data = everything[0].runs[0].data
    names = ", ".join(series.label for series in everything)
    return f"{data.n_labelled:,} labels of data {data.fingerprint}: {names}"


def _line(axes: Axes, points: dict[int, list[float]], colour: str, dashes: str, width: float) -> None:
    axes.plot(list(points), [fmean(errors) for errors in points.values()], dashes, color=colour, linewidth=width)


def _error_axis(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic where errors span a factor of five, as at the start of training; else from zero."""
    if not log_axis(axes, values):
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)


def log_axis(axes: Axes, values: Sequence[float]) -> bool:
    """Make the axis logarithmic if the values span a factor of five; returns whether they do."""
    if not values or min(values) <= 0 or max(values) <= 5 * min(values):
        return False
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    digits = (1, 2, 5) if high < 100 * low else (1,)
    ticks = [digit * 10.0**power for power in range(-6, 3) for digit in digits]
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    return True


def _legend(figure: Figure, axes: Axes, everything: Sequence[Series], any_student: bool) -> None:
    methods = [
        Line2D([], [], color=series.colour, linewidth=1.6, label=_wrapped(series.label, 48)) for series in everything
    ]
    longest = max(len(series.label) for series in everything)
    n_columns = max(1, min(3, 62 // (longest + 8)))  # as many as the width of the figure holds
    figure.legend(handles=methods, loc="outside lower left", ncols=n_columns, frameon=False)
    if any_student:
        teacher = Line2D([], [], color=INK, linewidth=1.2, label="teacher")
        student = Line2D([], [], color=INK, linewidth=1.2, linestyle="--", label="student")
        axes.legend(handles=[teacher, student], loc="upper right", frameon=False)


def reliability_diagram(bins: Sequence[CalibrationBin]) -> Markup:
    """How often the model is right at each level of confidence; on the diagonal the two agree.

    The whiskers are the intervals that fit.json holds: a few images off the diagonal prove nothing.
    """
    if not bins:
        return Markup("")
    largest = max(each.n for each in bins)
    with styled():
        figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 100], [0, 100], ":", color=INK, alpha=0.55, linewidth=1)
        for each in bins:
            x, y = 100 * each.confidence, 100 * each.accuracy
            ends = [100 * each.accuracy_low, 100 * each.accuracy_high]
            axes.plot([x, x], ends, color=PALETTE["mean-teacher"], alpha=0.45, linewidth=1.4)
            size = 3 + 7 * math.sqrt(each.n / largest)
            axes.plot([x], [y], "o", color=PALETTE["mean-teacher"], markersize=size, markeredgewidth=0)
        axes.set(xlim=(0, 101), ylim=(0, 102), xticks=range(0, 101, 20), yticks=range(0, 101, 20))
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        axes.set_xlabel("Confidence, %")
        axes.set_title("Right, %", loc="left", fontsize=9)
        groups = "; ".join(
            f"{count(each.n)}, {percent(each.confidence)} sure, {percent(each.accuracy)} right" for each in bins
        )
        return Markup(to_svg(figure, "Calibration", f"Confidence and how often the model is right. {groups}."))
