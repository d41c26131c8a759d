"""Scikit-learn's digits with 40 labels: three methods in seconds, without a download."""

from meanteacher.core import Method
from meanteacher.data import Fixed
from meanteacher.data.toy import Digits
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import MeanTeacher, PiModel, Supervised
from meanteacher.models import MlpSpec
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Noise, PerChannel, Translate

_STEPS = 600
_DECAY, _WEIGHT = Constant(0.97), SigmoidRampUp(value=20.0, steps=240)
_VIEW = Chain((Translate(1), Noise(0.5)))
_METHODS: dict[str, Method] = {
    "supervised": Supervised(decay=_DECAY, buffers="average"),
    "pi-model": PiModel(decay=_DECAY, buffers="average", weight=_WEIGHT),
    "mean-teacher": MeanTeacher(decay=_DECAY, buffers="own", weight=_WEIGHT),
}


def adam(value: float, *, up: int, down: int, total: int) -> AdamSpec:
    """Adam whose learning rate rises over the first `up` steps and falls over the last `down`."""
    return AdamSpec(
        learning_rate=Product(
            (SigmoidRampUp(value=value, steps=up), SigmoidRampDown(value=1.0, steps=down, total=total))
        ),
        beta1=Constant(0.9),
        beta2=Constant(0.99),
    )


RECIPES = tuple(
    Recipe(
        name=f"digits/{name}",
        data=DataSpec(source=Digits(), n_labelled=40),
        training=TrainingSpec(
            model=MlpSpec(hidden=(256, 256)),
            method=method,
            normalise=PerChannel(),
            views={"student": _VIEW, "teacher": _VIEW},
            batch=Fixed(size=40 if name == "supervised" else 140, labelled=40, unlabelled_pool="all"),
            optim=adam(0.01, up=60, down=150, total=_STEPS),
            steps=_STEPS,
            evaluate_every=50,
        ),
        seeds=tuple(range(6)),
    )
    for name, method in _METHODS.items()
)
