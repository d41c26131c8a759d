"""Tables and lists of a fit, as its page and its model card show them."""

from collections.abc import Mapping
from dataclasses import dataclass

from meanteacher.formats import BASELINE, display_name, duration, percent, percentage
from meanteacher.records import SEVERITIES, ClassResult, ErrorEstimate, Finding, Fit, Reading
from meanteacher.report.figures import OTHERS, PALETTE, page_colour

OURS = "mean-teacher"
MOST_CLASSES = 20
"""A larger matrix cannot be read: the pairs that are confused most often are listed instead."""
N_PAIRS = 20
_FEW = "the labelled images alone."
ALTERNATIVES = {
    "probe": ("Last layer only", f"On top of the unchanged pretrained network, a new last layer learned from {_FEW}"),
    "tuned": ("Last layers, labels only", f"The last layers of the pretrained network learned from {_FEW}"),
    "label-spreading": (
        "Label spreading",
        "Nothing was trained. Images that the pretrained network finds alike get the same label.",
    ),
}
"""What may have been tried beside the two methods: its name for a reader, and what it is."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A method's error; positions are in percent of the plot's width."""

    label: str
    colour: str
    error: str
    low: str
    high: str
    wrong: int
    left: str
    at: str
    width: str


@dataclass(frozen=True, slots=True)
class Confused:
    """Images of one class that were mistaken for another."""

    true: str
    mistaken_for: str
    n: int
    of: int


Intervals = tuple[list[Interval], list[int]]
"""Errors on one axis from zero, and the numbers on the axis."""


def intervals(fit: Fit) -> Intervals:
    """The errors of both methods, on the shortest axis of round numbers that holds their intervals."""
    return _on_one_axis(fit, {})


def tried(fit: Fit) -> tuple[Intervals, list[tuple[str, str]]] | None:
    """The two methods and the alternatives that were tested on the same images, and a sentence about each of these."""
    if not fit.alternatives:
        return None
    known = [ALTERNATIVES[name] for name in fit.alternatives if name in ALTERNATIVES]
    return _on_one_axis(fit, fit.alternatives), known


def matrix(fit: Fit) -> list[tuple[str, tuple[int, ...]]]:
    """Rows of the confusion matrix with the name of their true class; empty if there are too many classes."""
    return list(zip(fit.data.class_names, fit.confusion, strict=True)) if len(fit.confusion) <= MOST_CLASSES else []


def confused_pairs(fit: Fit) -> list[Confused]:
    """The confusions in order of how often they happened, the most frequent only."""
    names, confusion = fit.data.class_names, fit.confusion
    wrong = [(n, i, j) for i, row in enumerate(confusion) for j, n in enumerate(row) if n and i != j]
    worst = sorted(wrong, key=lambda pair: (-pair[0], pair[1:]))[:N_PAIRS]
    return [Confused(names[i], names[j], n, sum(confusion[i])) for n, i, j in worst]


def class_rows(fit: Fit) -> list[ClassResult]:
    """The classes in their own order, or the highest errors first if there are too many to look through."""
    rows = list(fit.per_class)
    if len(rows) > MOST_CLASSES:
        rows.sort(key=lambda row: -1.0 if row.error is None else row.error, reverse=True)
    return rows


def _on_one_axis(fit: Fit, alternatives: Mapping[str, ErrorEstimate]) -> Intervals:
    errors = {**{method: fit.estimate.errors[method] for method in (OURS, BASELINE)}, **alternatives}
    ticks = _ticks(max(0.01, *(error.high for error in errors.values())))
    return [_interval(error, method, fit.estimate.n, ticks[-1]) for method, error in errors.items()], ticks


def _interval(estimate: ErrorEstimate, method: str, n: int, end: int) -> Interval:
    error, low, high = estimate.error, estimate.low, estimate.high
    return Interval(
        label=ALTERNATIVES[method][0] if method in ALTERNATIVES else display_name(method),
        colour=page_colour(PALETTE.get(method, OTHERS[2])),
        error=percentage(error, n),
        low=percentage(low, n),
        high=percentage(high, n),
        wrong=estimate.wrong,
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


def _methods(fit: Fit) -> list[str]:
    return [method for method in (OURS, BASELINE) if method in fit.vitals]


def alarms(fit: Fit) -> list[tuple[str, str]]:
    """The alarms of both methods: method, sentence."""
    return [
        (display_name(method), f"{alarm.sentence} (step {alarm.step:,})")
        for method in _methods(fit)
        for alarm in fit.vitals[method].alarms
    ]


def readings(fit: Fit) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The methods, and rows of what was measured at the last check of each."""
    methods = _methods(fit)
    tables = [_reading(found[-1]) if (found := fit.vitals[method].readings) else {} for method in methods]
    labels = list(dict.fromkeys(label for table in tables for label in table))
    rows = [(label, [table.get(label, "–") for table in tables]) for label in labels]
    return [display_name(method) for method in methods], rows


def _reading(reading: Reading) -> dict[str, str]:
    """What was measured -> its value."""
    return {
        **{f"Gradient, {cost}": f"{norm:.3g}" for cost, norm in reading.gradients.items()},
        "Distance of student and teacher": "–" if reading.distance is None else f"{reading.distance:.3g}",
        "Labelled share of a batch": percent(reading.labelled_share),
        "Share of the class predicted most": percent(reading.largest_class_share),
    }


def findings(fit: Fit) -> list[Finding]:
    """The most serious first."""
    return sorted(fit.findings, key=lambda finding: SEVERITIES.index(finding.severity))


def plan(fit: Fit) -> list[tuple[str, str]]:
    """What was decided before training, in words. A number of zero does not apply."""
    plan = fit.plan
    shown = {
        "Minutes allowed": f"{plan.minutes:g}",
        "Pixels per side": f"{plan.size:,}",
        "Altered copies of each image": f"{plan.n_views:,}" if plan.n_views else "",
        "Network width": f"{plan.width:.3g}" if plan.width else "",
        "Steps": f"{plan.steps:,}",
        **{f"Seconds per step, {display_name(m)}": f"{time:.3g}" for m, time in plan.seconds_per_step.items()},
        "Network": fit.network,
        "Parameters": f"{fit.n_parameters:,}",
        "Mirrored copies": "yes" if plan.flip else "no",
    }
    return [(label, value) for label, value in shown.items() if value]


def made_with(fit: Fit) -> list[tuple[str, str]]:
    """The versions and the machine."""
    tools = {"meanteacher": fit.version, **fit.environment}
    return [(tool, "not recorded" if value is None else str(value)) for tool, value in tools.items()]


def spans(fit: Fit) -> list[tuple[str, str, str]]:
    """The parts of the time in the order in which they ran: what, how long, and its share in percent."""
    parts = fit.timing.parts
    total = sum(parts.values()) or 1.0
    return [(display_name(part), duration(time), f"{100 * time / total:.2f}") for part, time in parts.items()]
