"""Table 5 (App. A): SVHN and CIFAR-10 without input augmentation, and Shake-Shake with 1000 labels of CIFAR-10."""

from dataclasses import replace

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


def _without_augmentation(recipe: Recipe, error: float, spread: float) -> Recipe:
    return recipe.varied(
        name=f"table5/{recipe.name.partition('/')[2]}",
        views={"student": _VIEW, "teacher": _VIEW},
        claim=Claim(error=error, spread=spread, where="Table 5"),
        deviations=recipe.deviations + _NOISE_STAYS,
    )


def _resnet(*, as_coded: bool) -> Recipe:
    recipe = table4.cifar10(1000, as_coded=as_coded)
    return replace(
        recipe,
        name=f"table5/{recipe.name.partition('/')[2]}",
        claim=Claim(error=10.08, spread=0.41, where="Table 5"),
    )


def recipes() -> tuple[Recipe, ...]:
    convnets = (
        _without_augmentation(recipe(name, n_labelled, as_coded=as_coded), *claim)
        for task, recipe in (("svhn", table1.recipe), ("cifar10", table2.recipe))
        for name, cells in _CLAIMS[task].items()
        for n_labelled, claim in cells.items()
        for as_coded in ((False, True) if task == "svhn" or name == "pi-model" else (False,))
    )
    return (*convnets, *(_resnet(as_coded=as_coded) for as_coded in (False, True)))


RECIPES = recipes()
