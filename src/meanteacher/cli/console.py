"""What all commands do alike: messages, exit codes, progress bars and interruption."""

import ctypes
import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from meanteacher.core import DivergedError, FirstRankError, InputError, Interrupted, LostRankError
from meanteacher.formats import escape_name

LAUNCHER_VARIABLE = "MEANTEACHER_LAUNCHER"
"""Environment variable with the number of the process that started this one with --nproc."""
_LONGEST = 2000
"""Most characters of a message."""
_KINDS: dict[type[Exception], str] = {LostRankError: "Lost", DivergedError: "Diverged"}
"""Error -> the first word of its message."""


def say(console: Console, *parts: str | tuple[str, str]) -> None:
    """Print one line without wrapping it; a part is plain text, or text and its style."""
    styled = [(part, "") if isinstance(part, str) else part for part in parts]
    console.print(Text.assemble(*((escape_name(text), style) for text, style in styled)), soft_wrap=True)


def cell(name: str) -> Text:
    """A name in a table. It may come from an untrusted file, so control characters are escaped."""
    return Text(escape_name(name))


def _report(kind: str, error: object) -> None:
    text = escape_name(str(error))
    # Names in files can be long; the beginning and the end of a message contain the error and the way out.
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    typer.secho(f"{kind}: {shown}", fg="red", err=True)


def is_first_rank() -> bool:
    """Whether this process prints and writes for all processes that train together."""
    from meanteacher.distributed import found_in

    return found_in(os.environ).is_first


@contextmanager
def exit_codes(command: Sequence[str], *, resume: bool) -> Iterator[None]:
    """Turn the errors that a user can fix into a message and an exit code. Others keep their traceback.

    After an interruption, the words of the command are printed again, with --resume if it takes that.
    """
    try:
        yield
    except (InputError, LostRankError, DivergedError) as error:
        kind = _KINDS.get(type(error), "Error")
        # What all processes meet together is reported, by message and exit code, by rank 0.
        if isinstance(error, FirstRankError) or (kind == "Diverged" and not is_first_rank()):
            raise typer.Exit from error
        _report(kind, error)
        raise typer.Exit(error.exit_code) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # nobody reads the output any more
            raise
        where = f" {error.filename}" if error.filename else ""
        _report(
            "Error", f"cannot use{where} ({error.strerror or error}). Check the path, its permissions and the disk."
        )
        raise typer.Exit(InputError.exit_code) from error
    except Interrupted as error:
        words = [word for word in command if word not in {"--resume", "--overwrite"}]
        console = Console(quiet=not is_first_rank())
        say(console, "Interrupted; nothing is lost. Resume with:")
        again = ["--resume"] if resume and "--start-or-resume" not in words else []
        say(console, "  " + shlex.join([*words, *again]))
        raise typer.Exit(error.exit_code if is_first_rank() else 0) from error


def _is_orphaned() -> bool:
    launcher = os.environ.get(LAUNCHER_VARIABLE)
    return launcher is not None and os.getppid() != int(launcher)


@contextmanager
def graceful_stop(console: Console) -> Iterator[Callable[[], bool]]:
    """Yields whether a signal to stop has arrived, or --nproc has ended. A second signal ends the process at once.

    The signals are those of Ctrl-C, of a scheduler (SIGTERM, SIGUSR1) and of a terminal that is closed (SIGHUP, unless
    `nohup` has it ignored).
    """
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(number, before[signal.Signals(number)])
        with suppress(OSError):  # the terminal may be gone
            say(console, "Stopping; press Ctrl-C again to stop at once.")

    # Windows has fewer.
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
    heard = [n for n in numbers if n.name != "SIGHUP" or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield lambda: stopped or _is_orphaned()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_bar(console: Console, *columns: ProgressColumn, transient: bool = False, expand: bool = False) -> Progress:
    """The bar of all commands, followed by these columns. It is hidden if the output is not a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        *columns,
        console=console,
        transient=transient,
        expand=expand,
        disable=not console.is_terminal,
    )


@contextmanager
def progress_bar(console: Console, *columns: ProgressColumn) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of (description, done, total), which shows a bar from its first call until all is done."""
    bar = make_bar(console, *(columns or (MofNCompleteColumn(), TimeRemainingColumn())), transient=True)
    task = bar.add_task("")

    def show(description: str, done: int, total: int) -> None:
        if not bar.live.is_started:
            bar.reset(task, description=description, total=total)
            bar.start()
        bar.update(task, description=description, completed=done, total=total)
        if done >= total:
            bar.stop()

    try:
        yield show
    finally:
        bar.stop()


# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_malloc() -> None:
    """Let the C library keep freed memory for the next step: a CPU step takes 8 % less time, at the same peak memory.

    By default glibc returns the large activations to the system at the end of a step, and the next step gets them back
    page by page, each one cleared: 10,000 page faults per step (docs/experiments/freed-memory.md). Other C libraries
    have no such setting. Commands do this; an import never does.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            # Larger blocks are mappings of their own, which are returned when they are freed.
            if not mallopt(_M_MMAP_THRESHOLD, 2**30):
                mallopt(_M_MMAP_THRESHOLD, 2**25)  # the maximum of glibc before 2.35
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
