"""Every method on CIFAR-10 with 250 labels, with the fast network: ten minutes per run on two CPU cores.

All methods share network, steps, batch size and the view of the labelled rows; supervised-only has labelled rows alone.
The consistency methods share their cost and its weight, those of `fast/cifar10-250`, and differ in where the target
comes from; no gradient flows through a sharpened target, so the Pi model is trained on one side. Other settings are
those of each method's authors. None was tuned here. `meanteacher table cifar10-250` runs them all.
"""

from dataclasses import replace
from typing import Any

from meanteacher.core import Augment
from meanteacher.data import Fixed
from meanteacher.experiment.recipe import Recipe
from meanteacher.methods import METHODS
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.models import ImageGeneratorSpec
from meanteacher.recipes import fast
from meanteacher.schedules import Constant, LinearRampDown
from meanteacher.train import AdamSpec
from meanteacher.views import Chain

_BASE = fast.CIFAR10_250.recipe("compare/cifar10-250/mean-teacher", "mean-teacher", minutes=10)
"""Mean Teacher; the others are variations of it."""
_TRAINING = _BASE.training
assert isinstance(_TRAINING.method, ConsistencyMethod)
assert isinstance(_TRAINING.batch, Fixed)
_WEIGHT, _COST = _TRAINING.method.weight, _TRAINING.method.cost
_AVERAGED: Any = {"decay": _TRAINING.method.decay, "buffers": "average"}
_STRONG, _WEAK = _TRAINING.views["student"], _TRAINING.views["teacher"]
_CLEAN: Augment = Chain(())
_EPSILON = 8.0
"""The radius of Miyato et al. (2017) on CIFAR-10."""
_EPOCH_STEPS = -(-50_000 // (_TRAINING.batch.size - _TRAINING.batch.labelled))
_GAN_OPTIM = AdamSpec(
    learning_rate=LinearRampDown(value=0.0003, steps=_TRAINING.steps // 3, total=_TRAINING.steps),
    beta1=Constant(0.5),
    beta2=Constant(0.999),
)
"""The settings of Salimans et al. (2016): a generator learns with other steps than a classifier."""

_BOTH = {"student": _STRONG, "teacher": _WEAK}
_FROM_CLEAN = {"student": _STRONG, "teacher": _CLEAN}
_MATCHED = {"student": _WEAK, "strong": _STRONG}
_TO_TARGETS = {"weight": _WEIGHT, "cost": _COST}
_ADVERSARIAL = {"weight": _WEIGHT, "epsilon": _EPSILON}
_SYSTEMS: dict[str, tuple[dict[str, Any], dict[str, Augment]]] = {
    "supervised": ({}, {"student": _STRONG}),
    "pseudo-label": ({"weight": _WEIGHT}, {"student": _STRONG}),
    "pseudo-ensemble": (_TO_TARGETS, _FROM_CLEAN),
    "gamma-model": (_TO_TARGETS, _FROM_CLEAN),
    "pi-model": ({**_TO_TARGETS, "one_sided": True}, _BOTH),
    "temporal-ensembling": ({**_TO_TARGETS, "momentum": 0.6, "epoch_steps": _EPOCH_STEPS}, {"student": _STRONG}),
    "improved-gan": ({"weight": Constant(1.0), "generator": ImageGeneratorSpec(width=0.25)}, {"student": _WEAK}),
    "vat": (_ADVERSARIAL, {"student": _WEAK}),
    "vat-entmin": (_ADVERSARIAL, {"student": _WEAK}),
    "mean-teacher": (_TO_TARGETS, _BOTH),
    "mean-teacher-vat": (_ADVERSARIAL, {"student": _WEAK, "teacher": _WEAK}),
    "fixmatch": ({"weight": _WEIGHT, "threshold": 0.95}, _MATCHED),
    "freematch": ({"weight": _WEIGHT, "momentum": 0.99}, _MATCHED),
}
"""method -> its fields, besides those of the average, and its views"""

RECIPES: tuple[Recipe, ...] = tuple(
    _BASE.varied(
        name=f"compare/cifar10-250/{name}",
        method=METHODS[name](**_AVERAGED, **fields),
        views=views,
        labelled_view=_STRONG,
        batch=replace(_TRAINING.batch, labelled=_TRAINING.batch.size) if name == "supervised" else _TRAINING.batch,
        optim=_GAN_OPTIM if name == "improved-gan" else _TRAINING.optim,
    )
    for name, (fields, views) in _SYSTEMS.items()
)
