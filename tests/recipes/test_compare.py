"""Every method has a recipe on CIFAR-10 with 250 labels; they are alike where they can be, and all of them train."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import meanteacher as mt
from meanteacher.data import Dataset, Fixed, TrainTest
from meanteacher.methods import METHODS
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.models import FastNetSpec
from meanteacher.paper.runs import runs_of
from meanteacher.recipes import RECIPES, fast, find
from meanteacher.train import Intervals, Vitals, train
from record_support import write_record
from support import prepared_of

COMPARED = {name: RECIPES[f"compare/cifar10-250/{name}"] for name in METHODS}
OURS = COMPARED["mean-teacher"]
every_method = pytest.mark.parametrize("name", METHODS)


@every_method
def test_a_recipe_is_of_its_method_and_differs_from_the_others_in_little_else(name: str):
    recipe = COMPARED[name]
    assert type(recipe.training.method) is METHODS[name]
    assert (recipe.data, recipe.seeds) == (OURS.data, OURS.seeds)
    same = ("model", "normalise", "labelled_view", "steps", "evaluate_every")
    assert all(getattr(recipe.training, field) == getattr(OURS.training, field) for field in same)
    assert isinstance(recipe.training.batch, Fixed)
    assert isinstance(OURS.training.batch, Fixed)
    assert (recipe.training.batch.size, recipe.training.batch.labelled) == (160, 160 if name == "supervised" else 32)
    assert (recipe.training.optim == OURS.training.optim) is (name != "improved-gan")
    if isinstance(recipe.training.method, ConsistencyMethod):
        assert isinstance(OURS.training.method, ConsistencyMethod)
        assert (recipe.training.method.cost, recipe.training.method.weight) == (
            OURS.training.method.cost,
            OURS.training.method.weight,
        )


def test_mean_teacher_is_the_fast_recipe_of_ten_minutes():
    ten_minutes = fast.CIFAR10_250.recipe(OURS.name, "mean-teacher", minutes=10)
    # Its labelled rows already have the student's view.
    assert OURS.varied(labelled_view=None) == ten_minutes
    assert OURS.training.labelled_view == ten_minutes.training.views["student"]
    assert OURS.training.steps == find("fast/cifar10-250").training.steps / 3


def _images(n: int) -> Dataset:
    images = torch.randint(256, (n, 3, 32, 32), generator=torch.Generator().manual_seed(n), dtype=torch.uint8)
    return Dataset(images, torch.arange(n) % 10, tuple(map(str, range(10))))


@every_method
def test_a_recipe_trains(name: str):
    """Two steps of a narrow network on a few images."""
    method = COMPARED[name].training.method
    recipe = COMPARED[name].varied(
        data=replace(OURS.data, n_labelled=20),
        model=FastNetSpec(width=0.1),
        method=replace(method, epoch_steps=1) if hasattr(method, "epoch_steps") else method,  # type: ignore[type-var]
        batch=Fixed(size=8, labelled=8 if name == "supervised" else 4, unlabelled_pool="all"),
        steps=2,
        evaluate_every=2,
    )
    prepared = prepared_of(recipe, seed=0, data=TrainTest(train=_images(40), test=_images(4)))
    state, vitals = prepared.start(), Vitals(prepared.declared)
    before = [parameter.detach().clone() for parameter in state.student.parameters() if parameter.requires_grad]
    train(
        state,
        recipe.training.method,
        recipe.training.optim,
        prepared.stream,
        steps=2,
        seed=0,
        vitals=vitals,
        evaluate=prepared.evaluate,
        every=Intervals(evaluate=2),
    )
    assert vitals.alarms == []
    assert math.isfinite(state.curve[-1].teacher)
    after = [parameter for parameter in state.student.parameters() if parameter.requires_grad]
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_one_command_puts_all_methods_into_one_table(tmp_path: Path):
    (run,) = runs_of(["compare/cifar10-250/vat"], seeds=1, out=tmp_path)
    write_record(run, 0.5)
    made = mt.table("cifar10-250", seeds=1, out=tmp_path, train=False)
    assert made.unfinished == len(METHODS) - 1
    endings = (".md", ".html", ".csv", "-curves.csv", ".json")
    assert {path.name for path in made.files} == {f"table-cifar10-250{ending}" for ending in endings}
    page = (tmp_path / "table-cifar10-250.md").read_text(encoding="utf-8")
    assert page.startswith("## CIFAR-10: test error with 250 labels")
    assert all(f"| {name} |" in page for name in METHODS)
    assert "50.0" in next(line for line in page.splitlines() if line.startswith("| vat |"))
