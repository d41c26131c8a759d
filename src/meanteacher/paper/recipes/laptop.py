"""Laptop versions of tables 1 and 2 and of figures 3 and 4: the paper's systems in minutes on one core each.

Network, optimiser, batch and length are fixed, so that labels limit the error and the teacher's average has time to
matter. They were chosen on other label draws and on held-out training images (docs/experiments/laptop.md). Figure 3
shows the curves of the runs of the tables. A number in the name of a recipe of figure 4 is relative to the evaluation
setting, or is the paper's.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from meanteacher.core import Augment
from meanteacher.data import Fixed, Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import METHODS
from meanteacher.models import LaptopNetSpec
from meanteacher.paper.recipes.figure4 import LAPTOP
from meanteacher.schedules import Constant, LinearWarmUp, SigmoidRampUp
from meanteacher.train import MuonSpec
from meanteacher.views import Chain, Flip, Normaliser, PerChannel, PerImage, Translate

SYSTEMS = ("supervised", "pi-model", "temporal-ensembling", "mean-teacher")

_STEPS, _FIGURE4_STEPS = 6000, 4000
_RAMP_UP = 0.225
"""Share of a run, that of the paper's 40,000 of 180,000 steps."""
_WARM_UP = 100
_DECAY = 0.995
_DISTANCE = 40.0
"""The authors' weight of 1 between two outputs: they sum over 10 classes, and a quarter of our rows is labelled."""
_OPTIM = MuonSpec(
    learning_rate=LinearWarmUp(first=0.0, value=0.05, steps=_WARM_UP),
    sgd_learning_rate=LinearWarmUp(first=0.0, value=0.15, steps=_WARM_UP),
    weight_decay=5e-4,
    matrix_decay=2.5e-3,
)
_DEVIATIONS = (
    "A laptop version: LaptopNet with dropout of 0.25 instead of the 13-layer ConvNet with 0.5; Muon at a constant "
    "rate instead of Adam; 6,000 steps (4,000 in figure 4) instead of 180,000.",
    "As in the paper: squared error of the softmax outputs, ramped up over 22.5 % of the run; translations by 2 "
    "pixels, and flips on CIFAR-10; student and teacher with the same kinds of noise. There is no input noise.",
    "A decay of 0.995 from the first step on; the paper's change from 0.99 to 0.999 after the ramp-up.",
    "Every system is evaluated by the average of its weights and of its running statistics.",
    "Images are standardised per channel on CIFAR-10; the paper whitens them with ZCA.",
)


def _recipe(
    column: str,
    system: str,
    *,
    source: Source,
    n_images: int,
    n_labelled: int,
    normalise: Normaliser,
    view: Augment,
    weight: float,
    n_seeds: int = 3,
    labelled_rows: int = 32,
    other_rows: int = 96,
) -> Recipe:
    """A cell of a table, with the weight of its consistency cost after the ramp-up."""
    fields: dict[str, Any] = {"decay": Constant(_DECAY), "buffers": "average"}
    if system == "supervised":
        other_rows = 0
    else:
        fields["weight"] = _ramped(weight, _STEPS)
    if system == "temporal-ensembling":
        fields["epoch_steps"] = -(-n_images // other_rows)
    return Recipe(
        name=f"laptop/{column}/{system}",
        data=DataSpec(source=source, n_labelled=n_labelled),
        training=TrainingSpec(
            model=LaptopNetSpec(dropout=LAPTOP.evaluation.dropout),
            method=METHODS[system](**fields),
            normalise=normalise,
            views={"student": view, "teacher": view},
            batch=Fixed(size=labelled_rows + other_rows, labelled=labelled_rows, unlabelled_pool="all"),
            optim=_OPTIM,
            steps=_STEPS,
            evaluate_every=500,
            evaluate_costs=True,
        ),
        seeds=tuple(range(3 if system == "temporal-ensembling" else n_seeds)),  # figure 3 does not show it
        deviations=_DEVIATIONS,
    )


def _ramped(value: float, steps: int) -> SigmoidRampUp:
    return SigmoidRampUp(value=value, steps=round(_RAMP_UP * steps))


_SVHN: Any = {
    "source": Svhn(),
    "n_images": 73_257,
    "normalise": PerImage(),
    "view": Chain((Translate(2),)),
    "weight": 20.0,
    "n_seeds": 4,
}
_CIFAR10: Any = {
    "source": Cifar10(),
    "n_images": 50_000,
    "normalise": PerChannel(),
    "view": Chain((Flip(), Translate(2))),
}
_COLUMNS: dict[str, Any] = {
    "table1/svhn-250": {"n_labelled": 250, **_SVHN},
    "table1/svhn-500": {"n_labelled": 500, **_SVHN},
    "table2/cifar10-1000": {"n_labelled": 1000, "weight": 50.0, "n_seeds": 4, **_CIFAR10},
    "table2/cifar10-4000": {"n_labelled": 4000, "weight": 20.0, "labelled_rows": 64, "other_rows": 64, **_CIFAR10},
}


def recipes() -> Iterator[Recipe]:
    for (column, fields), system in product(_COLUMNS.items(), SYSTEMS):
        yield _recipe(column, system, **fields)
    table1 = _recipe("table1/svhn-250", "mean-teacher", **_COLUMNS["table1/svhn-250"])
    data = replace(table1.data, validation=0.1)
    base = table1.varied(data=data, steps=_FIGURE4_STEPS, evaluate_every=1000, evaluate_costs=False, seeds=(0, 1))
    for point in LAPTOP.runs():
        yield point.setting.of(
            base,
            f"laptop/{point.name}",
            ramped=lambda relative: _ramped(relative * _SVHN["weight"], _FIGURE4_STEPS),
            distance=_DISTANCE,
        )
