"""What the commands share: options, errors, interruption and memory."""

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from types import FrameType
from typing import Annotated

import typer

EXIT_INPUT = 2
EXIT_DIVERGED = 3
EXIT_INTERRUPTED = 75


@contextmanager
def errors_explained() -> Iterator[None]:
    """A sentence for what a person can mend; a traceback only for what we must."""
    from meanteacher.core import DivergedError, InputError

    try:
        yield
    except InputError as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        raise typer.Exit(EXIT_INPUT) from error
    except DivergedError as error:
        typer.secho(f"Diverged: {error}", fg="red", err=True)
        raise typer.Exit(EXIT_DIVERGED) from error


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


# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Ask the C library not to return freed memory to the system; a twelfth of a CPU step goes into asking for it back.

    A step frees every activation it made. As the library comes, large ones go back to the system at once, and the next
    step gets them anew page by page, each one cleared: 10,000 page faults per step (docs/experiments/freed-memory.md).
    The peak stays the same. Only glibc, which most of Linux uses, can be asked. Commands do this, an import never does.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            # What is larger is a mapping of its own, which goes back when it is freed.
            if not mallopt(_M_MMAP_THRESHOLD, 2**30):
                mallopt(_M_MMAP_THRESHOLD, 2**25)  # the most that glibc takes before 2.35
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def recipe_names() -> list[str]:
    """Every recipe's name, for the shell: from a list, because the recipes themselves import torch."""
    return files("meanteacher").joinpath("recipes", "names.txt").read_text(encoding="utf-8").split()


DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="Where to compute; auto: a GPU if there is one (or what MEANTEACHER_DEVICE says), to resume the kind it "
        "was started on.",
        autocompletion=lambda: ["auto", "cpu", "cuda", "mps"],
    ),
]


def said_device(device: str) -> list[str]:
    """The words of a command that resumes: auto takes the same kind of device by itself."""
    return [] if device == "auto" else ["--device", device]
