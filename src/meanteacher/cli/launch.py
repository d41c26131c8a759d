"""Start a command in several processes, and start them again after a failure."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console

from meanteacher.cli.console import LAUNCHER_VARIABLE, graceful_stop
from meanteacher.core import DivergedError, InputError, Interrupted, LostRankError

_NOT_AGAIN = (InputError.exit_code, DivergedError.exit_code, Interrupted.exit_code)
"""Exit codes that another try would not change."""
_RESTARTS = 3
_POLL_SECONDS = 0.2


def start_processes(n: int) -> bool:
    """Run this command in n processes, and return when all are done; False if this process is to run it.

    If one is killed or fails, all are started again, a few times: they continue from the last checkpoint.
    """
    if n == 1 or "RANK" in os.environ:
        return False
    # Nobody else can read or write this folder, so nobody else can join.
    with TemporaryDirectory(prefix="meanteacher-") as folder, graceful_stop(Console(quiet=True)) as should_stop:
        for attempt in range(1 + _RESTARTS):
            if attempt:
                typer.secho(f"A process has failed: starting all {n} again.", fg="yellow", err=True)
            code = _run(n, attempt, Path(folder), should_stop)
            if code != LostRankError.exit_code or should_stop():
                break
    if code:
        raise typer.Exit(code)
    return True


def _run(n: int, attempt: int, folder: Path, should_stop: Callable[[], bool]) -> int:
    """The exit code of n processes: that of a user's error if there is one, else 0 if all had it."""
    from torch.distributed.elastic import multiprocessing as elastic

    logging.getLogger(elastic.api.__name__).setLevel(logging.CRITICAL)  # the processes report their errors themselves
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGQUIT")  # the others are handled here
    errors = dict.fromkeys(range(1, n), elastic.Std.ERR)
    processes = elastic.start_processes(
        "meanteacher",
        sys.executable,
        args=dict.fromkeys(range(n), _command()),
        envs={rank: _environment(rank, n, attempt, folder) for rank in range(n)},
        logs_specs=elastic.DefaultLogsSpecs(str(folder / f"logs-{attempt}"), redirects=errors),
    )
    try:
        to_stop = list(processes.pids().values())
        while (result := processes.wait(0)) is None:
            while to_stop and should_stop():
                with suppress(ProcessLookupError):
                    os.kill(to_stop.pop(), signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
    finally:
        processes.close()
    codes = {rank: failure.exitcode for rank, failure in sorted(result.failures.items())}
    if codes.get(0) not in _NOT_AGAIN:
        # Rank 0 prints for all, unless it does not know what has happened.
        for text in {Path(result.stderrs[rank]).read_text(errors="replace") for rank in codes if rank}:
            typer.echo(text, err=True, nl=False)
    return next((code for code in codes.values() if code in _NOT_AGAIN), LostRankError.exit_code if codes else 0)


def _command() -> tuple[str, ...]:
    return "-m", "meanteacher", *sys.argv[1:]


def _environment(rank: int, n: int, attempt: int, folder: Path) -> dict[str, str]:
    from meanteacher.distributed import STORE_VARIABLE, own_cores

    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(n)),
        STORE_VARIABLE: str(folder / "store"),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, own_cores() // n)),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL") or "ERROR",  # no advice about its own engine
        LAUNCHER_VARIABLE: str(os.getpid()),
    }
