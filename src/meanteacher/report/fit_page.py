"""One offline HTML page about a fit: the answer first, then all that stands behind it."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from meanteacher.formats import count, points
from meanteacher.report import fit_answer, fit_gallery, fit_parts, fit_tables
from meanteacher.report.contents import duration
from meanteacher.report.fit_answer import Fit
from meanteacher.report.fit_figures import fit_curves, reliability_diagram
from meanteacher.report.fit_use import commands, placeholders, python_code

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
        lead=fit_answer.lead(fit),
        difference=fit_answer.difference_sentence(fit),
        apart=(estimate or {}).get("difference"),
        shipped=fit_answer.shipped_sentence(fit),
        judged=fit_answer.judged_sentence(fit) if estimate else "",
        confidence=fit_answer.confidence(fit) if estimate else "",
        intervals=fit_tables.intervals(fit),
        curves=fit_curves(fit.get("curves") or {}),
        matrix=fit_tables.matrix(fit),
        pairs=fit_tables.confused_pairs(fit),
        classes=fit_tables.class_rows(fit),
        groups=fit_gallery.gallery(fit),
        calibration=calibration,
        calibrated=fit_answer.calibration_sentence(fit),
        reliability=reliability_diagram((calibration or {}).get("bins") or ()),
        health=fit_parts.health(fit),
        findings=fit_parts.findings(fit),
        plan=fit_parts.plan(fit),
        spans=fit_parts.spans(fit),
        made_with=fit_parts.made_with(fit),
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
