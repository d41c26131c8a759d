"""Two recipes compared run by run, each pair of runs on the same labelled set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from meanteacher.report.fields import RecordError
from meanteacher.report.records import Part, Record
from meanteacher.report.tables import one_run_a_seed


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
