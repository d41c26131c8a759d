"""Recipes compared: a table of errors, and differences paired by label draw."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, stdev

from meanteacher.files.typed import RecordError
from meanteacher.formats import BASELINE, METHODS, display_name, percentage
from meanteacher.records import Claim, Part, Record
from meanteacher.stats import Interval, mean_interval


def place(method: str, recipe: str = "") -> tuple[int, str, list[str | int]]:
    """The order of tables: the baseline, the paper's order, any other method by name; minutes-3 before minutes-10."""
    known = list(METHODS)
    numbers_as_such = [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", recipe)]
    return (known.index(method) if method in known else len(known), method, numbers_as_such)


def shared_path(names: Iterable[str]) -> str:
    """What names have in common from their start.

    >>> shared_path(["fast/svhn-500", "fast/svhn-500/supervised"]), shared_path(["digits/vat", "moons/vat"])
    ('fast/svhn-500', '')
    """
    columns = zip(*(name.split("/") for name in names), strict=False)
    return "/".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))


def recipe_labels(records: Iterable[Record]) -> dict[str, str]:
    """recipe -> its method's name, and the rest of the recipe's name if several recipes share the method."""
    methods = {record.recipe.name: record.method for record in records}
    labels = {}
    for recipe, method in methods.items():
        rivals = [other for other, its in methods.items() if its == method]
        if len(rivals) > 1 and len({other.partition("+")[0] for other in rivals}) == 1:
            shared = set.intersection(*(set(_changes(other)) for other in rivals))
            own = ",".join(change for change in _changes(recipe) if change not in shared)
            labels[recipe] = f"{display_name(method)} ({own or 'unchanged'})"
            continue
        parents = [other.rpartition("/")[0] for other in rivals]
        own = recipe.removeprefix(shared_path(parents)).lstrip("/")
        labels[recipe] = f"{display_name(method)} ({own})" if len(rivals) > 1 else display_name(method)
    return labels


def _changes(recipe: str) -> list[str]:
    """What --set has changed, by the recipe's name; commas in brackets belong to a value.

    >>> _changes("moons/vat+model.hidden=(8,8),steps=9"), _changes("moons/vat")
    (['model.hidden=(8,8)', 'steps=9'], [])
    """
    return re.findall(r"(?:\([^)]*\)|[^,(])+", recipe.partition("+")[2])


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over runs and how far the runs lie apart."""

    mean: float
    deviation: float | None
    """The standard deviation with n - 1 in the denominator; None for a single run, which has no spread."""
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
    student_top5: Spread | None
    """On the test images, as is the teacher's."""
    teacher_top5: Spread | None
    seconds: float
    claim: Claim | None


def summarise(records: Iterable[Record], *, part: Part = "test") -> list[Row]:
    """One row per recipe, the baseline first."""
    groups: defaultdict[tuple[int, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.data.n_labelled, record.data.fingerprint, record.recipe.name].append(record)
    rows = []
    for (n_labelled, data, recipe), runs in groups.items():
        one_run_per_seed(runs)
        students, teachers = ([getattr(run.errors.last, model) for run in runs] for model in ("student", "teacher"))
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
                student=spread([errors.on(part) for errors in students]),
                teacher=spread([errors.on(part) for errors in teachers]),
                student_top5=spread([errors.test_top5 for errors in students]),
                teacher_top5=spread([errors.test_top5 for errors in teachers]),
                seconds=fmean(run.seconds for run in runs),
                claim=runs[0].recipe.claim,
            )
        )
    return sorted(rows, key=lambda row: (row.n_labelled, row.data_fingerprint, place(row.method, row.recipe)))


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation; None if any run did not measure the value."""
    measured = [value for value in values if value is not None]
    if not measured or len(measured) < len(values):
        return None
    deviation = stdev(measured) if len(measured) > 1 else None
    return Spread(fmean(measured), deviation, len(measured))


def one_run_per_seed(runs: Sequence[Record]) -> dict[int, Record]:
    """seed -> run. Averages over a run counted twice, or over two versions of a recipe, would be false."""
    by_seed: dict[int, Record] = {}
    for run in runs:
        if run.recipe.fingerprint != runs[0].recipe.fingerprint:
            raise RecordError(
                f"{runs[0].file} and {run.file} name two different recipes {run.recipe.name}: their fingerprints "
                f"are {runs[0].recipe.fingerprint} and {run.recipe.fingerprint}. Keep the runs of one."
            )
        if run.seed in by_seed:
            raise RecordError(
                f"{by_seed[run.seed].file} and {run.file} are both {run.recipe.name} with seed {run.seed}. Keep one."
            )
        by_seed[run.seed] = run
    return by_seed


def percent_spread(value: Spread | None, n_images: int) -> str:
    """Mean ± standard deviation in percent, for a cell of a table."""
    return "–" if value is None else _plus_minus(percentage(value.mean, n_images), value.deviation, n_images)


def _plus_minus(mean: str, reach: float | None, n_images: int) -> str:
    return mean if reach is None else f"{mean} ± {percentage(reach, n_images)}"


HEADER = ("Method", "Recipe", "Labels", "Runs", "Student error, %", "Teacher error, %")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], n_left: int = 1) -> str:
    """A table whose first columns are aligned to the left and the others, which hold numbers, to the right."""
    ruler = ["---"] * n_left + ["---:"] * (len(header) - n_left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ruler, *rows))


def aligned(lines: Sequence[Sequence[str]], n_left: int = 2) -> str:
    """Lines of cells in columns for a terminal: the first columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [
            cell.ljust(width) if i < n_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return "".join("  ".join(line).rstrip() + "\n" for line in padded)


def to_text(rows: Sequence[Row]) -> str:
    """The rows in aligned columns for a terminal."""
    return aligned([HEADER, *map(_cells, rows)])


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
    """How much higher the other's error is than the baseline's, pair by pair; negative where it is lower."""

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

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean, by Student's t distribution; None for a single pair."""
        return mean_interval([pair.difference for pair in self.pairs]) if self.n > 1 else None

    def cell(self, n_images: int) -> str:
        """Percentage points with their sign ± the standard error, for a cell of a table."""
        return _plus_minus(_signed(self.mean, n_images), self.standard_error, n_images)

    def with_interval(self, n_images: int) -> str:
        """Percentage points with their sign and their 95 % interval, for a cell of a table.

        >>> pairs = tuple(Pair(seed, 0.2, other) for seed, other in enumerate((0.12, 0.14, 0.13)))
        >>> Difference(-0.07, 0.0058, pairs).with_interval(1000)
        '−7.0 (−9.5 to −4.5)'
        """
        shown, interval = _signed(self.mean, n_images), self.interval
        if interval is None:
            return shown
        return f"{shown} ({_signed(interval.low, n_images)} to {_signed(interval.high, n_images)})"


def _signed(share: float, n_images: int) -> str:
    size = percentage(abs(share), n_images)
    return (("−" if share < 0 else "+") if float(size) else "") + size


class NoPairsError(RecordError):
    """Two recipes have no seed in common."""


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

    Raises:
        NoPairsError: the two have no seed in common.
        RecordError: the runs of a pair are not on the same labelled set.
    """
    records = list(records)
    ours = one_run_per_seed(_runs_of(records, baseline))
    theirs = one_run_per_seed(_runs_of(records, other))
    for seed in ours.keys() & theirs.keys():
        _same_labelled_set(ours[seed], theirs[seed])
    found = difference_by_seed(ours, theirs, part)
    if found is None:
        raise NoPairsError(
            f"{baseline} and {other} have no seed in common: {sorted(ours)} and {sorted(theirs)}. "
            "Run both with the same seeds."
        )
    return found


def difference_by_seed(baseline: Mapping[int, Record], other: Mapping[int, Record], part: Part) -> Difference | None:
    """Compare runs that have the same seed; None if there is no such pair."""
    seeds = sorted(baseline.keys() & other.keys())
    pairs = tuple(Pair(seed, baseline[seed].error(part), other[seed].error(part)) for seed in seeds)
    found = spread([pair.difference for pair in pairs])
    if found is None:
        return None
    standard_error = None if found.deviation is None else found.deviation / len(pairs) ** 0.5
    return Difference(found.mean, standard_error, pairs)


def _runs_of(records: Sequence[Record], name: str) -> list[Record]:
    runs = [record for record in records if record.recipe.name == name]
    runs = runs or [record for record in records if record.method == name]
    recipes = sorted({run.recipe.name for run in runs})
    if not recipes:
        known = ", ".join(sorted({record.recipe.name for record in records})) or "none"
        raise RecordError(f"No run of {name!r}. The recipes with runs: {known}.")
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


def baselines(records: Iterable[Record]) -> dict[str, str | None]:
    """recipe -> the supervised-only recipe it is compared with, Mean Teacher's recipes first.

    Of several, the one of the nearest name: fast/svhn-500 is compared with fast/svhn-500/supervised, and a recipe
    changed with --set with the one that was changed in the same way. Without any, variants of one recipe are compared
    with one of them: that with the fewest changes, of several the lowest value. None where there is nothing.
    """
    methods = {record.recipe.name: record.method for record in records}
    names = sorted(methods, key=lambda recipe: (methods[recipe] != LEADER, place(methods[recipe], recipe)))
    found = [name for name in names if methods[name] == BASELINE]
    if not found:
        variants: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            variants[name.partition("+")[0]].append(name)
        least = {stem: min(its, key=lambda name: len(_changes(name))) for stem, its in variants.items() if len(its) > 1}
        partners = {name: least.get(name.partition("+")[0]) for name in names}
        return {name: partner for name, partner in partners.items() if partner != name}
    return {
        name: max(found, key=lambda each: _nearness(name, each), default=None) for name in names if name not in found
    }


def _nearness(recipe: str, baseline: str) -> tuple[int, bool]:
    (ours, _, our_change), (theirs, _, their_change) = recipe.partition("+"), baseline.partition("+")
    return len(shared_path([ours, theirs])), our_change == their_change


def baseline_differences(records: Sequence[Record], part: Part = "test") -> dict[str, Difference]:
    """recipe -> its difference to the baseline, of the recipes that share a label draw with theirs."""
    found = {}
    for recipe, baseline in baselines(records).items():
        try:
            if baseline is not None:
                found[recipe] = paired_difference(records, baseline, recipe, part=part)
        except NoPairsError:
            continue
    return found
