"""Times that can be compared on a noisy machine: contenders take turns, medians of rounds are compared."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call took, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    at_least: float = 0.02,
    announce: Callable[[str], None] = lambda line: None,
) -> dict[str, Timing]:
    """Time each contender once a round, in turn, so that whatever else the machine does disturbs all alike.

    Args:
        contenders: name -> what to time
        rounds: how often; the first call of each, which may compile or allocate, is not counted
        at_least: seconds a measurement takes: quick calls are repeated and their mean counts
        announce: told what is going on
    """
    repeats = {}
    for name, call in contenders.items():
        announce(f"warming up: {name}")
        call()
        repeats[name] = max(1, round(at_least / max(_timed(call, 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        announce(f"round {number + 1} of {rounds}")
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(_timed(contenders[name], repeats[name]))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def ratio(timings: Mapping[str, Timing], above: str, below: str) -> float:
    """The median over rounds of one contender's time by another's: what a slow round does to both cancels."""
    pairs = zip(timings[above].seconds, timings[below].seconds, strict=True)
    return statistics.median(a / b for a, b in pairs)


def _timed(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats
