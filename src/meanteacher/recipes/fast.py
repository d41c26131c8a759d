"""The lowest error that minutes on two CPU cores can buy: a small network, few well-used steps, a confident teacher.

Each task has Mean Teacher and supervised-only with the same network, optimiser, steps and images a step. What was
tried on the way is in docs/experiments/fast-network.md, and what they reach in docs/results.md.
"""

from dataclasses import dataclass, replace
from typing import Literal

from meanteacher.core import Augment
from meanteacher.costs import Confident
from meanteacher.data import Fixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.experiment.recipe import DataSpec, Recipe
from meanteacher.methods import MeanTeacher, Supervised
from meanteacher.models import FastNetSpec, MirroredSpec
from meanteacher.schedules import Constant, Cosine, LinearWarmUp, Product, SigmoidRampUp
from meanteacher.train import MuonSpec
from meanteacher.views import Chain, Cutout, Flip, Normaliser, PerChannel, PerImage, RandAugment, Translate

_BATCH = 160
_STEPS_A_MINUTE = 180
"""What two cores do (docs/results.md)."""
_LABELLED_IN_A_HURRY = {1: 128, 3: 112}
"""minutes -> rows of a batch that show their label, at least: a teacher of a few hundred steps is certain of little."""
_CERTAIN = Confident(threshold=0.9, temperature=0.1)


def fast_optim(steps: int) -> MuonSpec:
    """Both learning rates rise for a twentieth of the run and then fall along a cosine."""

    def rate(value: float) -> Product:
        return Product(
            (LinearWarmUp(first=0.0, value=value, steps=max(1, steps // 20)), Cosine(value=1.0, steps=steps))
        )

    return MuonSpec(learning_rate=rate(0.1), sgd_learning_rate=rate(0.3), weight_decay=5e-4, matrix_decay=2.5e-3)


def fast_methods(steps: int, *, cost: Confident, weight: float, ramp: float) -> dict[str, MeanTeacher | Supervised]:
    """Both methods, by name.

    Args:
        steps: of the run
        cost: of disagreeing with the teacher
        weight: of that cost
        ramp: share of the run over which the weight rises
    """
    decay = Constant(max(0.9, 1 - 20 / steps))  # the average reaches back a twentieth of the run
    return {
        "mean-teacher": MeanTeacher(
            decay=decay,
            buffers="average",  # the weights fit the statistics of the student's view: docs/experiments/fast-network.md
            weight=SigmoidRampUp(value=weight, steps=max(1, round(ramp * steps))),
            cost=cost,
        ),
        "supervised": Supervised(decay=decay, buffers="average"),
    }


def fast_views(size: int, *, flip: bool, gentle: bool = False) -> dict[str, Augment]:
    """The teacher, whose guess becomes the target, sees images hardly changed; the student sees them made difficult.

    Args:
        size: pixels a side
        flip: whether a mirrored image is of the same class
        gentle: whether the student sees images with their label less changed
    """
    moved = (*((Flip(),) if flip else ()), Translate(size // 16))
    hidden = Cutout(size // 4)
    views: dict[str, Augment] = {"student": Chain((*moved, RandAugment(), hidden)), "teacher": Chain(moved)}
    return views | {"labelled": Chain((*moved, hidden))} if gentle else views


@dataclass(frozen=True, kw_only=True)
class _Task:
    name: str
    source: Source
    n_labelled: int
    normalise: Normaliser
    flip: bool
    labelled: int
    """Rows of a batch that show their label."""
    gentle: bool
    """Whether these rows are spared the strong view: few labels would be learnt by heart, many not so soon."""

    def recipe(self, name: str, kind: Literal["mean-teacher", "supervised"], minutes: int) -> Recipe:
        steps = _STEPS_A_MINUTE * minutes
        labelled = max(self.labelled, _LABELLED_IN_A_HURRY.get(minutes, 0)) if kind == "mean-teacher" else _BATCH
        return Recipe(
            name=name,
            data=DataSpec(source=self.source, n_labelled=self.n_labelled),
            model=MirroredSpec(FastNetSpec()) if self.flip else FastNetSpec(),
            method=fast_methods(steps, cost=_CERTAIN, weight=1.0, ramp=0.1)[kind],
            normalise=self.normalise,
            views=fast_views(32, flip=self.flip, gentle=self.gentle),
            batch=Fixed(size=_BATCH, labelled=labelled, unlabelled_pool="all"),
            optim=fast_optim(steps),
            steps=steps,
            evaluate_every=steps,  # the test images are many: judging them costs a twentieth of the run
            seeds=(0, 1, 2),
        )

    def both(self) -> tuple[Recipe, ...]:
        """Mean Teacher and supervised-only, in half an hour."""
        return (
            self.recipe(self.name, "mean-teacher", 30),
            self.recipe(f"{self.name}/supervised", "supervised", 30),
        )

    def curve(self) -> tuple[Recipe, ...]:
        """Mean Teacher in less time and in more."""
        return tuple(self.recipe(f"{self.name}/minutes-{n}", "mean-teacher", n) for n in (1, 3, 10, 60))


_SVHN = _Task(
    name="fast/svhn-500",
    source=Svhn(),
    n_labelled=500,
    normalise=PerImage(),
    flip=False,
    labelled=32,
    gentle=False,
)
_CIFAR10 = _Task(
    name="fast/cifar10-4000",
    source=Cifar10(),
    n_labelled=4000,
    normalise=PerChannel(),
    flip=True,
    labelled=64,
    gentle=True,
)
_FEW = replace(_CIFAR10, name="fast/cifar10-250", n_labelled=250, labelled=32, gentle=False)

RECIPES = (*_SVHN.both(), *_SVHN.curve(), *_CIFAR10.both(), *_CIFAR10.curve(), *_FEW.both())
