"""Times that can be compared on a noisy machine: contenders take turns, medians of rounds are compared."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Contenders = Mapping[str, Callable[[], object]]
Compare = Callable[[Contenders], dict[str, Timing]]
"""`interleaved` with its number of rounds."""


def interleaved(
    contenders: Contenders,
    *,
    rounds: int,
    at_least: float = 0.02,
    announce: Callable[[str], None] = lambda line: None,
) -> dict[str, Timing]:
    """Time each contender once per round, in turn, so that other load on the machine affects all of them.

    Args:
        contenders: name -> what to time
        rounds: how often; the first call of each, which may compile or allocate, is not counted
        at_least: seconds per measurement: quick calls are repeated and their mean counts
        announce: called with the state of the measurement
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
    """The median over rounds of one contender's time divided by another's: a slow round cancels out."""
    pairs = zip(timings[above].seconds, timings[below].seconds, strict=True)
    return statistics.median(a / b for a, b in pairs)


def _timed(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


@contextmanager
def in_subprocess(
    make: Callable[..., Callable[[], object]], *args: Any, threads: int | None = None
) -> Iterator[Callable[[], None]]:
    """Yields a function that calls `make(*args)()` in a new process and waits for it.

    The new process inherits the number of threads, if none is given, and no other setting, such as the configuration of
    malloc.
    `make` is called once, when the process starts, and `args` are pickled.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, threads or torch.get_num_threads(), make, args))
    process.start()
    there.close()

    def call() -> None:
        here.send(None)
        wait()

    def wait() -> None:
        try:
            here.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"The process of a contender ended with exit code {process.exitcode}.") from None

    try:
        wait()
        yield call
    finally:
        here.close()
        process.join()


def _serve(
    requests: Connection, threads: int, make: Callable[..., Callable[[], object]], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    with suppress(EOFError, KeyboardInterrupt):  # the pipe is closed, or the user interrupts all processes
        call = make(*args)
        requests.send(None)
        while True:
            requests.recv()
            call()
            requests.send(None)
