"""Errors over label draws: the mean and spread of each recipe, as values and as text."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from meanteacher.formats import percentage
from meanteacher.report.fields import RecordError
from meanteacher.report.names import display_name, place, recipe_labels
from meanteacher.report.records import Part, Record


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
