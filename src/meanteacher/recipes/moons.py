"""Two moons with 6 labels and 1000 points: every method in seconds, each with its picture in docs/methods.md.

All share network, steps and optimiser; weights and noise are each method's own, chosen on other label draws than those
reported. The Pi model has the weight of Mean Teacher. Three of them are the demo.
"""

from typing import Any

from meanteacher.core import Augment
from meanteacher.data import Fixed
from meanteacher.data.toy import Moons
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import METHODS
from meanteacher.models import MlpSpec
from meanteacher.models.mlp import PointGeneratorSpec
from meanteacher.recipes.digits import adam
from meanteacher.schedules import Constant, SigmoidRampUp
from meanteacher.views import Chain, Noise, PerChannel

STEPS = 1000


def _ramp(value: float) -> SigmoidRampUp:
    return SigmoidRampUp(value=value, steps=STEPS // 10)


_CLEAN: Augment = Chain(())
_NOISY: Augment = Noise(0.3)
_LESS_NOISY: Augment = Noise(0.1)
_BOTH = {"student": _NOISY, "teacher": _LESS_NOISY}
_FROM_CLEAN = {"student": _NOISY, "teacher": _CLEAN}
_MATCHED = {"student": _LESS_NOISY, "strong": _NOISY}

_SYSTEMS: dict[str, tuple[dict[str, Any], dict[str, Augment]]] = {
    "supervised": ({}, _BOTH),
    "pseudo-label": ({"weight": _ramp(1.0)}, _BOTH),
    "pseudo-ensemble": ({"weight": _ramp(10.0)}, _FROM_CLEAN),
    "gamma-model": ({"weight": _ramp(50.0)}, _FROM_CLEAN),
    "pi-model": ({"weight": _ramp(50.0)}, _BOTH),
    "temporal-ensembling": ({"weight": _ramp(50.0), "epoch_steps": 10}, _BOTH),
    "improved-gan": ({"weight": _ramp(1.0), "generator": PointGeneratorSpec()}, {"student": _CLEAN}),
    "vat": ({"weight": _ramp(1.0), "epsilon": 0.3}, {"student": _CLEAN}),
    "vat-entmin": ({"weight": _ramp(2.0), "epsilon": 0.5}, {"student": _CLEAN}),
    "mean-teacher": ({"weight": _ramp(50.0), "buffers": "own"}, _BOTH),
    "mean-teacher-vat": (
        {"weight": _ramp(5.0), "epsilon": 0.4, "buffers": "own"},
        {"student": _CLEAN, "teacher": _CLEAN},
    ),
    "fixmatch": ({"weight": _ramp(1.0), "threshold": 0.8}, _MATCHED),
    "freematch": ({"weight": _ramp(1.0), "momentum": 0.99}, _MATCHED),
}
"""method -> its fields, besides those of the average, and its views"""

RECIPES = tuple(
    Recipe(
        name=f"moons/{name}",
        data=DataSpec(source=Moons(), n_labelled=6),
        training=TrainingSpec(
            model=MlpSpec(hidden=(64, 64)),
            method=METHODS[name](**{"decay": Constant(0.97), "buffers": "average"} | fields),
            normalise=PerChannel(),
            views=views,
            batch=Fixed(size=6 if name == "supervised" else 106, labelled=6, unlabelled_pool="all"),
            optim=adam(0.01, up=STEPS // 10, down=STEPS // 4, total=STEPS),
            steps=STEPS,
            evaluate_every=STEPS // 20,
        ),
        seeds=tuple(range(10)),
    )
    for name, (fields, views) in _SYSTEMS.items()
)
