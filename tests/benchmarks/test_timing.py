"""Times that can be compared: contenders in turn, medians of rounds."""

import pytest

from benchmarks import timing
from benchmarks.timing import Timing, interleaved, ratio


class Clock:
    """Stands still but for what a call says it takes: no machine is too busy for these tests."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_contenders_take_turns_and_each_has_one_time_a_round():
    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=4, at_least=0.0)
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4]
    rounds = calls[4:]  # after the warm-up and the estimate of each
    assert rounds == ["a", "b", "b", "a", "a", "b", "b", "a"], "who goes first changes from round to round"


def test_first_call_is_not_counted(clock: Clock):
    slow_first = iter([9.0])
    timings = interleaved({"a": lambda: clock.takes(next(slow_first, 2.0))}, rounds=3, at_least=0.0)
    assert timings["a"].seconds == (2.0, 2.0, 2.0)


def test_quick_calls_are_repeated_and_their_mean_counts(clock: Clock):
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        clock.takes(0.25)

    timings = interleaved({"a": call}, rounds=1, at_least=10.0)
    assert len(calls) == 2 + 40  # the warm-up and the estimate, then ten seconds of them
    assert timings["a"].seconds == (0.25,)


def test_ratio_is_the_median_of_the_rounds_ratios():
    """A round in which the machine was slow for both does not count for either."""
    timings = {"step": Timing((2.0, 20.0, 2.2)), "limit": Timing((1.0, 10.0, 1.0))}
    assert ratio(timings, "step", "limit") == pytest.approx(2.0)
