"""Every method on CIFAR-10 with 250 labels, with the fast network: ten minutes per run on two CPU cores.

All methods share network, steps, batch size and the view of the labelled rows; supervised-only has labelled rows alone.
The consistency methods share their cost and its weight, those of `fast/cifar10-250`, and differ in where the target
comes from; no gradient flows through a sharpened target, so the Pi model is trained on one side. Other settings are
those of each method's authors. None was tuned here, and no result is recorded yet. `meanteacher table cifar10-250` runs
them all.
"""

from dataclasses import replace
from typing import Any

from meanteacher.core import Augment, Method
from meanteacher.data import Fixed
from meanteacher.experiment.recipe import Recipe
from meanteacher.methods import (
    FixMatch,
    FreeMatch,
    GammaModel,
    ImprovedGan,
    MeanTeacherVat,
    PiModel,
    PseudoEnsemble,
    PseudoLabel,
    Supervised,
    TemporalEnsembling,
    Vat,
    VatEntMin,
)
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
_SYSTEMS: dict[str, tuple[Method, dict[str, Augment]]] = {
    "supervised": (Supervised(**_AVERAGED), {"student": _STRONG}),
    "pseudo-label": (PseudoLabel(**_AVERAGED, weight=_WEIGHT), {"student": _STRONG}),
    "pseudo-ensemble": (PseudoEnsemble(**_AVERAGED, weight=_WEIGHT, cost=_COST), _FROM_CLEAN),
    "gamma-model": (GammaModel(**_AVERAGED, weight=_WEIGHT, cost=_COST), _FROM_CLEAN),
    "pi-model": (PiModel(**_AVERAGED, weight=_WEIGHT, cost=_COST, one_sided=True), _BOTH),
    "temporal-ensembling": (
        TemporalEnsembling(**_AVERAGED, weight=_WEIGHT, cost=_COST, momentum=0.6, epoch_steps=_EPOCH_STEPS),
        {"student": _STRONG},
    ),
    "improved-gan": (
        ImprovedGan(**_AVERAGED, weight=Constant(1.0), generator=ImageGeneratorSpec(width=0.25)),
        {"student": _WEAK},
    ),
    "vat": (Vat(**_AVERAGED, weight=_WEIGHT, epsilon=_EPSILON), {"student": _WEAK}),
    "vat-entmin": (VatEntMin(**_AVERAGED, weight=_WEIGHT, epsilon=_EPSILON), {"student": _WEAK}),
    "mean-teacher": (_TRAINING.method, _BOTH),
    "mean-teacher-vat": (
        MeanTeacherVat(**_AVERAGED, weight=_WEIGHT, epsilon=_EPSILON),
        {"student": _WEAK, "teacher": _WEAK},
    ),
    "fixmatch": (FixMatch(**_AVERAGED, weight=_WEIGHT, threshold=0.95), _MATCHED),
    "freematch": (FreeMatch(**_AVERAGED, weight=_WEIGHT, momentum=0.99), _MATCHED),
}

RECIPES: tuple[Recipe, ...] = tuple(
    _BASE.varied(
        name=f"compare/cifar10-250/{name}",
        method=method,
        views=views,
        labelled_view=_STRONG,
        batch=replace(_TRAINING.batch, labelled=_TRAINING.batch.size) if name == "supervised" else _TRAINING.batch,
        optim=_GAN_OPTIM if name == "improved-gan" else _TRAINING.optim,
    )
    for name, (method, views) in _SYSTEMS.items()
)
