"""Ctrl-C and SIGTERM: finish the step, save, say how to resume."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def graceful_stop(announce: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Yields whether a stop was asked for. A second signal ends the process at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, before[signal.Signals(number)])
        announce()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
