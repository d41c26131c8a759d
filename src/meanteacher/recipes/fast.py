"""The lowest error that minutes on two CPU cores can buy: a small network, few well-used steps, a confident teacher.

Each task has Mean Teacher and supervised-only with the same network, optimiser, steps and images a step. What was
tried on the way is in docs/decisions/0011, and what they reach in docs/results.md.
"""

from meanteacher.core import Augment
from meanteacher.costs import Confident
from meanteacher.data import Fixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.methods import MeanTeacher, Supervised
from meanteacher.models import FastNet
from meanteacher.recipes.recipe import DataSpec, Recipe
from meanteacher.schedules import Constant, Cosine, LinearWarmUp, Product, SigmoidRampUp
from meanteacher.train import Muon
from meanteacher.views import Chain, Cutout, Flip, Normaliser, PerChannel, PerImage, RandAugment, Translate

_CERTAIN = Confident(threshold=0.9, temperature=0.1)


def fast_optim(steps: int) -> Muon:
    """Both learning rates rise for a twentieth of the run and then fall along a cosine."""

    def rate(value: float) -> Product:
        return Product(
            (LinearWarmUp(first=0.0, value=value, steps=max(1, steps // 20)), Cosine(value=1.0, steps=steps))
        )

    return Muon(learning_rate=rate(0.1), sgd_learning_rate=rate(0.3), weight_decay=5e-4, matrix_decay=2.5e-3)


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
            buffers="own",
            weight=SigmoidRampUp(value=weight, steps=max(1, round(ramp * steps))),
            cost=cost,
        ),
        "supervised": Supervised(decay=decay, buffers="average"),
    }


def fast_views(size: int, *, flip: bool) -> dict[str, Augment]:
    """The teacher, whose guess becomes the target, sees images hardly changed; the student sees them made difficult."""
    moved = (*((Flip(),) if flip else ()), Translate(size // 16))
    return {"student": Chain((*moved, RandAugment(), Cutout(size // 4))), "teacher": Chain(moved)}


def _recipes(
    task: str, source: Source, n_labelled: int, *, normalise: Normaliser, flip: bool, labelled: int, steps: int
) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(
            name=f"fast/{task}-{n_labelled}" if name == "mean-teacher" else f"fast/{task}-{n_labelled}/{name}",
            data=DataSpec(source=source, n_labelled=n_labelled),
            model=FastNet(),
            method=method,
            normalise=normalise,
            views=fast_views(32, flip=flip),
            batch=Fixed(size=160, labelled=160 if name == "supervised" else labelled, unlabelled_pool="all"),
            optim=fast_optim(steps),
            steps=steps,
            evaluate_every=steps,  # the test images are many: judging them costs a twentieth of the run
            seeds=(0, 1, 2),
        )
        for name, method in fast_methods(steps, cost=_CERTAIN, weight=1.0, ramp=0.1).items()
    )


RECIPES = (
    *_recipes("svhn", Svhn(), 500, normalise=PerImage(), flip=False, labelled=32, steps=5500),
    *_recipes("cifar10", Cifar10(), 4000, normalise=PerChannel(), flip=True, labelled=64, steps=5500),
    *_recipes("cifar10", Cifar10(), 250, normalise=PerChannel(), flip=True, labelled=32, steps=5500),
)
