"""Table 5 (App. A): SVHN and CIFAR-10 without input augmentation, and Shake-Shake with 1000 labels of CIFAR-10."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from meanteacher.core import Augment
from meanteacher.experiment.recipe import Recipe
from meanteacher.paper.recipes import table1, table2, table4
from meanteacher.records import Claim
from meanteacher.views import Chain, Noise

_VIEW: Augment = Chain((Noise(0.15),))
_CLAIMS = {
    "svhn": {
        "supervised": {250: (36.26, 3.83), 500: (19.68, 1.03), 1000: (14.15, 0.87), None: (3.04, 0.04)},
        "pi-model": {250: (10.36, 0.94), 500: (7.01, 0.29), 1000: (5.73, 0.16), None: (2.75, 0.08)},
        "mean-teacher": {250: (5.85, 0.62), 500: (5.45, 0.14), 1000: (5.21, 0.21), None: (2.77, 0.09)},
    },
    "cifar10": {
        "supervised": {1000: (48.38, 1.07), 2000: (36.07, 0.90), 4000: (24.47, 0.50), None: (7.43, 0.06)},
        "pi-model": {1000: (32.18, 1.33), 2000: (23.92, 1.07), 4000: (17.08, 0.32), None: (7.00, 0.20)},
        "mean-teacher": {1000: (30.62, 1.13), 2000: (23.14, 0.46), 4000: (17.74, 0.30), None: (7.21, 0.24)},
    },
}
_NOISE_STAYS = (
    "Without translation and flip; Gaussian noise and dropout stay, as in the authors' scripts. The paper says only "
    "that there is no input augmentation.",
)


def _claimed(recipe: Recipe, error: float, spread: float, **changes: Any) -> Recipe:
    name = f"table5/{recipe.name.partition('/')[2]}"
    return recipe.varied(name=name, claim=Claim(error=error, spread=spread, where="Table 5"), **changes)


def recipes() -> Iterator[Recipe]:
    views = {"student": _VIEW, "teacher": _VIEW}
    for task, recipe in (("svhn", table1.recipe), ("cifar10", table2.recipe)):
        for name, cells in _CLAIMS[task].items():
            presets = (False, True) if task == "svhn" or name == "pi-model" else (False,)
            for (n_labelled, claim), as_coded in product(cells.items(), presets):
                made = recipe(name, n_labelled, as_coded=as_coded)
                yield _claimed(made, *claim, views=views, deviations=made.deviations + _NOISE_STAYS)
    for as_coded in (False, True):
        yield _claimed(table4.cifar10(1000, as_coded=as_coded), 10.08, 0.41)
