"""A contender in a process of its own, which takes turns with those of this one."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch


@contextmanager
def apart(make: Callable[..., Callable[[], object]], *args: Any) -> Iterator[Callable[[], None]]:
    """What `make(*args)` returns, called in a new process each time the yielded function is called here.

    The new process has nothing of what this one has set up for itself, such as how memory is kept, except its number
    of threads. It waits while it is not called.

    Args:
        make: found by its name, as everything that is sent to a new process
        args: of `make`, pickled
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, torch.get_num_threads(), make, args))
    process.start()
    there.close()

    def call() -> None:
        here.send(None)
        answer()

    def answer() -> None:
        try:
            here.recv()
        except EOFError:
            process.join()
            raise RuntimeError(f"The process of a contender ended with exit code {process.exitcode}.") from None

    try:
        answer()
        yield call
    finally:
        here.close()
        process.join()


def _serve(
    requests: Connection, threads: int, make: Callable[..., Callable[[], object]], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    with suppress(EOFError, KeyboardInterrupt):  # no more calls, or the user has seen enough of all contenders
        call = make(*args)
        requests.send(None)
        while True:
            requests.recv()
            call()
            requests.send(None)
