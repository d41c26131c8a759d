"""A plan that fits the time, on a machine of any speed, and runs that keep to it."""

from typing import Any

import numpy as np
import pytest

from meanteacher.core import InputError
from meanteacher.data import Fixed
from meanteacher.fitting.plan import METHODS, WIDTHS, Machine, Plan, check_enough, image_size, make_plan, photo_recipe


def machine(cost: float = 0.5, widths: tuple[float, ...] = WIDTHS) -> Machine:
    """One where a step takes `cost` seconds at width 1, and half of it at half the width."""
    return Machine(threads=2, seconds_per_step={width: dict.fromkeys(METHODS, cost * width) for width in widths})


def planned(minutes: float, *, on: Machine | None = None, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "spent": 0.0,
        "overhead": 0.0,
        "size": 32,
        "flip": True,
        "n_rounds": 1,
        "n_images": 1000,
        "n_labelled": 10,
    }
    return make_plan(on or machine(), minutes=minutes, **{**given, **changes})


@pytest.mark.parametrize("minutes", [5, 12, 30, 60])
@pytest.mark.parametrize("n_rounds", [1, 4])
def test_the_plan_fits_the_minutes(minutes: float, n_rounds: int) -> None:
    plan = planned(minutes, spent=20, overhead=2, n_rounds=n_rounds)
    expected = plan.steps * sum(plan.seconds_per_step[method] for method in plan.runs())
    assert plan.seconds == pytest.approx(expected)
    assert 0.7 * 60 * minutes < plan.seconds + 20 + 2 * len(plan.runs()) < 0.93 * 60 * minutes


def test_folds_are_a_run_of_each_method_and_a_last_one_on_all_labels() -> None:
    assert planned(60).runs() == ["supervised", "mean-teacher"]
    assert planned(60, n_rounds=3).runs() == ["supervised"] * 2 + ["mean-teacher"] * 3


def test_less_time_makes_a_narrower_network() -> None:
    assert [planned(minutes).width for minutes in (40, 18, 1)] == [1.0, 0.5, 0.25]


def test_a_width_that_there_was_no_time_to_measure_is_not_planned() -> None:
    assert planned(600, on=machine(widths=(0.25,))).width == 0.25


def test_however_slow_the_machine_there_is_a_plan() -> None:
    assert planned(1, on=machine(cost=1000)).steps == 1


@pytest.mark.parametrize(("n_labelled", "spared"), [(999, False), (1000, True)])
def test_many_labelled_images_are_spared_the_strong_view(n_labelled: int, spared: bool) -> None:
    views = photo_recipe(planned(18, n_labelled=n_labelled), "mean-teacher", fingerprint="f").views
    strong = [role for role, view in views.items() if "RandAugment" in repr(view)]
    assert strong == ["student"]
    assert ("labelled" in views) == spared


@pytest.mark.parametrize("change", [{"n_rounds": 4}, {"n_images": 500_000}, {"spent": 600.0}, {"overhead": 60.0}])
def test_what_takes_time_leaves_fewer_steps(change: dict[str, Any]) -> None:
    assert planned(60, **change).steps < planned(60).steps


def test_too_few_minutes_are_refused_with_how_many_it_takes() -> None:
    slow = machine(cost=100)
    with pytest.raises(
        InputError, match=r"1 minutes are too few for 1,000 images .* Give at least (\d+) with"
    ) as refused:
        check_enough(slow, minutes=1, spent=5, n_images=1000)
    enough = int(str(refused.value).split("at least ")[1].split()[0])
    check_enough(slow, minutes=enough, spent=5, n_images=1000)


def test_the_sentence_says_what_will_happen() -> None:
    plan = planned(18)
    assert f"FastNet at width 0.5, {plan.steps:,} steps" in plan.sentence()
    assert "on 2 threads: about 16 min of training" in plan.sentence()
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
