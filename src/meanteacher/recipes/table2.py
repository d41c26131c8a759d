"""Table 2: CIFAR-10 with 1000, 2000, 4000 and all 50000 labels (Sec. 3.1, App. B.1.1)."""

from meanteacher.core import Augment, Method
from meanteacher.data import Fixed, Mixed
from meanteacher.data.cifar10 import Cifar10
from meanteacher.methods import MeanTeacher, PiModel, Supervised
from meanteacher.recipes import paper
from meanteacher.recipes.recipe import Claim, DataSpec, Recipe
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import Adam
from meanteacher.views import Chain, Flip, Noise, Translate, Zca

_VIEW: Augment = Chain((Flip(), Translate(2), Noise(0.15)))
_DECAY = Constant(0.999)
_STEPS = 150_000
_RAMP_DOWN = 25_000

_CLAIMS = {
    "supervised": {1000: (46.43, 1.21), 2000: (33.94, 0.73), 4000: (20.66, 0.57), None: (5.82, 0.15)},
    "pi-model": {1000: (27.36, 1.20), 2000: (18.02, 0.60), 4000: (13.20, 0.27), None: (6.06, 0.11)},
    "mean-teacher": {1000: (21.55, 1.48), 2000: (15.73, 0.31), 4000: (12.31, 0.28), None: (5.94, 0.15)},
}
# (steps, steps of the ramp-down, the step it ends at)
_DURATIONS = {
    "supervised": {
        1000: (7_500, 1_000, 7_500),
        2000: (15_000, 2_000, 15_000),
        4000: (30_000, 4_000, 30_000),
        None: (_STEPS, _RAMP_DOWN, _STEPS),
    },
    "pi-model": {
        1000: (60_000, _RAMP_DOWN, _STEPS),
        2000: (100_000, _RAMP_DOWN, _STEPS),
        4000: (180_000, _RAMP_DOWN, 180_000),
        None: (180_000, _RAMP_DOWN, 180_000),
    },
    "mean-teacher": dict.fromkeys((1000, 2000, 4000, None), (_STEPS, _RAMP_DOWN, _STEPS)),
}
_NOTES = {
    "supervised": (
        "As in the authors' script the learning rate ramps up over 40000 steps although the run is shorter, so it "
        "never reaches its maximum, and it ramps down over the last 100 epochs. The paper mentions neither.",
        *paper.AVERAGED_STATISTICS,
    ),
    "pi-model": (
        "Runs of 60000 and 100000 steps are readings in the middle of longer ones: they end before the ramp-down.",
        *paper.AVERAGED_STATISTICS,
    ),
    "mean-teacher": (),
}
_MIXED_NOTE = (
    "A batch without any labelled row has no classification cost, and rows of a batch with few labels count for "
    "more than those of a batch with many; the authors weigh all rows alike.",
)


def _adam(n_down: int, end: int) -> Adam:
    return Adam(
        learning_rate=Product(
            (
                SigmoidRampUp(value=paper.LEARNING_RATE, steps=paper.RAMP_UP),
                SigmoidRampDown(value=1.0, steps=n_down, total=end),
            )
        ),
        beta1=SigmoidRampDown(value=0.9, final=0.5, steps=n_down, total=end),
        beta2=Constant(0.999),
    )


def _method(name: str) -> Method:
    if name == "supervised":
        return Supervised(decay=_DECAY, buffers="average")
    weight = paper.ramped_weight(100.0)
    if name == "pi-model":
        return PiModel(decay=_DECAY, buffers="average", weight=weight)
    return MeanTeacher(decay=_DECAY, buffers="own", weight=weight)


def _recipe(name: str, n_labelled: int | None) -> Recipe:
    steps, n_down, end = _DURATIONS[name][n_labelled]
    error, spread = _CLAIMS[name][n_labelled]
    only_labelled = name == "supervised" or n_labelled is None
    return Recipe(
        name=f"table2/cifar10-{n_labelled or 'all'}/{name}",
        data=DataSpec(source=Cifar10(), n_labelled=n_labelled),
        model=paper.MODEL,
        method=_method(name),
        normalise=Zca(contrast=True, epsilon=0.1),
        views={"student": _VIEW, "teacher": _VIEW},
        batch=Fixed(size=paper.BATCH, labelled=paper.BATCH, unlabelled_pool="all")
        if only_labelled
        else Mixed(size=paper.BATCH),
        optim=_adam(n_down, end),
        steps=steps,
        evaluate_every=2500,
        seeds=paper.SEEDS if n_labelled else paper.SEEDS_ALL_LABELS,
        claim=Claim(error=error, spread=spread, where="Table 2"),
        deviations=paper.DEVIATIONS + _NOTES[name] + (() if only_labelled else _MIXED_NOTE),
    )


RECIPES = tuple(_recipe(name, n_labelled) for name in _CLAIMS for n_labelled in _CLAIMS[name])
