"""Tables and lists of a fit, as its page and its model card show them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meanteacher.formats import BASELINE, METHODS, count, display_name, duration, percent, percentage
from meanteacher.report.figures import OTHERS, PALETTE, page_colour

Fit = Mapping[str, Any]
"""The content of fit.json. Only `title`, `answer` and `data` must be there."""

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
    """Images of one class that were mistaken for another."""

    true: str
    mistaken_for: str
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
    return _on_one_axis({method: estimate[method] for method in methods}, estimate["n"])


def tried(fit: Fit) -> tuple[Intervals, list[tuple[str, str]]] | None:
    """The two methods and what else was tested on the same images, and a sentence about each of the others by name."""
    estimate, others = fit.get("estimate"), fit.get("alternatives")
    if not estimate or not others:
        return None
    errors = {method: estimate[method] for method in (OURS, BASELINE) if estimate.get(method)}
    errors |= {other["name"]: other for other in others}
    known = [ALTERNATIVES[other["name"]] for other in others if other["name"] in ALTERNATIVES]
    return _on_one_axis(errors, estimate["n"]), known


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
            error="–" if not tested else percent(row["error"]),
            wrong="" if not tested else f"{round(row['error'] * row['n_judged']):,} of {row['n_judged']:,}",
            bar="0" if not tested else f"{100 * row['error']:.1f}",
        )
        for row in rows
        for tested in [row.get("error") is not None and row.get("n_judged")]
    ]


def _on_one_axis(errors: Mapping[str, Fit], n: int) -> Intervals:
    ticks = _ticks(max(0.01, *(error["high"] for error in errors.values())))
    return Intervals([_interval(error, method, n, ticks[-1]) for method, error in errors.items()], ticks)


def _interval(estimate: Fit, method: str, n: int, end: int) -> Interval:
    error, low, high = (estimate[key] for key in ("error", "low", "high"))
    return Interval(
        label=ALTERNATIVES[method][0] if method in ALTERNATIVES else display_name(method),
        colour=page_colour(PALETTE.get(method, OTHERS[2])),
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


N_NAMES = 50
"""As many as a reader looks at. All of them are in fit.json."""

READINGS = {
    "gradients": "Gradient",
    "distance": "Distance of student and teacher",
    "labelled_share": "Labelled share of a batch",
    "largest_class_share": "Share of the class predicted most",
}

SEVERITIES = ("problem", "warning", "note")

ABOUT_CLASSES = ("no-label-class", "tiny-class", "unequal-classes", "flip")
"""Kinds of findings whose names are of classes, in a fit.json that does not say so itself."""

PLAN = {
    "minutes": "Minutes allowed",
    "size": "Pixels per side",
    "n_views": "Altered copies of each image",
    "width": "Network width",
    "steps": "Steps",
    "seconds_per_step": "Seconds per step",
    "network": "Network",
    "n_parameters": "Parameters",
    "flip": "Mirrored copies",
}


@dataclass(frozen=True, slots=True)
class Health:
    """What was checked during training: alarms by method, and the last readings as a table."""

    alarms: Sequence[tuple[str, str]]
    methods: Sequence[str]
    readings: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding, with as many names as a reader looks at."""

    severity: str
    sentence: str
    names: Sequence[str]
    n_names: int
    counted: str
    """How many names there are, and of what: 26 classes."""


def health(fit: Fit) -> Health | None:
    """None where the fit recorded no checks at all."""
    vitals = {method: its for method, its in (fit.get("vitals") or {}).items() if its}
    if not vitals:
        return None
    methods = [method for method in (OURS, BASELINE) if method in vitals]
    methods += [method for method in vitals if method not in methods]
    alarms = [(display_name(m), _sentence(alarm)) for m in methods for alarm in vitals[m].get("alarms") or ()]
    tables = {method: _readings(vitals[method].get("readings")) for method in methods}
    labels = list(dict.fromkeys(label for table in tables.values() for label in table))
    rows = [(label, [tables[method].get(label, "–") for method in methods]) for label in labels]
    return Health(alarms, [display_name(method) for method in methods], rows)


def findings(fit: Fit) -> list[ShownFinding] | None:
    """The most serious first; None where the data were not checked."""
    found = fit.get("findings")
    if found is None:
        return None
    ranked = sorted(found, key=lambda each: SEVERITIES.index(each["severity"]))
    return [
        ShownFinding(each["severity"], each["sentence"], names[:N_NAMES], len(names), _counted(each, len(names)))
        for each in ranked
        for names in [list(each.get("names") or ())]
    ]


def _counted(finding: Mapping[str, Any], n: int) -> str:
    about = finding.get("about") or ("class" if finding.get("kind") in ABOUT_CLASSES else "image")
    return count(n, "class", "classes") if about == "class" else count(n, "image")


def plan(fit: Fit) -> list[tuple[str, str]]:
    """What was decided before training, in words."""
    decided = fit.get("plan") or {}
    # A width or a number of copies that is zero does not apply; mirrored copies that are False do.
    shown = {label: value for key, label in PLAN.items() if (value := decided.get(key)) or value is False}
    return list(_flat(shown).items())


def made_with(fit: Fit) -> list[tuple[str, str]]:
    """The versions and the machine."""
    tools = {"meanteacher": fit.get("version")} | dict(fit.get("environment") or {})
    return [(tool, "not recorded" if value is None else str(value)) for tool, value in tools.items()]


def spans(fit: Fit) -> list[tuple[str, str, str]]:
    """The parts of the time in the order in which they ran: what, how long, and its share in percent."""
    parts = (fit.get("timing") or {}).get("parts") or {}
    total = sum(parts.values()) or 1.0
    return [(display_name(part), duration(time), f"{100 * time / total:.2f}") for part, time in parts.items()]


def _sentence(alarm: str | Mapping[str, Any]) -> str:
    """Alarms are sentences, or records of one with the step at which it was raised."""
    if isinstance(alarm, str):
        return alarm
    at = "" if alarm.get("step") is None else f" (step {alarm['step']:,})"
    return f"{alarm['sentence']}{at}"


def _readings(readings: Any) -> dict[str, str]:
    """The last of several readings, flat."""
    last = readings[-1] if isinstance(readings, Sequence) and readings else readings
    return _flat(
        {
            READINGS.get(key, display_name(key.replace("_", "-"))): (
                percent(value) if key.endswith("_share") and value is not None else value
            )
            for key, value in (last or {}).items()
        }
    )


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as words, with one label for each of several.

    >>> _flat({"Steps": 1500, "Seconds per step": {"mean-teacher": 0.25}})
    {'Steps': '1,500', 'Seconds per step, Mean Teacher': '0.25'}
    """
    flat: dict[str, str] = {}
    for label, value in values.items():
        several = (
            {f"{label}, {METHODS.get(name, name)}": its for name, its in value.items()}
            if isinstance(value, Mapping)
            else {label: value}
        )
        flat |= {name: _plain(its) for name, its in several.items()}
    return flat


def _plain(value: object) -> str:
    """A value as a reader writes it.

    >>> _plain(True), _plain(20400), _plain(0.123456), _plain(None), _plain("FastNet")
    ('yes', '20,400', '0.123', '–', 'FastNet')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
