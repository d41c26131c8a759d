"""Two moons with 6 labels and 1000 points: every method in seconds, each with its picture in docs/methods.md.

All share network, steps and optimiser; weights and noise are each method's own, chosen on other label draws than those
reported. The Pi model has the weight of Mean Teacher. Three of them are the demo.
"""

from typing import Any

from meanteacher.core import Augment, Method
from meanteacher.data import Fixed
from meanteacher.data.toy import Moons
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import (
    FixMatch,
    FreeMatch,
    GammaModel,
    ImprovedGan,
    MeanTeacher,
    MeanTeacherVat,
    PiModel,
    PseudoEnsemble,
    PseudoLabel,
    Supervised,
    TemporalEnsembling,
    Vat,
    VatEntMin,
)
from meanteacher.models import MlpSpec
from meanteacher.models.mlp import PointGeneratorSpec
from meanteacher.recipes.digits import adam
from meanteacher.schedules import Constant, SigmoidRampUp
from meanteacher.views import Chain, Noise, PerChannel

STEPS = 1000
_AVERAGED: Any = {"decay": Constant(0.97), "buffers": "average"}


def _ramp(value: float) -> SigmoidRampUp:
    return SigmoidRampUp(value=value, steps=STEPS // 10)


_CLEAN: Augment = Chain(())
_NOISY: Augment = Noise(0.3)
_LESS_NOISY: Augment = Noise(0.1)
_BOTH = {"student": _NOISY, "teacher": _LESS_NOISY}
_FROM_CLEAN = {"student": _NOISY, "teacher": _CLEAN}
_MATCHED = {"student": _LESS_NOISY, "strong": _NOISY}

_SYSTEMS: dict[str, tuple[Method, dict[str, Augment]]] = {
    "supervised": (Supervised(**_AVERAGED), _BOTH),
    "pseudo-label": (PseudoLabel(**_AVERAGED, weight=_ramp(1.0)), _BOTH),
    "pseudo-ensemble": (PseudoEnsemble(**_AVERAGED, weight=_ramp(10.0)), _FROM_CLEAN),
    "gamma-model": (GammaModel(**_AVERAGED, weight=_ramp(50.0)), _FROM_CLEAN),
    "pi-model": (PiModel(**_AVERAGED, weight=_ramp(50.0)), _BOTH),
    "temporal-ensembling": (TemporalEnsembling(**_AVERAGED, weight=_ramp(50.0), epoch_steps=10), _BOTH),
    "improved-gan": (ImprovedGan(**_AVERAGED, weight=_ramp(1.0), generator=PointGeneratorSpec()), {"student": _CLEAN}),
    "vat": (Vat(**_AVERAGED, weight=_ramp(1.0), epsilon=0.3), {"student": _CLEAN}),
    "vat-entmin": (VatEntMin(**_AVERAGED, weight=_ramp(2.0), epsilon=0.5), {"student": _CLEAN}),
    "mean-teacher": (MeanTeacher(decay=_AVERAGED["decay"], buffers="own", weight=_ramp(50.0)), _BOTH),
    "mean-teacher-vat": (
        MeanTeacherVat(decay=_AVERAGED["decay"], buffers="own", weight=_ramp(5.0), epsilon=0.4),
        {"student": _CLEAN, "teacher": _CLEAN},
    ),
    "fixmatch": (FixMatch(**_AVERAGED, weight=_ramp(1.0), threshold=0.8), _MATCHED),
    "freematch": (FreeMatch(**_AVERAGED, weight=_ramp(1.0), momentum=0.99), _MATCHED),
}

RECIPES = tuple(
    Recipe(
        name=f"moons/{name}",
        data=DataSpec(source=Moons(), n_labelled=6),
        training=TrainingSpec(
            model=MlpSpec(hidden=(64, 64)),
            method=method,
            normalise=PerChannel(),
            views=views,
            batch=Fixed(size=6 if name == "supervised" else 106, labelled=6, unlabelled_pool="all"),
            optim=adam(0.01, up=STEPS // 10, down=STEPS // 4, total=STEPS),
            steps=STEPS,
            evaluate_every=STEPS // 20,
        ),
        seeds=tuple(range(10)),
    )
    for name, (method, views) in _SYSTEMS.items()
)
