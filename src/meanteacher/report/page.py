"""One offline HTML page about runs: the answer, the errors beside the paper's, curves, health checks, provenance."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from meanteacher.files import write_atomic
from meanteacher.files.typed import RecordError
from meanteacher.formats import (
    BASELINE,
    METHODS,
    certainty,
    count,
    duration,
    listed,
    percent,
    percentage,
    points,
    unbroken,
    whole_percent,
)
from meanteacher.records import Part, Record
from meanteacher.report.compare import (
    Difference,
    baseline_differences,
    baselines,
    percent_spread,
    recipe_labels,
    shared_path,
    spread,
    summarise,
)
from meanteacher.report.figures import all_series, dot_plot, learning_curves, page_colour


def render(template: str, escape: Callable[[object], str] | None = None, **values: object) -> str:
    """A page from its template: the same values always give the same text, in which every value is escaped."""
    environment = Environment(
        loader=PackageLoader("meanteacher.report"),
        autoescape=escape is None,
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=escape is not None,
    )
    environment.globals.update(count=count)
    environment.filters.update(
        certainty=certainty,
        css="{:.3g}".format,
        duration=duration,
        json=partial(json.dumps, indent=2, ensure_ascii=False),
        percent=percent,
        points=points,
        spread=percent_spread,
        unbroken=unbroken,
        whole_percent=whole_percent,
    )
    text = environment.get_template(template).render(values)
    # The name of a file can hold what no text file may: it is shown as an escape, and the page can be written.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def answer(records: Sequence[Record], *, part: Part = "test", brief: bool = False) -> list[str]:
    """The sentences that open a page, about runs with the same data and number of labels.

    The first compares Mean Teacher, or the first other method where it has not run, with supervised-only training.
    Which one leads never depends on the errors: the best of many looks better than it is. The last ones say which
    differences may be chance. `brief` leaves out the methods in between.
    """
    partner, differences, labels = baselines(records), baseline_differences(records, part), recipe_labels(records)
    sentences = [
        _compared(records, recipe, baseline, differences[recipe], part)
        if recipe in differences and baseline is not None
        else _alone(records, recipe, part)
        for recipe, baseline in (partner or {records[0].recipe.name: None}).items()
    ]
    sentences[0] = f"With {count(records[0].data.n_labelled, 'label')}, {sentences[0]}"
    sentences[1:] = [] if brief else [sentence[0].upper() + sentence[1:] for sentence in sentences[1:]]
    if not partner:
        return [*sentences, "There is no other method to compare with."]
    if None in partner.values():
        return [*sentences, "There are no supervised-only runs to compare with."]
    unpaired = [labels[recipe] for recipe in partner if recipe not in differences]
    against = compared_with(records)
    apart = [f"Not compared, since {against} ran on other label draws: {listed(unpaired)}."]
    cautions = caution({labels[recipe]: difference for recipe, difference in differences.items()}, against)
    return [*sentences, *cautions, *(apart if unpaired else [])]


def compared_with(records: Sequence[Record]) -> str:
    """The name of what the others are compared with, in a sentence."""
    labels = recipe_labels(records)
    if any(record.method == BASELINE for record in records):
        return in_sentence(METHODS[BASELINE])
    return listed([labels[name] for name in dict.fromkeys(baselines(records).values()) if name]) or "nothing"


def caution(differences: Mapping[str, Difference], against: str = "supervised-only training") -> list[str]:
    """Which of the differences to this baseline may be chance: name -> its difference."""
    single = [name for name, each in differences.items() if each.standard_error is None]
    unclear = [name for name, each in differences.items() if each.standard_error is not None and not each.clear]
    two = [name for name, each in differences.items() if each.n == 2 and each.clear]
    told = {
        "Compared on one label draw only, which cannot show which method is better": single,
        f"Within two standard errors of {against}, so these runs do not show a difference": unclear,
        "Compared on two label draws only, so the standard error is itself uncertain": two,
    }
    return [f"{sentence}: {listed(names)}." for sentence, names in told.items() if names]


def _compared(records: Sequence[Record], recipe: str, baseline: str, difference: Difference, part: Part) -> str:
    labels, n_images = recipe_labels(records), records[0].data.n_images(part)
    ours = percent(fmean(pair.other for pair in difference.pairs), n_images)
    theirs = percent(fmean(pair.baseline for pair in difference.pairs), n_images)
    n_runs = len([record for record in records if record.recipe.name in (baseline, recipe)])
    shared = " that both ran" if n_runs > 2 * difference.n else ""
    return (
        f"the {part} error is {ours} with {labels[recipe]} and {theirs} with {in_sentence(labels[baseline])}: "
        f"{_points(difference, n_images)} over {count(difference.n, 'label draw')}{shared}."
    )


def in_sentence(name: str) -> str:
    """A method's name within a sentence: the baseline's is no proper name.

    >>> in_sentence("Supervised-only"), in_sentence("Mean Teacher")
    ('supervised-only training', 'Mean Teacher')
    """
    baseline = METHODS[BASELINE]
    return f"{baseline.lower()} training{name.removeprefix(baseline)}" if name.startswith(baseline) else name


def _points(difference: Difference, n_images: int) -> str:
    size = percentage(abs(difference.mean), n_images)
    direction = "lower" if difference.mean < 0 else "higher"
    text = f"{size} points {direction}" if float(size) else "no difference to that precision"
    if difference.standard_error is None:
        return text
    return f"{text}, with a standard error of {percentage(difference.standard_error, n_images)}"


def _alone(records: Sequence[Record], recipe: str, part: Part) -> str:
    runs = [record for record in records if record.recipe.name == recipe]
    over, n_images = spread([run.error(part) for run in runs]), runs[0].data.n_images(part)
    several = f" (mean and standard deviation over {len(runs)} label draws)" if len(runs) > 1 else ""
    name = in_sentence(recipe_labels(records)[recipe])
    return f"the {part} error is {percent_spread(over, n_images)} % with {name}{several}."


def comparisons(records: Iterable[Record], part: Part) -> list[dict[str, object]]:
    """One comparison per data set, number of labels and number of validation images, the fewest labels first.

    Runs that hold out other images for validation draw other labelled sets for the same seed, so they make no pairs.
    """
    return [_comparison(group, part) for group in comparable(records)]


def comparable(records: Iterable[Record]) -> list[list[Record]]:
    """The runs with the same data, number of labels and number of validation images, the fewest labels first."""
    groups: defaultdict[tuple[int, str, int], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.data.n_labelled, record.data.fingerprint, record.data.n_validation].append(record)
    return [groups[key] for key in sorted(groups)]


_WORDS = {"None": "not recorded", "True": "yes", "False": "no"}


def conditions(records: Sequence[Record]) -> dict[str, list[str]]:
    """What the runs were made with -> every value it had: more than one where the runs differ."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.environment.items():
            values.setdefault(name, {})[_WORDS.get(str(value), str(value))] = None
    return {name: list(distinct) for name, distinct in values.items()}


def _comparison(records: Sequence[Record], part: Part) -> dict[str, object]:
    """What the page shows about recipes with the same data and the same numbers of labels and held-out images."""
    data, series, rows = records[0].data, all_series(records), summarise(records, part=part)
    shared = shared_path(record.recipe.name for record in records)
    first = [(its.label, its.runs[0].recipe) for its in series]
    images = f"{data.n_images(part):,} {part} images"
    return {
        "heading": " · ".join(filter(None, (shared, count(data.n_labelled, "label")))),
        "summary": f"{count(len(series), 'recipe')} · {count(len(records), 'run')} · {images}",
        "sentences": answer(records, part=part, brief=True),
        "rows": rows,
        "colours": {its.runs[0].recipe.name: page_colour(its.colour) for its in series},
        "differences": baseline_differences(records, part),
        "baseline": compared_with(records),
        "sources": listed(sorted({row.claim.where for row in rows if row.claim is not None})),
        "deviations": {label: recipe.deviations for label, recipe in first if recipe.claim and recipe.deviations},
        "dots": Markup(dot_plot(records, part=part)),
        "curves": Markup(_curves(records, part)),
        "checks": [_checks(its.label, its.runs) for its in series],
    }


def _curves(records: Sequence[Record], part: Part) -> str:
    """On `part`, or on the other part where only that was evaluated during training; else empty."""
    other: Part = "validation" if part == "test" else "test"
    for candidate in (part, other):
        # One evaluation per run is no curve: the figure of all label draws shows it.
        if any(sum(point.part == candidate for point in record.curve) > 1 for record in records):
            return learning_curves(records, part=candidate)
    return ""


def _checks(label: str, runs: Sequence[Record]) -> dict[str, object]:
    """The last health checks of a recipe's runs, averaged."""
    last = [run.vitals[-1] for run in runs if run.vitals]
    costs = list(dict.fromkeys(cost for vital in last for cost in vital.gradients))
    return {
        "label": label,
        "gradients": {cost: _mean("{:.2g}".format, [vital.gradients.get(cost) for vital in last]) for cost in costs},
        "distance": _mean("{:.2g}".format, [vital.distance for vital in last]),
        "largest_class_share": _mean(percent, [vital.largest_class_share for vital in last]),
    }


def _mean(written: Callable[[float], str], values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return written(fmean(known)) if known else "–"


def write_page(
    records: Iterable[Record],
    path: str | Path,
    title: str,
    *,
    part: Part = "test",
    picture: str = "",
    sentences: Sequence[str] = (),
) -> Path:
    """Write the page and return its path. The same records always give the same bytes.

    The file appears whole or not at all: a reader never sees half a page, and a failure keeps the old one. The
    picture of decision boundaries, as SVG, and the sentences about it come before the health checks.
    """
    html = render_page(records, title, part=part, picture=picture, sentences=sentences)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomic(path, html)


def render_page(
    records: Iterable[Record], title: str, *, part: Part = "test", picture: str = "", sentences: Sequence[str] = ()
) -> str:
    """The page as text. Everything in it comes from the records."""
    records = list(records)
    if not records:
        raise RecordError("There is no run to report. Finish one first.")
    made_with = conditions(records)
    return render(
        "runs.html.jinja",
        title=title,
        part=part,
        records=records,
        comparisons=comparisons(records, part),
        picture=Markup(picture),
        sentences=sentences,
        alarms=[(record, alarm) for record in records for alarm in record.alarms],
        n_checks=sum(len(record.vitals) for record in records),
        costs=list(dict.fromkeys(cost for record in records for v in record.vitals for cost in v.gradients)),
        conditions=made_with,
        differing=[name for name, values in made_with.items() if len(values) > 1],
        datasets={record.data.fingerprint: record.data for record in records}.values(),
        recipes={(record.recipe.name, record.recipe.fingerprint): record for record in records}.values(),
    )
