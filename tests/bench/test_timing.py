"""Times that can be compared: contenders in turn, medians of rounds."""

import time

import pytest

from meanteacher.bench.timing import Timing, interleaved, ratio


def test_contenders_take_turns_and_each_has_one_time_a_round():
    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=4, at_least=0.0)
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4]
    rounds = calls[4:]  # after the warm-up and the estimate of each
    assert rounds == ["a", "b", "b", "a", "a", "b", "b", "a"], "who goes first changes from round to round"


def test_first_call_is_not_counted():
    slow_first = iter([0.05])
    timings = interleaved({"a": lambda: time.sleep(next(slow_first, 0.0))}, rounds=3, at_least=0.0)
    assert max(timings["a"].seconds) < 0.02


def test_quick_calls_are_repeated():
    count = iter(range(10**9))
    interleaved({"a": lambda: next(count)}, rounds=1, at_least=0.01)
    assert next(count) > 100


def test_ratio_is_the_median_of_the_rounds_ratios():
    """A round in which the machine was slow for both does not count for either."""
    timings = {"step": Timing((2.0, 20.0, 2.2)), "limit": Timing((1.0, 10.0, 1.0))}
    assert ratio(timings, "step", "limit") == pytest.approx(2.0)
