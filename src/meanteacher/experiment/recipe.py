"""How to train (`TrainingSpec`) and which experiment (`Recipe`): typed, frozen values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from meanteacher.core import Augment, InputError, Method
from meanteacher.data import BatchSpec, Dataset, EncodedDataset, Source, Split, make_split
from meanteacher.models import ModelSpec
from meanteacher.records import Claim
from meanteacher.train import OptimSpec
from meanteacher.views import Normaliser


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec:
    """Which images, and how many of their labels."""

    source: Source
    n_labelled: int | None
    """In total, the same number in every class; None for every label there is."""
    validation: float = 0.0
    """The share of the training data that is held out for choosing models; the paper's is 0.1 during development and 0
    in the final runs."""

    def split(self, train: Dataset | EncodedDataset, seed: int) -> Split:
        """Draw which of the training images are labelled, and which are held out."""
        return make_split(
            train.labels, n_classes=train.n_classes, n_labelled=self.n_labelled, seed=seed, validation=self.validation
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpec:
    """How to train: everything that the steps of a run depend on, besides its data and its seed.

    >>> from meanteacher.recipes import find
    >>> find("digits/mean-teacher").training.batch
    Fixed(size=140, labelled=40, unlabelled_pool='all')
    """

    model: ModelSpec
    method: Method
    normalise: Normaliser | None
    """None for images that come normalised: bytes become 0 to 1, floating point stays as it is."""
    views: Mapping[str, Augment]
    """role -> what it sees."""
    batch: BatchSpec
    optim: OptimSpec
    steps: int
    evaluate_every: int
    labelled_view: Augment | None = None
    """What the student sees of the rows that show their label, if that is not `views["student"]`."""
    evaluate_costs: bool = False
    """Whether evaluations also record both models' classification cost on labelled training images (Figure 3)."""

    def __post_init__(self) -> None:
        missing = [role for role in self.method.roles if role not in self.views]
        if missing:
            raise InputError(
                f"{type(self.method).__name__} needs the views {', '.join(self.method.roles)}; given are "
                f"{', '.join(sorted(self.views)) or 'none'}. Add the missing one, e.g. "
                f"views['{missing[0]}'] = views['student']."
            )
        if "labelled" in self.views:
            raise InputError(
                "The view of the labelled rows is a field of its own. Give it as labelled_view=... instead of "
                "views['labelled']."
            )
        for name in ("steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is at least 1, got {getattr(self, name)}.")

    def check_labelled_share(self, drawn: float) -> None:
        """Refuse a method's `labelled_share` that is not the average batch's, as after a change of the labels."""
        stated = getattr(self.method, "labelled_share", None)
        if stated is not None and not math.isclose(stated, drawn, rel_tol=0.01):
            raise InputError(
                f"The classification cost is divided as if {stated:.4g} of the rows were labelled, but in an average "
                f"batch {drawn:.4g} of them are. Set method.labelled_share={drawn:.4g}."
            )


TRAINING_FIELDS = tuple(field.name for field in fields(TrainingSpec))


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Which experiment: data, how to train on them, and what the paper says about it. A seed completes it.

    >>> from meanteacher.recipes import find
    >>> recipe = find("digits/mean-teacher").varied(name="mine", steps=100)
    >>> recipe.name, recipe.training.steps
    ('mine', 100)
    """

    name: str
    data: DataSpec
    training: TrainingSpec
    seeds: tuple[int, ...]
    claim: Claim | None = None
    deviations: tuple[str, ...] = ()
    """What differs from the paper or from its authors' code, and why."""

    def varied(self, **changes: Any) -> "Recipe":
        """The recipe with other values of some of its fields, or of the fields of its training.

        Raises:
            TypeError: there is no such field.
        """
        trained = {name: changes.pop(name) for name in TRAINING_FIELDS if name in changes}
        training = replace(changes.pop("training", self.training), **trained)
        return replace(self, training=training, **changes)
