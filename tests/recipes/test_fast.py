"""The fast recipes compare like with like, and each length of a run is planned for itself."""

from dataclasses import replace
from typing import Any

import pytest

from meanteacher.data import Fixed
from meanteacher.experiment import Recipe
from meanteacher.methods import FixMatch, MeanTeacher, PiModel, Supervised
from meanteacher.recipes import find
from meanteacher.schedules import Constant
from meanteacher.train import MuonSpec

every_task = pytest.mark.parametrize("name", ["fast/svhn-500", "fast/cifar10-4000", "fast/cifar10-250"])
with_a_curve = pytest.mark.parametrize("name", ["fast/svhn-500", "fast/cifar10-4000"])


def rows(recipe: Recipe) -> tuple[int, int]:
    """Of a batch: all, and those that show their label."""
    assert isinstance(recipe.training.batch, Fixed)
    return recipe.training.batch.size, recipe.training.batch.labelled


@every_task
def test_supervised_only_differs_in_method_and_labelled_rows_alone(name: str):
    ours, baseline = find(name), find(f"{name}/supervised")
    assert isinstance(ours.training.method, MeanTeacher)
    assert isinstance(baseline.training.method, Supervised)
    assert ours.training.method.decay == baseline.training.method.decay
    assert rows(baseline) == (rows(ours)[0],) * 2
    assert ours.varied(name="", method=baseline.training.method, batch=baseline.training.batch) == baseline.varied(
        name=""
    )


@with_a_curve
def test_a_run_of_other_minutes_has_its_share_of_steps_and_ends_its_schedules_with_them(name: str):
    half_an_hour = find(name)
    for minutes in (1, 3, 10, 60):
        recipe = find(f"{name}/minutes-{minutes}")
        assert recipe.training.steps == recipe.training.evaluate_every == half_an_hour.training.steps * minutes / 30
        assert isinstance(recipe.training.optim, MuonSpec)
        assert (
            recipe.training.optim.learning_rate(recipe.training.steps - 1)
            < 0.001
            < recipe.training.optim.learning_rate(recipe.training.steps // 2)
        )
        assert (recipe.data, recipe.training.model, recipe.training.views) == (
            half_an_hour.data,
            half_an_hour.training.model,
            half_an_hour.training.views,
        )


@with_a_curve
def test_the_shorter_a_run_the_more_labels_a_batch_shows(name: str):
    shown = [rows(find(f"{name}{part}"))[1] for part in ("/minutes-1", "/minutes-3", "", "/minutes-60")]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] > shown[1] > shown[2] == shown[3]


@pytest.mark.parametrize("task", ["svhn-250", "cifar10-1000"])
def test_an_ablation_differs_from_mean_teacher_in_the_part_that_is_removed(task: str):
    names = ("mean-teacher", "no-average", "pi-model", "fixmatch", "supervised")
    ours, no_average, pi_model, fixmatch, supervised = (find(f"fast/{task}/ablation/{name}") for name in names)
    settings = find({"svhn-250": "fast/svhn-500", "cifar10-1000": "fast/cifar10-4000"}[task]).training
    assert (ours.training.model, ours.training.views, ours.training.batch) == (
        settings.model,
        settings.views,
        settings.batch,
    )
    strong, weak = ours.training.views["student"], ours.training.views["teacher"]
    method = ours.training.method
    assert isinstance(method, MeanTeacher)
    for other in (no_average, pi_model, fixmatch, supervised):
        same = ("model", "normalise", "optim", "steps", "evaluate_every")
        assert all(getattr(other.training, field) == getattr(ours.training, field) for field in same)
        assert other.data == ours.data
        assert rows(other) == (160, 160 if other is supervised else rows(ours)[1])
        seen = other.training.views["strong" if other is fixmatch else "student"]
        assert (seen, other.training.labelled_view or seen) == (strong, ours.training.labelled_view or strong)
    assert no_average.training.method == replace(method, decay=Constant(0.0))
    averaged: Any = {"decay": method.decay, "buffers": "average", "weight": method.weight}
    assert pi_model.training.method == PiModel(**averaged, cost=method.cost, one_sided=True)
    assert fixmatch.training.method == FixMatch(**averaged, threshold=0.9)
    assert fixmatch.training.views == {"student": weak, "strong": strong}
    assert supervised.training.method == Supervised(decay=method.decay, buffers="average")
