"""A recipe: one complete, typed value that says everything about a run but its seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meanteacher.core import Augment, InputError, Method
from meanteacher.data import BatchSpec, Source
from meanteacher.models import ModelSpec
from meanteacher.train import OptimSpec
from meanteacher.views import Normaliser


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec:
    """Which images, and how many of their labels."""

    source: Source
    n_labelled: int | None
    """In all, shared equally by the classes; None for every label there is."""
    validation: float = 0.0
    """The share of the training data kept apart to choose by; the paper's is 0.1 while developing and 0 in
    the final runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What the paper reports for this run."""

    error: float
    """Per cent."""
    spread: float | None
    """Standard deviation over its runs."""
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Varied with `dataclasses.replace`; an unknown field fails at construction."""

    name: str
    data: DataSpec
    model: ModelSpec
    method: Method
    normalise: Normaliser
    views: Mapping[str, Augment]
    """role -> what it sees. One more, "labelled", is the student's view of the rows that show their label."""
    batch: BatchSpec
    optim: OptimSpec
    steps: int
    evaluate_every: int
    seeds: tuple[int, ...]
    claim: Claim | None = None
    deviations: tuple[str, ...] = ()
    """What differs from the paper or from its authors' code, and why."""

    def __post_init__(self) -> None:
        missing = [role for role in self.method.roles if role not in self.views]
        if missing:
            raise InputError(
                f"{self.name}: {type(self.method).__name__} needs the views {', '.join(self.method.roles)}, the "
                f"recipe defines {', '.join(sorted(self.views)) or 'none'}. Add the missing one, e.g. "
                f"views['{missing[0]}'] = views['student']."
            )
        for field in ("steps", "evaluate_every"):
            if getattr(self, field) < 1:
                raise InputError(f"{self.name}: {field} is at least 1, got {getattr(self, field)}.")

    def check_labelled_share(self, drawn: float) -> None:
        """Hold the method's `labelled_share`, where it states one, to what the batches show on average.

        Raises:
            InputError: another number of labels or of images needs another share.
        """
        stated = getattr(self.method, "labelled_share", None)
        if stated is not None and not math.isclose(stated, drawn, rel_tol=0.01):
            raise InputError(
                f"{self.name}: the classification cost is divided as if {stated:.4g} of the rows were labelled, but in "
                f"an average batch {drawn:.4g} of them are. Set method.labelled_share={drawn:.4g}."
            )
