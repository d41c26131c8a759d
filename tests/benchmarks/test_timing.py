"""Times that can be compared: contenders in turn, medians of rounds."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import timing
from benchmarks.timing import Timing, in_subprocess, interleaved, ratio


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


def test_contenders_take_turns_and_each_has_one_time_per_round():
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


def _counting(path: Path) -> Callable[[], None]:
    """Each call adds a line: which process it is, which call, and with how many threads."""
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        with path.open("a") as lines:
            lines.write(f"{os.getpid()} {len(calls)} {torch.get_num_threads()}\n")

    return call


def _failing() -> Callable[[], None]:
    def call() -> None:
        os._exit(7)

    return call


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_calls_are_made_in_another_process_and_waited_for(tmp_path: Path):
    path = tmp_path / "calls"
    with in_subprocess(_counting, path) as call:
        assert not path.exists()
        for n in (1, 2, 3):
            call()
            process, number, threads = path.read_text().splitlines()[-1].split()
            assert (int(number), int(threads)) == (n, 3)
    assert int(process) != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_a_process_that_dies_is_reported_and_not_waited_for():
    with in_subprocess(_failing) as call, pytest.raises(RuntimeError, match="exit code 7"):
        call()
