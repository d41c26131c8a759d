"""Table 1: SVHN with 250, 500, 1000 and all 73257 labels (Sec. 3.1, App. B.1.2)."""

from meanteacher.core import Augment, Method
from meanteacher.data import Fixed
from meanteacher.data.svhn import Svhn
from meanteacher.methods import MeanTeacher, PiModel, Supervised
from meanteacher.methods.consistency import ConsistencyOn
from meanteacher.recipes import paper
from meanteacher.recipes.recipe import Claim, DataSpec, Recipe
from meanteacher.schedules import Constant, SigmoidRampUp, StepChange
from meanteacher.train import Adam
from meanteacher.views import Chain, Noise, PerImage, Translate

_VIEW: Augment = Chain((Translate(2), Noise(0.15)))
_SHORT_THEN_LONG = StepChange(first=0.99, then=0.999, at=paper.RAMP_UP)
_ADAM = Adam(
    learning_rate=SigmoidRampUp(value=paper.LEARNING_RATE, steps=paper.RAMP_UP),
    beta1=Constant(0.9),
    beta2=_SHORT_THEN_LONG,
)

_CLAIMS = {
    "supervised": {250: (27.77, 3.18), 500: (16.88, 1.30), 1000: (12.32, 0.95), None: (2.75, 0.10)},
    "pi-model": {250: (9.69, 0.92), 500: (6.83, 0.66), 1000: (4.95, 0.26), None: (2.50, 0.07)},
    "mean-teacher": {250: (4.35, 0.50), 500: (4.18, 0.27), 1000: (3.95, 0.19), None: (2.50, 0.05)},
}
_STEPS = {
    "supervised": {250: 40_000, 500: 40_000, 1000: 40_000, None: 180_000},
    "pi-model": {250: 100_000, 500: 180_000, 1000: 180_000, None: 180_000},
    "mean-teacher": {250: 180_000, 500: 180_000, 1000: 180_000, None: 180_000},
}


def _method(name: str, n_labelled: int | None) -> Method:
    if name == "supervised":
        return Supervised(decay=_SHORT_THEN_LONG, buffers="average")
    # 99 and not 100: the authors divide the 99 unlabelled rows' cost by all 100 rows.
    weight = paper.ramped_weight(100.0 if n_labelled is None else 99.0)
    rows: ConsistencyOn = "all" if n_labelled is None else "unlabelled"
    if name == "pi-model":
        return PiModel(decay=_SHORT_THEN_LONG, buffers="average", weight=weight, consistency_on=rows)
    return MeanTeacher(decay=_SHORT_THEN_LONG, buffers="own", weight=weight, consistency_on=rows)


def _recipe(name: str, n_labelled: int | None) -> Recipe:
    error, spread = _CLAIMS[name][n_labelled]
    semi_supervised = name != "supervised" and n_labelled is not None
    return Recipe(
        name=f"table1/svhn-{n_labelled or 'all'}/{name}",
        data=DataSpec(source=Svhn(), n_labelled=n_labelled),
        model=paper.MODEL,
        method=_method(name, n_labelled),
        normalise=PerImage(),
        views={"student": _VIEW, "teacher": _VIEW},
        batch=Fixed(size=paper.BATCH, labelled=1 if semi_supervised else paper.BATCH, unlabelled_pool="all"),
        optim=_ADAM,
        steps=_STEPS[name][n_labelled],
        evaluate_every=5000,
        seeds=paper.SEEDS if n_labelled else paper.SEEDS_ALL_LABELS,
        claim=Claim(error=error, spread=spread, where="Table 1"),
        deviations=paper.DEVIATIONS + (() if name == "mean-teacher" else paper.AVERAGED_STATISTICS),
    )


RECIPES = tuple(_recipe(name, n_labelled) for name in _CLAIMS for n_labelled in _CLAIMS[name])
