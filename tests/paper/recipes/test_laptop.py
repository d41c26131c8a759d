"""The laptop versions compare systems that differ in their method alone, in the paper's proportions."""

from dataclasses import replace
from itertools import product

import pytest

from meanteacher.data import Fixed
from meanteacher.experiment import Recipe
from meanteacher.methods import MeanTeacher, PiModel, Supervised, TemporalEnsembling
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.paper.recipes.laptop import SYSTEMS, recipes
from meanteacher.recipes import find

COLUMNS = ("table1/svhn-250", "table1/svhn-500", "table2/cifar10-1000", "table2/cifar10-4000")
RECIPES = [find(recipe.name) for recipe in recipes()]
FIGURE4 = [recipe for recipe in RECIPES if recipe.name.startswith("laptop/figure4")]
EVALUATION = find("laptop/figure4/evaluation")


def column(place: str) -> dict[str, Recipe]:
    return {system: find(f"laptop/{place}/{system}") for system in SYSTEMS}


@pytest.mark.parametrize(("place", "system"), list(product(COLUMNS, SYSTEMS)))
def test_every_cell_has_the_data_of_the_papers_cell(place: str, system: str) -> None:
    ours, paper = find(f"laptop/{place}/{system}"), find(f"{place}/{system}")
    assert ours.data == paper.data
    assert type(ours.training.method) is type(paper.training.method)


@pytest.mark.parametrize("place", COLUMNS)
def test_the_systems_of_a_column_differ_in_their_method_alone(place: str) -> None:
    cells = column(place)
    reference = cells["mean-teacher"].training
    batch = reference.batch
    assert isinstance(batch, Fixed)
    for system, recipe in cells.items():
        labelled = replace(batch, size=batch.labelled) if system == "supervised" else batch
        assert recipe.training == replace(reference, method=recipe.training.method, batch=labelled)
        assert recipe.seeds == cells["mean-teacher"].seeds[: len(recipe.seeds)]
        assert len(recipe.seeds) >= 3


@pytest.mark.parametrize("place", COLUMNS)
def test_the_methods_of_a_column_share_the_average_and_the_cost(place: str) -> None:
    methods = {system: recipe.training.method for system, recipe in column(place).items()}
    kinds = (Supervised, PiModel, TemporalEnsembling, MeanTeacher)
    assert tuple(map(type, methods.values())) == kinds
    reference = methods["mean-teacher"]
    assert isinstance(reference, MeanTeacher)
    for method in methods.values():
        assert isinstance(method, kinds)
        assert (method.decay, method.buffers) == (reference.decay, reference.buffers)
        if isinstance(method, ConsistencyMethod):
            assert (method.weight, method.cost, method.consistency_on) == (
                reference.weight,
                reference.cost,
                reference.consistency_on,
            )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_ramp_up_takes_the_papers_share_of_the_run(recipe: Recipe) -> None:
    method = recipe.training.method
    if not isinstance(method, ConsistencyMethod) or "no-ramp-up" in recipe.name:
        return
    steps = recipe.training.steps
    paper = 40_000 / 180_000
    final = method.weight(steps)
    assert method.weight(round(1.1 * paper * steps)) == final
    assert method.weight(round(0.9 * paper * steps)) < final or final == 0


def test_figure_4_varies_one_thing_at_a_time_on_validation_images() -> None:
    assert EVALUATION.data.validation == 0.1
    for recipe in FIGURE4:
        assert recipe.data == EVALUATION.data
        fields = ("normalise", "batch", "optim", "steps", "labelled_view")
        for field in fields:
            assert getattr(recipe.training, field) == getattr(EVALUATION.training, field)
        if recipe is not EVALUATION:
            assert recipe.training != EVALUATION.training


def test_every_point_of_figure_4_is_there_once() -> None:
    noises, rates, weights, decays, taus, distances = 2**3, 3, 7, 8, 6, 3
    n_points = (noises - 1) + (rates**2 - 2) + (weights - 1) + (decays - 1) + (taus - 1) + (2 * distances + 1)
    trainings = [recipe.training for recipe in FIGURE4]
    assert len(FIGURE4) == n_points + 1
    assert all(first != second for i, first in enumerate(trainings) for second in trainings[:i])
