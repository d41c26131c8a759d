"""Two moons with 6 labels and 1000 points: every method in seconds, each with its picture in docs/methods.md.

All share network, steps and optimiser; weights and noise are each method's own, chosen on other label draws than those
reported.
"""

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
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Noise, PerChannel

STEPS = 1000
_DECAY = Constant(0.97)


def _ramp(value: float) -> SigmoidRampUp:
    return SigmoidRampUp(value=value, steps=STEPS // 10)


_CLEAN: Augment = Chain(())
_NOISY: Augment = Noise(0.3)
_LESS_NOISY: Augment = Noise(0.1)
_BOTH = {"student": _NOISY, "teacher": _LESS_NOISY}

_SYSTEMS: dict[str, tuple[Method, dict[str, Augment]]] = {
    "supervised": (Supervised(decay=_DECAY, buffers="average"), _BOTH),
    "pseudo-label": (PseudoLabel(decay=_DECAY, buffers="average", weight=_ramp(1.0)), _BOTH),
    "pseudo-ensemble": (
        PseudoEnsemble(decay=_DECAY, buffers="average", weight=_ramp(10.0)),
        {"student": _NOISY, "teacher": _CLEAN},
    ),
    "gamma-model": (
        GammaModel(decay=_DECAY, buffers="average", weight=_ramp(50.0)),
        {"student": _NOISY, "teacher": _CLEAN},
    ),
    "pi-model": (PiModel(decay=_DECAY, buffers="average", weight=_ramp(5.0)), _BOTH),
    "temporal-ensembling": (
        TemporalEnsembling(decay=_DECAY, buffers="average", weight=_ramp(50.0), epoch_steps=10),
        _BOTH,
    ),
    "improved-gan": (
        ImprovedGan(decay=_DECAY, buffers="average", weight=_ramp(1.0), generator=PointGeneratorSpec()),
        {"student": _CLEAN},
    ),
    "vat": (Vat(decay=_DECAY, buffers="average", weight=_ramp(1.0), epsilon=0.3), {"student": _CLEAN}),
    "vat-entmin": (VatEntMin(decay=_DECAY, buffers="average", weight=_ramp(2.0), epsilon=0.5), {"student": _CLEAN}),
    "mean-teacher": (MeanTeacher(decay=_DECAY, buffers="own", weight=_ramp(50.0)), _BOTH),
    "mean-teacher-vat": (
        MeanTeacherVat(decay=_DECAY, buffers="own", weight=_ramp(5.0), epsilon=0.4),
        {"student": _CLEAN, "teacher": _CLEAN},
    ),
    "fixmatch": (
        FixMatch(decay=_DECAY, buffers="average", weight=_ramp(1.0), threshold=0.8),
        {"student": _LESS_NOISY, "strong": _NOISY},
    ),
    "freematch": (
        FreeMatch(decay=_DECAY, buffers="average", weight=_ramp(1.0), momentum=0.99),
        {"student": _LESS_NOISY, "strong": _NOISY},
    ),
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
            optim=AdamSpec(
                learning_rate=Product(
                    (
                        SigmoidRampUp(value=0.01, steps=STEPS // 10),
                        SigmoidRampDown(value=1.0, steps=STEPS // 4, total=STEPS),
                    )
                ),
                beta1=Constant(0.9),
                beta2=Constant(0.99),
            ),
            steps=STEPS,
            evaluate_every=STEPS,
        ),
        seeds=tuple(range(10)),
    )
    for name, (method, views) in _SYSTEMS.items()
)
