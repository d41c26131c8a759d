"""Figures 3 and 4 of the paper from our own runs, in the paper's layout."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean
from typing import Literal, get_args

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from meanteacher.formats import BASELINE, count, percent
from meanteacher.records import Record
from meanteacher.report.compare import difference_by_seed, one_run_per_seed
from meanteacher.report.figures import INK, MARKERS, OTHERS, PALETTE, at_common_steps, curve, log_axis, styled, to_svg

Panels = Mapping[str, Mapping[str, Sequence[Record]]]
"""panel -> curve or setting -> its complete runs"""

_Model = Literal["teacher", "student"]
_SHOWN: dict[_Model, str] = {"teacher": "average", "student": "student"}
_COLOURS = (PALETTE["mean-teacher"], *OTHERS)
"""Colours of the lines of figure 4, which are all Mean Teacher's."""


def draw_curves(panels: Panels, title: str, caption: str) -> Figure:
    """Figure 3: classification cost on labelled images above, error on test images below, one column per setting."""
    with styled():
        figure = Figure(figsize=(3.1 * max(1, len(panels)), 5.2), layout="constrained")
        grid = figure.subplots(2, max(1, len(panels)), squeeze=False, sharex="col")
        handles: dict[str, Line2D] = {}
        for column, (panel, curves) in enumerate(panels.items()):
            above, below = grid[0][column], grid[1][column]
            for label, runs in curves.items():
                colour = PALETTE.get(runs[0].method if runs else "", INK)
                for model in _models(runs):
                    dashes = "-" if model == "teacher" else "--"
                    for axes, values in ((above, _costs(runs, model)), (below, curve(runs, "test", model))):
                        means = [fmean(each) for each in values.values()]
                        (line,) = axes.plot(list(values), means, dashes, color=colour, linewidth=1.4)
                    handles[f"{label}, {_SHOWN[model]}"] = line
            above.set_title(panel, loc="left", fontsize=9)
            for axes in (above, below):
                log_axis(axes, [value for line in axes.get_lines() for value in line.get_ydata() if value > 0])
                axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
                axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
            below.set_xlabel("Training steps")
        grid[0][0].set_ylabel("Classification cost")
        grid[1][0].set_ylabel("Test error, %")
        figure.legend(list(handles.values()), list(handles), loc="outside lower left", ncols=2, frameon=False)
        _caption(figure, title, caption)
        return figure


def _models(runs: Sequence[Record]) -> Sequence[_Model]:
    """Both models of a run; only the average of the baseline, which is there for comparison."""
    return ("teacher",) if runs and runs[0].method == BASELINE else get_args(_Model)


def describe_curves(panels: Panels) -> list[str]:
    """What figure 3 shows, in a sentence or three per panel with runs of both systems on the same label draws."""
    described = {panel: _described(curves, "Mean Teacher", "Pi model") for panel, curves in panels.items()}
    return [f"{panel}: {sentence}" for panel, sentence in described.items() if sentence]


def _described(curves: Mapping[str, Sequence[Record]], lower: str, higher: str) -> str:
    by_seed, others = (one_run_per_seed(curves.get(name, ())) for name in (lower, higher))
    difference = difference_by_seed(others, by_seed, "test")
    if difference is None:
        return ""
    seeds = [pair.seed for pair in difference.pairs]
    n_images = by_seed[seeds[0]].data.n_test
    mean, other = (
        {step: fmean(errors) / 100 for step, errors in curve([runs[seed] for seed in seeds], "test", "teacher").items()}
        for runs in (by_seed, others)
    )
    paired = f"95 % interval, paired by {count(difference.n, 'label draw')}" if difference.n > 1 else "one label draw"
    words = f"{lower} minus {higher} is {difference.with_interval(n_images)} points at the end ({paired})."
    if not mean.keys() & other.keys():
        return words
    best, end = min(other, key=other.__getitem__), max(other)
    lowest = f"The {higher} is lowest after {best:,} of {end:,} steps, at {percent(other[best], n_images)}"
    at_the_end = "" if best == end else f", and ends at {percent(other[end], n_images)}"
    return f"{words} {_crossing(mean, other, lower)} {lowest}{at_the_end}."


def _crossing(mean: Mapping[int, float], other: Mapping[int, float], name: str) -> str:
    """From which step on a mean curve stays below the other."""
    steps = sorted(mean.keys() & other.keys())
    above = [step for step in steps if mean[step] >= other[step]]
    below = [step for step in steps if not above or step > above[-1]]
    return f"{name} is below from step {below[0]:,} on." if below else f"{name} is not below at the end."


def draw_settings(panels: Panels, title: str, caption: str, *, evaluation: tuple[str, str]) -> Figure:
    """Figure 4: the validation error over the setting, each run a dot, and a line through the means of a panel.

    A ring marks the setting of the evaluation runs.
    """
    labels = list(dict.fromkeys(label for settings in panels.values() for label in settings))
    with styled():
        figure = Figure(figsize=(5.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        handles: dict[str, Line2D] = {}
        for (panel, settings), colour, marker in zip(panels.items(), cycle(_COLOURS), cycle(MARKERS), strict=False):
            errors = {label: [100 * run.error("validation") for run in runs] for label, runs in settings.items()}
            dots = [(labels.index(label), error) for label, each in errors.items() for error in each]
            means = {labels.index(label): fmean(each) for label, each in errors.items() if each}
            axes.plot([x for x, _ in dots], [y for _, y in dots], marker, color=colour, alpha=0.6, markersize=5)
            (line,) = axes.plot(list(means), list(means.values()), color=colour, linewidth=1.4)
            if len(panels) > 1:
                handles[panel] = line
        panel, label = evaluation
        if runs := panels.get(panel, {}).get(label):
            mean = 100 * fmean(run.error("validation") for run in runs)
            (ring,) = axes.plot(labels.index(label), mean, "o", markersize=12, markerfacecolor="none", color=INK)
            handles["setting of table 1"] = ring
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("Validation error, %")
        axes.set_xticks(range(len(labels)), labels)
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
        if handles:
            figure.legend(list(handles.values()), list(handles), loc="outside lower left", ncols=2, frameon=False)
        _caption(figure, title, caption)
        return figure


def _costs(runs: Sequence[Record], model: _Model) -> dict[int, list[float]]:
    """step -> the classification cost of every run, at the steps that all runs evaluated."""
    points = [(point.step, getattr(point, f"{model}_cost")) for run in runs for point in run.curve]
    return at_common_steps([(step, cost) for step, cost in points if cost is not None], len(runs))


def _caption(figure: Figure, title: str, caption: str) -> None:
    words = f"{title}. {caption}" if caption else title
    figure.suptitle(words, fontsize=8, x=0.01, ha="left", wrap=True)


def as_files(figure: Figure, title: str) -> dict[str, bytes]:
    """ending -> content, as SVG and PNG."""
    picture = io.BytesIO()
    with styled():
        figure.savefig(picture, format="png", dpi=200, facecolor="white")
        return {"svg": to_svg(figure, title).encode(), "png": picture.getvalue()}
