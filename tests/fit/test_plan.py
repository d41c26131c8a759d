from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from meanteacher.core import InputError
from meanteacher.data import Dataset, Fixed, Split, TrainTest
from meanteacher.fit.plan import Plan, image_size, make_plan, photo_recipe, seconds_per_step
from meanteacher.models import FastNet
from meanteacher.recipes import Recipe

SPLIT = Split(torch.arange(10), torch.arange(10, 40), torch.empty(0, dtype=torch.int64))


def data() -> TrainTest:
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(40) < 10, torch.arange(40) % 2, -1)
    return TrainTest(Dataset(images, labels, ("a", "b")), Dataset(images[:10], labels[:10], ("a", "b")))


def width_of(recipe: Recipe) -> float:
    assert isinstance(recipe.model, FastNet)
    return recipe.model.width


def planned(
    minutes: float,
    *,
    n_images: int = 1000,
    n_rounds: int = 1,
    spent: float = 0.0,
    cost: float = 0.5,
    split: Split = SPLIT,
    seconds_of: Callable[[Recipe, TrainTest, Split], float] | None = None,
) -> Plan:
    """On a machine where a step takes `cost` seconds at width 1, and half of it at half the width."""

    def by_width(recipe: Recipe, data: TrainTest, split: Split) -> float:
        return cost * width_of(recipe)

    return make_plan(
        minutes=minutes,
        spent=spent,
        size=32,
        flip=True,
        n_rounds=n_rounds,
        n_images=n_images,
        data=data(),
        split=split,
        seconds_of=seconds_of or by_width,
    )


@pytest.mark.parametrize("minutes", [5, 12, 30, 60])
def test_the_plan_fits_the_minutes(minutes: float) -> None:
    plan = planned(minutes, spent=20)
    assert plan.steps * sum(plan.seconds_per_step.values()) == pytest.approx(plan.seconds)
    assert 0.7 * 60 * minutes < plan.seconds + 20 < 0.93 * 60 * minutes


def test_measuring_is_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr("meanteacher.fit.plan.time.perf_counter", lambda: float(next(clock)))
    assert planned(60).seconds == pytest.approx(60 * 60 * 0.92 - 60, rel=0.01)


def test_a_network_that_is_too_slow_without_a_teacher_is_not_measured_with_one() -> None:
    measured: list[tuple[str, float]] = []

    def seconds_of(recipe: Recipe, data: TrainTest, split: Split) -> float:
        measured.append((recipe.name, width_of(recipe)))
        return 0.5

    with pytest.raises(InputError, match="Give at least 2 with"):
        planned(1, seconds_of=seconds_of)
    alone, both = "fit/supervised", "fit/mean-teacher"
    assert measured == [(alone, 1.0), (alone, 0.5), (alone, 0.25), (both, 0.25)]


def test_less_time_makes_a_narrower_network() -> None:
    assert [planned(minutes).width for minutes in (40, 18, 1)] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize(("n_labelled", "spared"), [(999, False), (1000, True)])
def test_many_labelled_images_are_spared_the_strong_view(n_labelled: int, spared: bool) -> None:
    split = replace(SPLIT, labelled=torch.zeros(n_labelled, dtype=torch.int64))
    views = photo_recipe(planned(18, split=split), "mean-teacher", fingerprint="f").views
    strong = [role for role, view in views.items() if "RandAugment" in repr(view)]
    assert strong == ["student"]
    assert ("labelled" in views) == spared


def test_folds_share_the_time_among_their_rounds() -> None:
    assert planned(120, n_rounds=4).steps == pytest.approx(planned(120).steps / 4, abs=2)


def test_predicting_many_images_is_part_of_the_time() -> None:
    assert planned(60, n_images=500_000).steps < planned(60).steps


def test_too_few_minutes_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(InputError, match=r"0.1 minutes are too few for 1000 images on this machine. Give at least 1 "):
        planned(0.1)


def test_the_sentence_says_what_will_happen() -> None:
    assert "FastNet at width 0.5, 1986 steps" in planned(18).sentence()
    assert "about 17 min of training" in planned(18).sentence()
    assert "in each of 4 rounds" in planned(60, n_rounds=4).sentence()


def test_the_two_recipes_see_the_same_labelled_rows_and_differ_in_the_unlabelled_ones_alone() -> None:
    ours, baseline = (photo_recipe(planned(18), name, fingerprint="f") for name in ("mean-teacher", "supervised"))
    for field in ("data", "model", "normalise", "views", "optim", "steps"):
        assert getattr(ours, field) == getattr(baseline, field)
    assert isinstance(ours.batch, Fixed)
    assert isinstance(baseline.batch, Fixed)
    assert ours.batch.labelled == baseline.batch.labelled == baseline.batch.size


@pytest.mark.parametrize(("side", "expected"), [(20, 32), (32, 32), (63, 32), (64, 64), (500, 96)])
def test_images_are_brought_to_the_largest_size_that_most_of_them_fill(side: int, expected: int) -> None:
    shapes = np.array([[side, 2 * side]] * 5 + [[4000, 4000], [0, 0]])
    assert image_size(shapes) == expected
    assert image_size(None, side) == expected


def test_a_step_is_measured_on_real_steps() -> None:
    plan = planned(1, cost=0.1)
    recipe = photo_recipe(plan, "supervised", fingerprint="trial")
    short = replace(recipe, steps=11, evaluate_every=11)
    assert 0 < seconds_per_step(short, data(), SPLIT) < 5
