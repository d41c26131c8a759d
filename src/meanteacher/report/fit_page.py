"""One offline HTML page about a fit: the answer first, then all that stands behind it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from meanteacher.formats import certainty, count, percent, points
from meanteacher.report import fit_tables, fit_text
from meanteacher.report.compare import METHODS, display_name
from meanteacher.report.fit_tables import fit_curves, reliability_diagram
from meanteacher.report.fit_text import BASELINE, OURS, Fit, commands, placeholders, python_code
from meanteacher.report.page import duration

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
    "size": "Pixels a side",
    "width": "Width",
    "steps": "Steps",
    "seconds_per_step": "Seconds a step",
    "network": "Network",
    "n_parameters": "Parameters",
    "flip": "Mirrored views",
}


@dataclass(frozen=True, slots=True)
class Health:
    """What the vitals said: alarms by method, and the last readings as a table."""

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


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the time, and its share in percent."""

    label: str
    time: str
    share: str


def health(fit: Fit) -> Health | None:
    """None where the fit recorded no vitals at all."""
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
    shown = {label: decided[key] for key, label in PLAN.items() if decided.get(key) is not None}
    return list(_flat(shown).items())


def made_with(fit: Fit) -> list[tuple[str, str]]:
    """The versions and the machine."""
    tools = {"meanteacher": fit.get("version")} | dict(fit.get("environment") or {})
    return [(tool, "not recorded" if value is None else str(value)) for tool, value in tools.items()]


def spans(fit: Fit) -> list[Span]:
    """The parts of the time in the order in which they ran."""
    parts = (fit.get("timing") or {}).get("parts") or {}
    total = sum(parts.values()) or 1.0
    return [
        Span(display_name(part), duration(seconds), f"{100 * seconds / total:.2f}") for part, seconds in parts.items()
    ]


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

    >>> _flat({"Steps": 1500, "Seconds a step": {"mean-teacher": 0.25}})
    {'Steps': '1,500', 'Seconds a step, Mean Teacher': '0.25'}
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
    """A value of the record as a reader writes it.

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


THUMB = re.compile(r"data:image/(?:jpeg|png);base64,[A-Za-z0-9+/]+={0,2}")
"""What a picture may be. Anything else that a file held could be a request or a script."""

LONGEST_THUMB = 200_000
N_PICTURES = 24
"""As many of a kind as a reader looks at."""

GROUPS = {
    "most_confident": ("Surest", "The model is surest of these. A wrong one here is worth a second look."),
    "least_confident": ("Least sure", "The model can hardly decide on these."),
    "label_next": ("To label next", "Labels for these would teach the model most; label-next.csv lists them."),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of the gallery; without `thumb` only its words are shown."""

    name: str
    file: str
    label: str
    confidence: str
    reason: str
    thumb: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pictures that were chosen for the same reason."""

    heading: str
    sentence: str
    pictures: Sequence[Picture]


def gallery(fit: Fit) -> list[Group]:
    """The groups that hold a picture."""
    groups = fit.get("gallery") or {}
    return [
        Group(heading, sentence, [_picture(each) for each in groups[key][:N_PICTURES]])
        for key, (heading, sentence) in GROUPS.items()
        if groups.get(key)
    ]


def safe_thumb(thumb: object) -> str:
    """The picture if it is one, else nothing.

    >>> safe_thumb("data:image/png;base64,iVBORw0KGgo="), safe_thumb("https://example.org/a.png")
    ('data:image/png;base64,iVBORw0KGgo=', '')
    """
    known = isinstance(thumb, str) and len(thumb) <= LONGEST_THUMB and THUMB.fullmatch(thumb)
    return known.group() if known else ""


def _picture(each: Mapping[str, Any]) -> Picture:
    confidence = each.get("confidence")
    return Picture(
        name=each["name"],
        file=each["name"].rsplit("/", 1)[-1],
        label=each["label"],
        confidence="" if confidence is None else certainty(confidence),
        reason=each.get("reason") or "",
        thumb=safe_thumb(each.get("thumb")),
    )


TEMPLATE, STYLE, HOUSE = "fit.html.jinja", "fit.css", "page.html.jinja"

MAY_BE_ABSENT = ("estimate", "plan", "timing", "created")
"""Of what the template reads itself."""


def fit_page(fit: Fit) -> str:
    """The page as text, a pure function of fit.json. Every name in it is escaped; what is missing is left out."""
    estimate = fit.get("estimate")
    calibration = fit.get("calibration")
    html = _template().render(
        fit={**dict.fromkeys(MAY_BE_ABSENT), **fit},
        data=fit["data"],
        style=Markup(_house_style() + _text(STYLE)),
        lead=fit_text.lead(fit),
        difference=fit_text.difference_sentence(fit),
        apart=(estimate or {}).get("difference"),
        shipped=fit_text.shipped_sentence(fit),
        judged=fit_text.judged_sentence(fit) if estimate else "",
        confidence=fit_text.confidence(fit) if estimate else "",
        intervals=fit_tables.intervals(fit),
        curves=fit_curves(fit.get("curves") or {}),
        matrix=fit_tables.matrix(fit),
        pairs=fit_tables.confused_pairs(fit),
        classes=fit_tables.class_rows(fit),
        groups=gallery(fit),
        calibration=calibration,
        calibrated=fit_text.calibration_sentence(fit),
        reliability=reliability_diagram((calibration or {}).get("bins") or ()),
        health=health(fit),
        findings=findings(fit),
        plan=plan(fit),
        spans=spans(fit),
        made_with=made_with(fit),
        placeholders=placeholders(fit, where="page"),
        commands=commands(fit),
        python=python_code(fit),
    )
    # A name of a file can hold what no text file may: it is shown as an escape, and the page can be written.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(count=count)
    environment.filters.update(duration=_duration, points=points, unbroken=_unbroken)
    return environment.from_string(_text(TEMPLATE))


def _house_style() -> str:
    """The style sheet of the page of records: pages of one house look alike."""
    return _text(HOUSE).partition("<style>")[2].partition("</style>")[0]


def _duration(seconds: float) -> str:
    return duration(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def _unbroken(sentence: str) -> str:
    """A number and its unit stay on one line."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


def _text(name: str) -> str:
    return files("meanteacher.report").joinpath(name).read_text(encoding="utf-8")
