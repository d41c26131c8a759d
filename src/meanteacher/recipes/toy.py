"""Recipes in seconds, without a download: each method on two moons with 6 labels, three on digits with 40.

Those on two moons share network, steps and optimiser; weights and noise are each method's own, chosen on other label
draws than those reported. The Pi model has the weight of Mean Teacher. Three of them are the demo.
"""

from typing import Any

from meanteacher.core import Augment
from meanteacher.data import Fixed, Source
from meanteacher.data.toy import Digits, Moons
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import METHODS
from meanteacher.models import MlpSpec
from meanteacher.models.mlp import PointGeneratorSpec
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Noise, PerChannel, Translate


def _recipe(
    name: str,
    fields: dict[str, Any],
    views: dict[str, Augment],
    *,
    source: Source,
    n_labelled: int,
    hidden: tuple[int, ...],
    steps: int,
    seeds: int,
) -> Recipe:
    """A recipe whose method has these fields, besides those of the average."""
    method = name.partition("/")[2]
    up, down = SigmoidRampUp(value=0.01, steps=steps // 10), SigmoidRampDown(value=1.0, steps=steps // 4, total=steps)
    return Recipe(
        name=name,
        data=DataSpec(source=source, n_labelled=n_labelled),
        training=TrainingSpec(
            model=MlpSpec(hidden=hidden),
            method=METHODS[method](**{"decay": Constant(0.97), "buffers": "average"} | fields),
            normalise=PerChannel(),
            views=views,
            batch=Fixed(size=n_labelled + 100 * (method != "supervised"), labelled=n_labelled, unlabelled_pool="all"),
            optim=AdamSpec(learning_rate=Product((up, down)), beta1=Constant(0.9), beta2=Constant(0.99)),
            steps=steps,
            evaluate_every=50,
        ),
        seeds=tuple(range(seeds)),
    )


# --- two moons --------------------------------------------------------------------------------------------------------


def _ramp(value: float) -> SigmoidRampUp:
    return SigmoidRampUp(value=value, steps=100)


_CLEAN: Augment = Chain(())
_NOISY: Augment = Noise(0.3)
_LESS_NOISY: Augment = Noise(0.1)
_BOTH = {"student": _NOISY, "teacher": _LESS_NOISY}
_FROM_CLEAN = {"student": _NOISY, "teacher": _CLEAN}
_MATCHED = {"student": _LESS_NOISY, "strong": _NOISY}
_MOONS: dict[str, tuple[dict[str, Any], dict[str, Augment]]] = {
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
MOONS = tuple(
    _recipe(f"moons/{name}", *system, source=Moons(), n_labelled=6, hidden=(64, 64), steps=1000, seeds=10)
    for name, system in _MOONS.items()
)

# --- digits -----------------------------------------------------------------------------------------------------------

_MOVED: Augment = Chain((Translate(1), Noise(0.5)))
_WEIGHT = {"weight": SigmoidRampUp(value=20.0, steps=240)}
_DIGITS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "pi-model": _WEIGHT,
    "mean-teacher": {**_WEIGHT, "buffers": "own"},
}
DIGITS = tuple(
    _recipe(
        f"digits/{name}",
        fields,
        {"student": _MOVED, "teacher": _MOVED},
        source=Digits(),
        n_labelled=40,
        hidden=(256, 256),
        steps=600,
        seeds=6,
    )
    for name, fields in _DIGITS.items()
)

RECIPES = DIGITS + MOONS
