"""The model card of a fit in Markdown: what the model is for, how good it is, and where not to trust it."""

import re
from collections.abc import Iterable, Sequence

from meanteacher.formats import count, display_name, duration, listed
from meanteacher.photos.pages import fit_page, fit_tables
from meanteacher.photos.pages.fit_page import commands, placeholders, python_code
from meanteacher.photos.pages.fit_tables import class_rows, confused_pairs, intervals
from meanteacher.records import Fit
from meanteacher.report.compare import markdown_table

N_CLASSES = 50
"""As many as a reader looks through; the page lists all."""

N_CONFUSED = 5


def model_card(fit: Fit) -> str:
    """The card as text, a pure function of fit.json. Names are escaped: none can become a heading, link or tag."""
    parts = [
        f"# A classifier for {escaped(fit.title)}",
        escaped(fit_page.lead(fit)),
        fit_page.difference_sentence(fit.estimate),
        "## The model",
        _model(fit),
        "## How good it is",
        *_errors(fit),
        *_section("### By class", _classes(fit)),
        *_section("### Most often confused", [_confused(fit)]),
        "### How reliable its confidence is",
        fit_page.calibration_sentence(fit.calibration),
        "## Where not to trust it",
        _limits(fit),
        "## Training data",
        _data(fit),
        "## How to use it",
        _use(fit),
        "## How it was made",
        _provenance(fit),
    ]
    card = "\n\n".join(part for part in parts if part) + "\n"
    return card.encode("utf-8", "backslashreplace").decode("utf-8")


def escaped(text: object) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> print(escaped("<b>[x](y)</b> | *z*"))
    &lt;b&gt;\[x\](y)&lt;/b&gt; \| \*z\*
    """
    line = " ".join(str(text).split())
    line = re.sub(r"[\\`*_{}\[\]#|~!$]", r"\\\g<0>", line)
    # Bare addresses become links in some readers.
    line = re.sub(r":(?=//)|(?<=www)\.", r"\\\g<0>", line, flags=re.IGNORECASE)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _model(fit: Fit) -> str:
    size, n_classes = fit.data.size, len(fit.data.class_names)
    known = [f"network: {escaped(fit.network)}", f"parameters: {fit.n_parameters:,}"]
    if backbone := fit.backbone:
        known += [
            f"pretrained network: {escaped(backbone.title)} ({escaped(backbone.name)})",
            f"pretrained on: {escaped(backbone.trained_on)}",
            f"licence of the pretrained weights: {escaped(backbone.licence)}",
            f"sha256 of the pretrained weights: {escaped(backbone.sha256)}",
        ]
    return (
        f"{fit_page.shipped_sentence(fit)} It sees an image as {size} × {size} pixels and assigns it "
        f"to one of {count(n_classes, 'class', 'classes')}. It knows no others: an image of something else is assigned "
        f"to one of them as well. {escaped(fit_page.foundation_sentence(fit))}\n\n{_listed(known)}"
    )


def _errors(fit: Fit) -> list[str]:
    tested, explained = fit_tables.tried(fit) or (intervals(fit), [])
    rows = [
        (escaped(row.label), f"{row.error} %", f"{row.low} to {row.high} %", f"{row.wrong:,}") for row in tested.rows
    ]
    header = ("Model", "Error", f"{fit_page.confidence(fit.estimate)} interval", f"Wrong of {fit.estimate.n:,}")
    return [
        markdown_table(header, rows),
        fit_page.tested_sentence(fit),
        _listed(f"{name}: {sentence}" for name, sentence in explained),
        escaped(fit.trial.sentence) if fit.trial else "",
    ]


def _classes(fit: Fit) -> list[str]:
    rows = class_rows(fit)
    if not rows:
        return []
    lines = [(escaped(row.name), row.error, row.wrong or "not tested", f"{row.n_labelled:,}") for row in rows]
    more = f"The highest errors first; {len(rows) - N_CLASSES:,} more classes are in report.html."
    return [
        markdown_table(("Class", "Error", "Wrong", "Labels"), lines[:N_CLASSES]),
        more if len(rows) > N_CLASSES else "",
    ]


def _confused(fit: Fit) -> str:
    pairs = confused_pairs(fit)[:N_CONFUSED]
    return _listed(f"{escaped(p.true)} mistaken for {escaped(p.mistaken_for)}: {p.n:,} of {p.of:,}" for p in pairs)


def _limits(fit: Fit) -> str:
    found = [each for each in fit_tables.findings(fit) if each.severity != "note"]
    few = [row for row in fit.per_class if row.n_labelled < 10]
    n_few = count(len(few), "class", "classes")
    return _listed(
        [
            "On images of another kind than those it was trained on: its error there is unknown.",
            "Where a wrong answer does harm: have a person check every answer.",
            *_inherited(fit),
            *([f"On the {n_few} with fewer than ten labels: too few to rely on."] if few else []),
            *(f"{method}, during training: {escaped(sentence)}" for method, sentence in fit_tables.health(fit).alarms),
            *(f"{each.severity.capitalize()} in the data: {escaped(each.sentence)}" for each in found),
        ]
    )


def _inherited(fit: Fit) -> list[str]:
    """What a pretrained network brings along."""
    if fit.backbone is None:
        return []
    trained_on = fit.backbone.trained_on
    source = "the images of its pretraining" if trained_on == "unknown" else escaped(trained_on)
    return [
        f"On classes unlike those of {source}: those are easier for a network that learned from them than others are.",
        f"Where fairness matters: biases of {source}, such as which countries and people its photos show, come along.",
    ]


def _data(fit: Fit) -> str:
    data = fit.data
    unreadable = f", {data.n_unreadable:,} unreadable" if data.n_unreadable else ""
    names = listed([escaped(name) for name in data.class_names], most=N_CLASSES)
    counts = f"{data.n_labelled:,} labelled, {data.n_unlabelled:,} unlabelled{unreadable}"
    return f"{data.n_images:,} images: {counts}. Labels from: {escaped(data.source)}. Classes: {names}."


def _use(fit: Fit) -> str:
    uses = commands(source=fit.data.source)
    width = max(len(command) for _, command in uses)
    lines = "\n".join(f"{command:<{width}}  # {purpose}" for purpose, command in uses)
    return f"{placeholders(where='card')}\n\n```sh\n{lines}\n```\n\n```python\n{python_code()}```"


def _provenance(fit: Fit) -> str:
    return _listed(
        [
            f"Made: {escaped(fit.created)}",
            *(f"{escaped(tool)}: {escaped(value)}" for tool, value in fit_tables.made_with(fit)),
            f"Time: {duration(fit.timing.total_seconds)}",
            f"Method: {display_name(fit.answer.shipped)}; every number here is in fit.json",
        ]
    )


def _section(heading: str, parts: Sequence[str]) -> list[str]:
    """A heading stands only over something."""
    return [heading, *parts] if any(parts) else []


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
