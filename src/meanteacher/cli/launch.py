"""Start a command in several processes, and start them again after a failure."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import typer
from rich.console import Console

from meanteacher.cli.console import LAUNCHER_VARIABLE, graceful_stop
from meanteacher.core import DivergedError, InputError, Interrupted, LostRankError

_NOT_AGAIN = (InputError.exit_code, DivergedError.exit_code, Interrupted.exit_code)
"""Exit codes that another try would not change."""
_RESTARTS = 3
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0
"""Time for the other processes to end, after one has ended."""


def start_processes(n: int) -> bool:
    """Run this command in n processes, and return when all are done; False if this process is to run it.

    If one is killed or fails, all are started again, a few times: they continue from the last checkpoint.
    """
    if n == 1 or "RANK" in os.environ:
        return False
    with graceful_stop(Console(quiet=True)) as should_stop:
        for attempt in range(1 + _RESTARTS):
            if attempt:
                typer.secho(f"A process has failed: starting all {n} again.", fg="yellow", err=True)
            code = _run(n, attempt, should_stop)
            if code != LostRankError.exit_code or should_stop():
                break
    if code:
        raise typer.Exit(code)
    return True


def _run(n: int, attempt: int, should_stop: Callable[[], bool]) -> int:
    """The exit code of n processes: that of a user's error if there is one, else 0 if all had it."""
    port, processes = _free_port(), []
    try:
        for rank in range(n):
            processes.append(_start(rank, n, port, attempt))
        deadline, told = float("inf"), False
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            if should_stop() and not told:
                told = True
                for process in processes:
                    process.send_signal(signal.SIGTERM)
            if any(process.returncode is not None for process in processes):
                deadline = min(deadline, time.monotonic() + _PATIENCE_SECONDS)
            time.sleep(_POLL_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    final = [code for code in codes if code in _NOT_AGAIN]
    return final[0] if final else LostRankError.exit_code if any(codes) else 0


def _start(rank: int, n: int, port: int, attempt: int) -> "subprocess.Popen[bytes]":
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // n))
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "OMP_NUM_THREADS": threads,
        LAUNCHER_VARIABLE: str(os.getpid()),
    }
    # Ctrl-C reaches this process alone, which then tells all of them.
    command = [sys.executable, "-m", "meanteacher", *sys.argv[1:]]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
