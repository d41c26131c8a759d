"""Low errors in minutes on two CPU cores: a small network, few steps, and a cost that counts confident predictions.

Each benchmark has Mean Teacher and supervised-only with the same network, optimiser, steps and batch size. The
experiments behind the settings are in docs/experiments/fast-network.md, the errors in docs/results.md. The recipes
`ablation` remove a part of Mean Teacher each; `meanteacher table fast-ablations` runs them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from meanteacher.core import Augment, Method
from meanteacher.costs import Confident
from meanteacher.data import Fixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import FixMatch, MeanTeacher, PiModel, Supervised
from meanteacher.models import FastNetSpec, MirroredSpec
from meanteacher.schedules import Constant, Cosine, LinearWarmUp, Product, SigmoidRampUp
from meanteacher.train import MuonSpec
from meanteacher.views import Chain, Cutout, Flip, Normaliser, PerChannel, PerImage, RandAugment, Translate

_BATCH = 160
_STEPS_PER_MINUTE = 180
"""On two cores (docs/results.md)."""
_MIN_LABELLED_ROWS = {1: 128, 3: 112}
"""minutes -> least number of labelled rows per batch: within a few hundred steps the teacher is rarely confident."""
_COST = Confident(threshold=0.9, temperature=0.1)


def fast_optim(steps: int) -> MuonSpec:
    """Both learning rates rise for a twentieth of the run and then fall along a cosine."""

    def rate(value: float) -> Product:
        return Product(
            (LinearWarmUp(first=0.0, value=value, steps=max(1, steps // 20)), Cosine(value=1.0, steps=steps))
        )

    return MuonSpec(learning_rate=rate(0.1), sgd_learning_rate=rate(0.3), weight_decay=5e-4, matrix_decay=2.5e-3)


def fast_methods(steps: int, *, cost: Confident) -> dict[str, MeanTeacher | Supervised]:
    """Both methods by name, with the cost of the consistency with the teacher."""
    decay = Constant(max(0.9, 1 - 20 / steps))  # averages over about a twentieth of the run
    return {
        "mean-teacher": MeanTeacher(
            decay=decay,
            # The weights are fitted to the statistics of the student's view: docs/experiments/fast-network.md.
            buffers="average",
            weight=SigmoidRampUp(value=1.0, steps=max(1, round(0.1 * steps))),
            cost=cost,
        ),
        "supervised": Supervised(decay=decay, buffers="average"),
    }


def fast_views(size: int, *, flip: bool) -> dict[str, Augment]:
    """A strong view for the student and a weak one for the teacher, whose prediction becomes the target."""
    moved = _moved(size, flip)
    return {"student": Chain((*moved, RandAugment(), Cutout(size // 4))), "teacher": Chain(moved)}


def weak_labelled_view(size: int, *, flip: bool) -> Augment:
    """The student's view without RandAugment, for the rows that show their label where there are many labels."""
    return Chain((*_moved(size, flip), Cutout(size // 4)))


def _moved(size: int, flip: bool) -> tuple[Augment, ...]:
    return (*((Flip(),) if flip else ()), Translate(size // 16))


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set with so many labels, and how a batch of it looks."""

    name: str
    source: Source
    n_labelled: int
    normalise: Normaliser
    flip: bool
    labelled_rows: int
    """Rows of a batch."""
    weak_labelled_view: bool
    """Whether labelled rows get no RandAugment. With few labels it keeps the network from memorising them."""

    def recipe(self, name: str, kind: Literal["mean-teacher", "supervised"], minutes: int) -> Recipe:
        """With so many steps that it takes about these minutes on two cores."""
        steps = _STEPS_PER_MINUTE * minutes
        labelled = max(self.labelled_rows, _MIN_LABELLED_ROWS.get(minutes, 0)) if kind == "mean-teacher" else _BATCH
        return Recipe(
            name=name,
            data=DataSpec(source=self.source, n_labelled=self.n_labelled),
            training=TrainingSpec(
                model=MirroredSpec(FastNetSpec()) if self.flip else FastNetSpec(),
                method=fast_methods(steps, cost=_COST)[kind],
                normalise=self.normalise,
                views=fast_views(32, flip=self.flip),
                labelled_view=weak_labelled_view(32, flip=self.flip) if self.weak_labelled_view else None,
                batch=Fixed(size=_BATCH, labelled=labelled, unlabelled_pool="all"),
                optim=fast_optim(steps),
                steps=steps,
                evaluate_every=steps,  # an evaluation takes as long as a twentieth of the run
            ),
            seeds=(0, 1, 2),
        )

    def both(self) -> tuple[Recipe, ...]:
        """Mean Teacher and supervised-only, half an hour each."""
        return self.recipe(self.name, "mean-teacher", 30), self.recipe(f"{self.name}/supervised", "supervised", 30)

    def curve(self) -> tuple[Recipe, ...]:
        """Mean Teacher in less and in more time."""
        return tuple(self.recipe(f"{self.name}/minutes-{n}", "mean-teacher", n) for n in (1, 3, 10, 60))

    def ablation(self) -> tuple[Recipe, ...]:
        """Mean Teacher and the same with a part of it removed: about ten minutes each on one core.

        All share network, optimiser, steps, size of a batch and views. The Pi model and FixMatch keep the average, and
        it is evaluated; without an average, the last student is both the teacher and the evaluated network. FixMatch
        has rounded targets, for the unlabelled rows alone. Supervised-only has batches of labelled images alone.
        """
        base = self.recipe(f"{self.name}/ablation/mean-teacher", "mean-teacher", 8)
        ours = base.training.method
        assert isinstance(ours, MeanTeacher)
        strong, weak = base.training.views["student"], base.training.views["teacher"]
        matched = {"student": weak, "strong": strong}
        averaged: Any = {"decay": ours.decay, "buffers": ours.buffers, "weight": ours.weight}
        others: dict[str, tuple[Method, Mapping[str, Augment]]] = {
            "no-average": (replace(ours, decay=Constant(0.0)), base.training.views),
            "pi-model": (PiModel(**averaged, cost=_COST, one_sided=True), base.training.views),
            "fixmatch": (FixMatch(**averaged, threshold=_COST.threshold), matched),
        }
        return (
            base,
            *(
                base.varied(
                    name=f"{self.name}/ablation/{name}",
                    method=method,
                    views=views,
                    labelled_view=base.training.labelled_view or strong,  # FixMatch's student sees the weak view
                )
                for name, (method, views) in others.items()
            ),
            self.recipe(f"{self.name}/ablation/supervised", "supervised", 8),
        )


_SVHN = Benchmark(
    name="fast/svhn-500",
    source=Svhn(),
    n_labelled=500,
    normalise=PerImage(),
    flip=False,
    labelled_rows=32,
    weak_labelled_view=False,
)
_CIFAR10 = Benchmark(
    name="fast/cifar10-4000",
    source=Cifar10(),
    n_labelled=4000,
    normalise=PerChannel(),
    flip=True,
    labelled_rows=64,
    weak_labelled_view=True,
)
CIFAR10_250 = replace(_CIFAR10, name="fast/cifar10-250", n_labelled=250, labelled_rows=32, weak_labelled_view=False)

RECIPES = (
    *_SVHN.both(),
    *_SVHN.curve(),
    *_CIFAR10.both(),
    *_CIFAR10.curve(),
    *CIFAR10_250.both(),
    *replace(_SVHN, name="fast/svhn-250", n_labelled=250).ablation(),
    *replace(_CIFAR10, name="fast/cifar10-1000", n_labelled=1000).ablation(),
)
