"""A run that is short of time leaves steps out, and ends in time."""

from typing import Any

import pytest

from meanteacher.train import Pace


def run_at(pace: Pace, clock: list[float], seconds_of: Any, steps: int) -> list[int]:
    """The steps that a run takes whose step t takes `seconds_of(t)`."""
    taken, due = [], 0
    while due < steps:
        step = max(due, min(pace(due), steps - 1))
        taken.append(step)
        clock[0] += seconds_of(step)
        due = step + 1
    return taken


def test_a_run_in_time_leaves_no_step_out() -> None:
    clock = [0.0]
    pace = Pace(steps=200, seconds_per_step=1.0, ends=210.0, clock=lambda: clock[0])
    noisy = [1.0 + 0.3 * (-1) ** t + (2.0 if t in (0, 1, 2, 4, 8, 16, 64) else 0.0) - 0.05 for t in range(200)]
    assert run_at(pace, clock, lambda t: noisy[t], 200) == list(range(200))


@pytest.mark.parametrize("slower", [1.2, 2.0, 5.0, 30.0])
@pytest.mark.parametrize("since", [0, 100, 180])
def test_a_run_that_is_slower_than_planned_leaves_steps_out_and_ends_in_time(slower: float, since: int) -> None:
    clock = [0.0]
    pace = Pace(steps=200, seconds_per_step=1.0, ends=210.0, clock=lambda: clock[0])
    taken = run_at(pace, clock, lambda t: slower if t >= since else 1.0, 200)
    assert taken == sorted(set(taken))
    assert taken[-1] == 199
    assert clock[0] <= 210.0 + 2 * slower
    if slower * (200 - since) + since > 215:
        assert len(taken) < 200
    assert len(taken) > 0.5 * (since + (210 - since) / slower) - 2  # what there is time for is done


def test_a_run_without_any_time_takes_its_last_step() -> None:
    clock = [100.0]
    pace = Pace(steps=50, seconds_per_step=1.0, ends=90.0, clock=lambda: clock[0])
    assert run_at(pace, clock, lambda t: 1.0, 50) == [49]


# --- which step is next, at a clock that a test moves ----------------------------------------------------------------


def answers(pace: Pace, clock: list[float], seconds: list[float]) -> list[int]:
    """What a run is told that takes every step, the k-th in `seconds[k]`: before each of them, and after the last."""
    told = [pace(0)]
    for k, each in enumerate(seconds):
        clock[0] += each
        told.append(pace(k + 1))
    return told


def test_the_speed_is_the_planned_one_until_eight_steps_are_known() -> None:
    clock = [0.0]
    pace = Pace(steps=100, seconds_per_step=1.0, ends=130.0, clock=lambda: clock[0])
    # After eight steps of 3 s 92 remain, and time for 35.3 of them: every third is taken.
    assert answers(pace, clock, [3.0] * 8) == [0, 1, 2, 3, 4, 5, 6, 7, 10]


def test_the_speed_is_that_of_the_faster_half_of_the_last_sixteen_steps() -> None:
    clock = [0.0]
    pace = Pace(steps=100, seconds_per_step=1.0, ends=140.0, clock=lambda: clock[0])
    # Nine slow steps of sixteen are more than half: 75 steps remain, and 79 s for steps of (7 * 1 + 5) / 8 s.
    assert answers(pace, clock, [1.0] * 16 + [5.0] * 9) == [*range(25), 26]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        pytest.param([8.0], [0, 1], id="four times the plan"),
        pytest.param([9.0], [0, 4], id="more"),
        pytest.param([9.0, 3.0], [0, 4, 2], id="the first one alone"),
        pytest.param([9.0, 8.5], [0, 4, 4], id="the faster one counts"),
    ],
)
def test_first_steps_that_are_far_slower_than_planned_count_at_once(seconds: list[float], told: list[int]) -> None:
    clock = [0.0]
    pace = Pace(steps=100, seconds_per_step=2.0, ends=303.0, clock=lambda: clock[0])
    assert answers(pace, clock, seconds) == told


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        pytest.param(10.0, 40, id="just enough"),
        pytest.param(9.9, 41, id="one too few"),
        pytest.param(1.5, 46, id="one step and a half"),
        pytest.param(0.5, 49, id="half a step"),
        pytest.param(-3.0, 49, id="too late"),
    ],
)
def test_steps_ahead_are_thinned_out_evenly(ends: float, told: int) -> None:
    assert Pace(steps=50, seconds_per_step=1.0, ends=7.0 + ends, clock=lambda: 7.0)(40) == told
