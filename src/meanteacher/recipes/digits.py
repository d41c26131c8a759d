"""Scikit-learn's digits with 40 labels: the demo. Seconds per run, nothing to download."""

from meanteacher.core import Augment, Method
from meanteacher.data import Fixed
from meanteacher.data.toy import Digits
from meanteacher.experiment.recipe import DataSpec, Recipe
from meanteacher.methods import MeanTeacher, PiModel, Supervised
from meanteacher.models import MlpSpec
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Noise, PerChannel, Translate

_STEPS = 600
_VIEW: Augment = Chain((Translate(1), Noise(0.5)))
_DECAY = Constant(0.97)
_WEIGHT = SigmoidRampUp(value=20.0, steps=240)
_METHODS: dict[str, Method] = {
    "supervised": Supervised(decay=_DECAY, buffers="average"),
    "pi-model": PiModel(decay=_DECAY, buffers="average", weight=_WEIGHT),
    "mean-teacher": MeanTeacher(decay=_DECAY, buffers="own", weight=_WEIGHT),
}

RECIPES = tuple(
    Recipe(
        name=f"digits/{name}",
        data=DataSpec(source=Digits(), n_labelled=40),
        model=MlpSpec(hidden=(256, 256)),
        method=method,
        normalise=PerChannel(),
        views={"student": _VIEW, "teacher": _VIEW},
        batch=Fixed(size=40 if name == "supervised" else 140, labelled=40, unlabelled_pool="all"),
        optim=AdamSpec(
            learning_rate=Product(
                (
                    SigmoidRampUp(value=0.01, steps=60),
                    SigmoidRampDown(value=1.0, steps=150, total=_STEPS),
                )
            ),
            beta1=Constant(0.9),
            beta2=Constant(0.99),
        ),
        steps=_STEPS,
        evaluate_every=50,
        seeds=tuple(range(6)),
    )
    for name, method in _METHODS.items()
)
