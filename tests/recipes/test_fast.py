"""The fast recipes compare like with like, and each length of a run is planned for itself."""

import pytest

from meanteacher.data import Fixed
from meanteacher.experiment import Recipe
from meanteacher.methods import MeanTeacher, Supervised
from meanteacher.recipes import find
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
