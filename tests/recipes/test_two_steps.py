"""Every recipe of the paper trains: two steps, a tenth of the width, small batches, images made up in their shape."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from meanteacher.core import UNLABELLED
from meanteacher.data import Dataset, Fixed, Mixed, TrainTest
from meanteacher.data.svhn import Svhn
from meanteacher.experiment import Recipe
from meanteacher.experiment.describe import fingerprint
from meanteacher.recipes import RECIPES
from meanteacher.train import Intervals, Vitals, train
from meanteacher.views import PerChannel, Zca
from support import prepared_of

PAPER = {name: recipe for name, recipe in RECIPES.items() if name.startswith(("table", "figure"))}
N_CLASSES = 10
N_LABELLED = 20
ROWS = 6


def _images(n: int, *, extra: int = 0) -> Dataset:
    draws = torch.Generator().manual_seed(n)
    images = torch.randint(256, (n + extra, 3, 32, 32), generator=draws, dtype=torch.uint8)
    labels = torch.cat([torch.arange(n) % N_CLASSES, torch.full((extra,), UNLABELLED)])
    return Dataset(images, labels, tuple(map(str, range(N_CLASSES))))


DATA = {extra: TrainTest(train=_images(60, extra=extra), test=_images(4)) for extra in (0, 20)}


def _reduced(recipe: Recipe) -> Recipe:
    """Everything as in the recipe, but small."""
    model: Any = recipe.training.model
    method: Any = recipe.training.method
    changes: dict[str, Any] = {}
    if getattr(method, "labelled_share", None) is not None:
        changes["labelled_share"] = N_LABELLED / 60
    if hasattr(method, "generator"):
        changes["generator"] = dataclasses.replace(method.generator, width=0.1)
    if hasattr(method, "epoch_steps"):
        changes["epoch_steps"] = 1  # so that the second step has targets
    n_labelled = None if recipe.data.n_labelled is None else N_LABELLED
    return recipe.varied(
        data=dataclasses.replace(recipe.data, n_labelled=n_labelled),
        model=dataclasses.replace(model, width=0.1),
        method=dataclasses.replace(method, **changes),
        batch=_smaller(recipe.training.batch),
        # ZCA of 3072 values takes many seconds; it has tests of its own.
        normalise=PerChannel() if isinstance(recipe.training.normalise, Zca) else recipe.training.normalise,
        steps=2,
        evaluate_every=2,
    )


def _smaller(batch: Any) -> Any:
    if isinstance(batch, Mixed):
        return Mixed(size=ROWS)
    return Fixed(
        size=ROWS, labelled=max(1, round(ROWS * batch.labelled / batch.size)), unlabelled_pool=batch.unlabelled_pool
    )


def _alike() -> dict[str, list[str]]:
    """Recipes that compute the same when they are small, on the images that are made up, under the name of one."""
    found: dict[Any, list[str]] = {}
    for name, recipe in PAPER.items():
        small = _reduced(recipe)
        small = dataclasses.replace(small, name="small", data=dataclasses.replace(small.data, source=Svhn()))
        found.setdefault((fingerprint(small), small.training.evaluate_costs, _extra(name)), []).append(name)
    return {names[0]: names for names in found.values()}


def _extra(name: str) -> int:
    """Images beyond those of the training set."""
    return 20 if "extra" in name else 0


ALIKE = _alike()


def test_every_recipe_of_the_paper_is_trained_or_like_one_that_is():
    assert sorted(name for names in ALIKE.values() for name in names) == sorted(PAPER)


@pytest.mark.parametrize("name", ALIKE)
def test_a_recipe_of_the_paper_trains(name: str):
    """Without a folder: writing its files would take half of the time."""
    recipe = _reduced(PAPER[name])
    prepared = prepared_of(recipe, seed=0, data=DATA[_extra(name)])
    state, vitals = prepared.start(), Vitals(prepared.declared)
    before = [parameter.detach().clone() for parameter in state.student.parameters()]
    train(
        state,
        recipe.training.method,
        recipe.training.optim,
        prepared.stream,
        steps=recipe.training.steps,
        seed=0,
        vitals=vitals,
        evaluate=prepared.evaluate,
        every=Intervals(evaluate=recipe.training.evaluate_every),
    )
    assert state.step == 2
    assert vitals.alarms == []
    (evaluation,) = state.curve
    assert evaluation.part == ("validation" if recipe.data.validation else "test")
    assert all(math.isfinite(error) for error in (evaluation.student, evaluation.teacher))
    moved = [not torch.equal(old, new) for old, new in zip(before, state.student.parameters(), strict=True)]
    assert all(moved)
