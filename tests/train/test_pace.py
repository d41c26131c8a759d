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
