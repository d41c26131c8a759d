"""One offline HTML page from records: the answer, the errors, the curves, the vitals, the provenance."""

import json
import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from meanteacher.formats import count
from meanteacher.report.contents import comparisons, conditions, duration
from meanteacher.report.records import Part, Record, complete_runs

TEMPLATE = "page.html.jinja"


def write_page(records: Iterable[Record], path: str | Path, title: str, *, part: Part = "test") -> Path:
    """Write the page and return its path. The same records always give the same bytes.

    The file appears whole or not at all: a reader never sees half a page, and a failure keeps the old one.
    """
    html = render_page(records, title, part=part)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(html, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


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
