"""Runs in processes of their own, several at a time: what one of them breaks, the others do not notice."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meanteacher.core import InputError, Interrupted
from meanteacher.experiment.runs import Run
from meanteacher.files import append_to, last_lines, write_atomic
from meanteacher.train import Callback
from meanteacher.train.execution import RunOptions
from meanteacher.train.loggers import LoggerName

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 120.0
"""For a run to save and end, before it is killed."""
_WHOLE = 10_000
"""All work of all runs, for `Callback.on_progress`."""
_Running = dict[Run, "subprocess.Popen[bytes]"]


def command_options(
    data: Path | str | None, options: RunOptions, nproc: int = 1, log: LoggerName | None = None
) -> list[str]:
    """The words that the commands of all runs have in common."""
    words = [*([] if data is None else ["--data", str(data)]), *options.flags()]
    words += ["--nproc", str(nproc)] if nproc > 1 else []
    return words + ([] if log is None else ["--log", log])


def printed_commands(runs: Sequence[Run], options: Sequence[str]) -> list[str]:
    """One line per run that is not complete, for any scheduler."""
    return [shlex.join(["meanteacher", *run.arguments(), *options]) for run in runs if run.state() != "complete"]


def written(out: Path, contents: Mapping[str, str | bytes]) -> tuple[Path, ...]:
    """Write files, by their names, into the folder of all runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return tuple(write_atomic(out / name, content) for name, content in contents.items())
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error}. Give another folder with --out.") from error


@dataclass(frozen=True, eq=False)
class Trained:
    """What many runs show, as far as they are complete."""

    text: str
    """For a terminal."""
    files: tuple[Path, ...]
    problems: tuple[str, ...]
    """One sentence for each run that failed."""
    unfinished: int
    """Runs that are not complete."""


@dataclass(slots=True, eq=False, kw_only=True)
class Workers:
    """Runs what is missing, `jobs` at a time. A run that another process has taken is waited for."""

    runs: Sequence[Run]
    options: Sequence[str]
    """Options of every command, such as --data and --device, see `command_options`."""
    jobs: int = 1
    nproc: int = 1
    """Processes that train one run together; they share the run's part of the cores."""
    callback: Callback = field(default_factory=Callback)
    """Reports progress about twice per second and a sentence per run that ends; may stop all runs."""
    problems: dict[Run, str] = field(default_factory=dict)

    def run_all(self) -> tuple[str, ...]:
        """Return one sentence for each run that failed when all others are complete.

        If one is refused, the others would be, too.
        """
        if self.jobs < 1:
            raise InputError(f"jobs is at least 1, got {self.jobs}.")
        waiting = deque(run for run in self.runs if run.state() != "complete")
        running: _Running = {}
        try:
            while waiting or running:
                if self.callback.should_stop():
                    raise Interrupted(f"Interrupted; {len(waiting) + len(running)} runs are not complete.")
                self._start(waiting, running)
                time.sleep(_POLL_SECONDS)
                for run in [run for run, process in running.items() if process.poll() is not None]:
                    self._ended(run, running.pop(run).returncode, waiting)
                titles = ", ".join(run.title for run in running)
                self.callback.on_progress(titles, round(_WHOLE * self._share()), _WHOLE)
        finally:
            _stop(list(running.values()))
        return tuple(self.problems.values())

    def _start(self, waiting: "deque[Run]", running: "_Running") -> None:
        for _ in range(len(waiting)):
            if len(running) >= self.jobs:
                return
            run = waiting.popleft()
            state = run.state()
            if state == "running":
                waiting.append(run)
            elif state != "complete":
                running[run] = self._process(run)

    def _process(self, run: Run) -> "subprocess.Popen[bytes]":
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // (self.jobs * self.nproc)))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
        try:
            run.log.parent.mkdir(parents=True, exist_ok=True)
            log = append_to(run.log)
        except OSError as error:
            raise InputError(f"Cannot write to {run.log.parent}: {error}. Give another folder with --out.") from error
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "meanteacher", *run.arguments(), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C reaches this process alone, which then tells the runs to save.
                start_new_session=True,
            )

    def _ended(self, run: Run, code: int, waiting: "deque[Run]") -> None:
        state = run.state()
        if state == "complete":
            self.callback.on_message(f"Complete: {run.title}")
        elif state == "running" or code == Interrupted.exit_code:
            waiting.append(run)  # another process was faster, or somebody stopped this one alone
        else:
            said = next(filter(None, map(str.strip, last_lines(run.log))), "")
            if code == InputError.exit_code:
                raise InputError(f"{run.title}: {said.removeprefix('Error: ')}")
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self.problems[run] = f"{run.title} {how}: {said or 'it said nothing'} (more in {run.log})"
            self.callback.on_message(f"Failed: {self.problems[run]}")

    def _share(self) -> float:
        whole = done = 0
        for run in self.runs:
            weight = run.recipe.training.steps
            complete = run in self.problems or run.record.exists()
            whole += weight
            done += weight if complete else min(weight, run.steps_done())
        return done / whole if whole else 1.0


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Let every run save and end."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    ends = time.monotonic() + _PATIENCE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
