"""Recipes compared: a table of errors, paired differences, and the answer in sentences."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from meanteacher.formats import count, percent, percentage
from meanteacher.report.records import Part, Record, RecordError, complete_runs

BASELINE = "supervised"
"""The method the others are measured against."""

METHODS = {
    BASELINE: "Supervised-only",
    "pseudo-label": "Pseudo-label",
    "pseudo-ensemble": "Pseudo-Ensemble Agreement",
    "gamma-model": "Gamma model",
    "pi-model": "Pi model",
    "temporal-ensembling": "Temporal Ensembling",
    "improved-gan": "Improved GAN",
    "vat": "VAT",
    "vat-entmin": "VAT + EntMin",
    "mean-teacher": "Mean Teacher",
    "mean-teacher-vat": "Mean Teacher + VAT",
    "fixmatch": "FixMatch",
    "freematch": "FreeMatch",
}


def display_name(method: str) -> str:
    """The name of a method at the start of a line.

    >>> display_name("mean-teacher")
    'Mean Teacher'
    >>> display_name("a-new-method")
    'A new method'
    """
    spaced = method.replace("-", " ")
    return METHODS.get(method, spaced[:1].upper() + spaced[1:])


def name_in_sentence(name: str) -> str:
    """The same name within a sentence: the baseline's is a plain word, the others are proper names.

    >>> name_in_sentence("Supervised-only"), name_in_sentence("Mean Teacher")
    ('supervised-only', 'Mean Teacher')
    """
    baseline = METHODS[BASELINE]
    return baseline.lower() + name.removeprefix(baseline) if name.startswith(baseline) else name


def place(method: str) -> tuple[int, str]:
    """The baseline first, then the paper's order, then any other by name."""
    known = list(METHODS)
    return (known.index(method) if method in known else len(known), method)


def recipe_labels(records: Iterable[Record]) -> dict[str, str]:
    """recipe -> its method's name, with the recipe's own beside it where several share the method."""
    methods = {record.recipe: record.method for record in records}
    n_recipes = Counter(methods.values())
    return {
        recipe: f"{display_name(method)} ({recipe})" if n_recipes[method] > 1 else display_name(method)
        for recipe, method in methods.items()
    }


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over runs and how far the runs lie apart."""

    mean: float
    deviation: float | None
    """The standard deviation with n - 1 below the line; None for a single run, which has no spread."""
    n: int


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe on one labelled set size of one data set."""

    recipe: str
    method: str
    label: str
    data_fingerprint: str
    n_labelled: int
    n_images: int
    n_runs: int
    student: Spread | None
    teacher: Spread | None
    seconds: float


def summarise(records: Iterable[Record], *, part: Part = "test") -> list[Row]:
    """One row a recipe: the baseline first, runs that did not finish left out."""
    groups: defaultdict[tuple[int, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.complete:
            groups[record.data.n_labelled, record.data.fingerprint, record.recipe].append(record)
    rows = []
    for (n_labelled, data, recipe), runs in groups.items():
        one_run_a_seed(runs)
        errors = [run.errors(part) for run in runs]
        rivals = [r for (n, d, _), rs in groups.items() if (n, d) == (n_labelled, data) for r in rs]
        rows.append(
            Row(
                recipe=recipe,
                method=runs[0].method,
                label=recipe_labels(rivals)[recipe],
                data_fingerprint=data,
                n_labelled=n_labelled,
                n_images=runs[0].data.n_images(part),
                n_runs=len(runs),
                student=spread([error.student for error in errors]),
                teacher=spread([error.teacher for error in errors]),
                seconds=fmean(run.seconds for run in runs),
            )
        )
    return sorted(rows, key=lambda row: (row.n_labelled, row.data_fingerprint, place(row.method), row.recipe))


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation; None if any run did not measure the value."""
    measured = [value for value in values if value is not None]
    if not measured or len(measured) < len(values):
        return None
    deviation = stdev(measured) if len(measured) > 1 else None
    return Spread(fmean(measured), deviation, len(measured))


def one_run_a_seed(runs: Sequence[Record]) -> dict[int, Record]:
    """seed -> run. Averages over a run counted twice, or over two versions of a recipe, would be false."""
    by_seed: dict[int, Record] = {}
    for run in runs:
        if run.recipe_fingerprint != runs[0].recipe_fingerprint:
            raise RecordError(
                f"{runs[0].file} and {run.file} name two different recipes {run.recipe}: their fingerprints "
                f"are {runs[0].recipe_fingerprint} and {run.recipe_fingerprint}. Keep the runs of one."
            )
        if run.seed in by_seed:
            raise RecordError(
                f"{by_seed[run.seed].file} and {run.file} are both {run.recipe} with seed {run.seed}. Keep one."
            )
        by_seed[run.seed] = run
    return by_seed


def percent_spread(value: Spread | None, n_images: int) -> str:
    """Mean ± standard deviation in percent, for a cell of a table."""
    if value is None:
        return "–"
    mean = percentage(value.mean, n_images)
    return mean if value.deviation is None else f"{mean} ± {percentage(value.deviation, n_images)}"


HEADER = ("Method", "Recipe", "Labels", "Runs", "Student error, %", "Teacher error, %")


def to_markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: mean ± standard deviation over the runs."""
    cells = [tuple(cell.replace("|", "\\|") for cell in _cells(row)) for row in rows]
    lines = [HEADER, ("---", "---", "---:", "---:", "---:", "---:"), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_text(rows: Sequence[Row]) -> str:
    """The rows in aligned columns for a terminal."""
    lines = [HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    n_left = 2
    padded = [
        [
            cell.ljust(width) if i < n_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "".join("  ".join(line).rstrip() + "\n" for line in padded)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        display_name(row.method),
        row.recipe,
        str(row.n_labelled),
        str(row.n_runs),
        percent_spread(row.student, row.n_images),
        percent_spread(row.teacher, row.n_images),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs on the same labelled set."""

    seed: int
    baseline: float
    other: float

    @property
    def difference(self) -> float:
        return self.other - self.baseline


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more the other errs than the baseline, pair by pair; negative where it errs less."""

    mean: float
    standard_error: float | None
    """None for a single pair."""
    pairs: tuple[Pair, ...]

    @property
    def n(self) -> int:
        return len(self.pairs)

    @property
    def clear(self) -> bool:
        """Whether the mean is more than two standard errors away from zero."""
        return self.standard_error is not None and abs(self.mean) > 2 * self.standard_error


def paired_difference(records: Iterable[Record], baseline: str, other: str, *, part: Part = "test") -> Difference:
    """Compare two recipes run by run, the same seed on the same labelled set.

    A lucky labelled set helps both runs of a pair, so that luck cancels in their difference: its standard
    error is usually far smaller than the spread of either recipe suggests. A seed that only one of them ran
    is left out.

    Args:
        records: the runs, in any order; those of further recipes are ignored.
        baseline: a recipe's name, or a method's if a single recipe here uses it.
        other: the same, for the recipe compared with the baseline.
        part: the images the errors are measured on.
    """
    records = [record for record in records if record.complete]
    ours = one_run_a_seed(_runs_of(records, baseline))
    theirs = one_run_a_seed(_runs_of(records, other))
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        raise RecordError(
            f"{baseline} and {other} have no seed in common: {sorted(ours)} and {sorted(theirs)}. "
            "Run both with the same seeds."
        )
    for seed in seeds:
        _same_labelled_set(ours[seed], theirs[seed])
    pairs = tuple(Pair(seed, ours[seed].error(part), theirs[seed].error(part)) for seed in seeds)
    differences = [pair.difference for pair in pairs]
    return Difference(
        mean=fmean(differences),
        standard_error=stdev(differences) / len(pairs) ** 0.5 if len(pairs) > 1 else None,
        pairs=pairs,
    )


def _runs_of(records: Sequence[Record], name: str) -> list[Record]:
    runs = [record for record in records if record.recipe == name]
    runs = runs or [record for record in records if record.method == name]
    recipes = sorted({run.recipe for run in runs})
    if not recipes:
        known = ", ".join(sorted({record.recipe for record in records})) or "none"
        raise RecordError(f"No complete run of {name!r}. The recipes with complete runs: {known}.")
    if len(recipes) > 1:
        raise RecordError(f"The method {name!r} has several recipes here: name one of {', '.join(recipes)}.")
    return runs


def _same_labelled_set(ours: Record, theirs: Record) -> None:
    places = [(run.data.fingerprint, run.split_fingerprint) for run in (ours, theirs)]
    if places[0] != places[1]:
        raise RecordError(
            f"{ours.file} and {theirs.file} share seed {ours.seed} but not the labelled set: their data and "
            f"split fingerprints are {' / '.join(places[0])} and {' / '.join(places[1])}. "
            "They are not a pair: run both recipes on the same data with the same split."
        )


LEADER = "mean-teacher"
"""The method an answer opens with, where it has run."""


def answer(records: Sequence[Record], *, part: Part = "test") -> list[str]:
    """The sentences that open a page, about complete runs with the same data and number of labels.

    The first sets Mean Teacher, or the first other method where it has not run, against supervised-only
    training. Which one leads never depends on the errors: the best of many looks better than it is.
    """
    baseline, others = baseline_and_others(records)
    if baseline is None:
        sentences = [_alone(records, recipe, part) for recipe in others]
        sentences += ["There are no supervised-only runs to compare with."]
    elif not others:
        sentences = [_alone(records, baseline, part), "There is no other method to compare with."]
    else:
        sentences = _compare(records, baseline, others[0], part)
        sentences += [" ".join(_compare(records, baseline, other, part)) for other in others[1:]]
    return [f"With {count(records[0].data.n_labelled, 'label')}, {sentences[0]}", *sentences[1:]]


def baseline_and_others(records: Sequence[Record]) -> tuple[str | None, list[str]]:
    """The recipe of the baseline, None if it has not run, and all others with Mean Teacher first."""
    methods = {record.recipe: record.method for record in complete_runs(records)}
    names = sorted(methods, key=lambda recipe: (methods[recipe] != LEADER, place(methods[recipe]), recipe))
    baseline = next((name for name in names if methods[name] == BASELINE), None)
    return baseline, [name for name in names if name != baseline]


def _compare(records: Sequence[Record], baseline: str, other: str, part: Part) -> list[str]:
    """The comparison and, where it is not clear, the honest sentence about it."""
    difference = paired_difference(records, baseline, other, part=part)
    labels, n_images = recipe_labels(records), records[0].data.n_images(part)
    ours = percent(fmean(pair.other for pair in difference.pairs), n_images)
    theirs = percent(fmean(pair.baseline for pair in difference.pairs), n_images)
    n_runs = len([record for record in records if record.complete and record.recipe in (baseline, other)])
    shared = " that both ran" if n_runs > 2 * difference.n else ""
    sentence = (
        f"{labels[other]} errs on {ours} of the {part} images and {name_in_sentence(labels[baseline])} on "
        f"{theirs}: {_points(difference, n_images)} over {count(difference.n, 'label draw')}{shared}."
    )
    return [sentence, *_caution(difference)]


def _points(difference: Difference, n_images: int) -> str:
    size = percentage(abs(difference.mean), n_images)
    direction = "less" if difference.mean < 0 else "more"
    text = f"{size} points {direction}" if float(size) else "no difference to that precision"
    if difference.standard_error is None:
        return text
    return f"{text}, standard error {percentage(difference.standard_error, n_images)}"


def _caution(difference: Difference) -> list[str]:
    if difference.standard_error is None:
        return ["One label draw cannot tell a better method from a luckier one."]
    if not difference.clear:
        return ["The difference is within two standard errors: these runs do not show which of the two is better."]
    if difference.n == 2:
        return ["A standard error from two label draws is itself uncertain: run more before relying on it."]
    return []


def _alone(records: Sequence[Record], recipe: str, part: Part) -> str:
    runs = [record for record in records if record.complete and record.recipe == recipe]
    over, n_images = spread([run.error(part) for run in runs]), runs[0].data.n_images(part)
    several = f" (mean and standard deviation over {len(runs)} label draws)" if len(runs) > 1 else ""
    return f"{recipe_labels(records)[recipe]} errs on {percent_spread(over, n_images)} % of the {part} images{several}."
