"""One offline HTML page from records: the answer, the errors, the curves, the vitals, the provenance."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from meanteacher.files import write_atomic
from meanteacher.formats import count, percent, percentage
from meanteacher.report.compare import answer, baseline_and_others, paired_difference, percent_spread, summarise
from meanteacher.report.figures import all_series, dot_plot, learning_curves, page_colour
from meanteacher.report.records import Data, Part, Record, complete_runs


@dataclass(frozen=True, slots=True)
class Line:
    """A recipe in the table of errors."""

    label: str
    colour: str
    student: str
    teacher: str
    difference: str
    n_runs: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The last health checks of a recipe's runs, averaged; empty where none was made."""

    label: str
    gradients: dict[str, str]
    distance: str
    largest_class_share: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The recipes that ran on the same data with the same number of labels."""

    data: Data
    heading: str
    summary: str
    sentences: Sequence[str]
    lines: Sequence[Line]
    dots: Markup
    curves: Markup
    """Empty where the runs recorded no curve."""
    pulses: Sequence[Pulse]


def comparisons(records: Iterable[Record], part: Part) -> list[Comparison]:
    """One comparison a data set and number of labels, the fewest labels first."""
    groups: defaultdict[tuple[int, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.data.n_labelled, record.data.fingerprint].append(record)
    return [_comparison(groups[key], part) for key in sorted(groups)]


def conditions(records: Sequence[Record]) -> dict[str, list[str]]:
    """What the runs were made with -> every value it had: more than one where the runs differ."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.environment.items():
            values.setdefault(name, {})[value] = None
    return {name: list(distinct) for name, distinct in values.items()}


def duration(seconds: float) -> str:
    """Seconds as a reader says them.

    >>> duration(4.21), duration(75), duration(7190)
    ('4.2 s', '1 min 15 s', '2 h 0 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return "{} min {} s".format(*divmod(round(seconds), 60))
    return "{} h {} min".format(*divmod(round(seconds / 60), 60))


def _comparison(records: Sequence[Record], part: Part) -> Comparison:
    data, series = records[0].data, all_series(records)
    n_methods, n_images = len(series), data.n_images(part)
    differences = _differences(records, part)
    lines = [
        Line(
            label=row.label,
            colour=page_colour(its.colour),
            student=percent_spread(row.student, n_images),
            teacher=percent_spread(row.teacher, n_images),
            difference=differences.get(row.recipe, "–"),
            n_runs=row.n_runs,
        )
        for row, its in zip(summarise(records, part=part), series, strict=True)
    ]
    return Comparison(
        data=data,
        heading=count(data.n_labelled, "label"),
        summary=f"{count(n_methods, 'recipe')} · {count(len(records), 'run')} · {n_images:,} {part} images",
        sentences=answer(records, part=part),
        lines=lines,
        dots=Markup(dot_plot(records, part=part)),
        curves=Markup(_curves(records, part)),
        pulses=[_pulse(its.label, its.runs) for its in series],
    )


def _curves(records: Sequence[Record], part: Part) -> str:
    """On `part`, or on the other part where only that was evaluated during training."""
    evaluated = {point.part for record in records for point in record.curve}
    other: Part = "validation" if part == "test" else "test"
    for candidate in (part, other):
        if candidate in evaluated:
            return learning_curves(records, part=candidate)
    return ""


def _differences(records: Sequence[Record], part: Part) -> dict[str, str]:
    baseline, others = baseline_and_others(records)
    if baseline is None:
        return {}
    n_images = records[0].data.n_images(part)
    cells = {}
    for other in others:
        difference = paired_difference(records, baseline, other, part=part)
        cells[other] = percentage(difference.mean, n_images).replace("-", "−")
        if difference.standard_error is not None:
            cells[other] += f" ± {percentage(difference.standard_error, n_images)}"
    return cells


def _pulse(label: str, runs: Sequence[Record]) -> Pulse:
    last = [run.vitals[-1] for run in runs if run.vitals]
    costs = list(dict.fromkeys(cost for vital in last for cost in vital.gradients))
    return Pulse(
        label=label,
        gradients={cost: _mean("{:.2g}".format, [vital.gradients.get(cost) for vital in last]) for cost in costs},
        distance=_mean("{:.2g}".format, [vital.distance for vital in last]),
        largest_class_share=_mean(percent, [vital.largest_class_share for vital in last]),
    )


def _mean(written: Callable[[float], str], values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return written(fmean(known)) if known else "–"


TEMPLATE = "page.html.jinja"


def write_page(records: Iterable[Record], path: str | Path, title: str, *, part: Part = "test") -> Path:
    """Write the page and return its path. The same records always give the same bytes.

    The file appears whole or not at all: a reader never sees half a page, and a failure keeps the old one.
    """
    html = render_page(records, title, part=part)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomic(path, html)


def render_page(records: Iterable[Record], title: str, *, part: Part = "test") -> str:
    """The page as text. Everything in it comes from the records, and is escaped."""
    records = list(records)
    complete = complete_runs(records)
    made_with = conditions(records)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(count=count)
    environment.filters.update(duration=duration, json=_json, unbroken=_unbroken)
    text = files("meanteacher.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    unfinished = [record for record in records if not record.complete]
    alarms = [(record, alarm) for record in records for alarm in record.alarms]
    trouble = ((len(alarms), "alarm"), (len(unfinished), "unfinished run"))
    return environment.from_string(text).render(
        title=title,
        part=part,
        records=records,
        comparisons=comparisons(complete, part),
        warnings=[count(n, noun) for n, noun in trouble if n],
        alarms=alarms,
        unfinished=unfinished,
        n_checks=sum(len(record.vitals) for record in records),
        costs=list(dict.fromkeys(cost for record in complete for v in record.vitals for cost in v.gradients)),
        conditions=made_with,
        differing=[name for name, values in made_with.items() if len(values) > 1],
        datasets={record.data.fingerprint: record.data for record in records}.values(),
        recipes={(record.recipe, record.recipe_fingerprint): record for record in records}.values(),
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _unbroken(sentence: str) -> str:
    """A number and its unit stay on one line."""
    for unit in (" %", " ± ", " points", " label"):
        sentence = sentence.replace(unit, unit.replace(" ", "\N{NO-BREAK SPACE}"))
    return sentence
