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

from meanteacher.core import InputError, Interrupted
from meanteacher.files import append_to, last_lines
from meanteacher.paper.runs import Run
from meanteacher.train import Callback

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 120.0
"""For a run to save and end, before it is killed."""
_WHOLE = 10_000
"""All work of all runs, for `Callback.on_progress`."""


@dataclass(slots=True, eq=False)
class _Worker:
    run: Run
    process: subprocess.Popen[bytes]


def command_of(run: Run, options: Sequence[str]) -> list[str]:
    """The words of the command that starts or continues a run, after `meanteacher`."""
    return [*run.arguments(), *options]


def printed_commands(runs: Sequence[Run], options: Sequence[str]) -> list[str]:
    """One line per run that is not complete, for any scheduler."""
    return [shlex.join(["meanteacher", *command_of(run, options)]) for run in runs if run.state() != "complete"]


@dataclass(slots=True, eq=False, kw_only=True)
class Workers:
    """Runs what is missing, `jobs` at a time. A run that another process has taken is waited for."""

    runs: Sequence[Run]
    jobs: int
    options: Sequence[str]
    """Of every command: --data, --device."""
    callback: Callback
    """Reports progress about twice per second and a sentence per run that ends; may stop all runs."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """recipe -> of a run, to weigh its steps against those of others."""
    problems: dict[Run, str] = field(default_factory=dict)

    def run_all(self) -> None:
        """Return when every run is complete or has failed.

        Raises:
            InputError: a run was refused: others would be, too.
            Interrupted: by the callback; everything is saved.
        """
        waiting = deque(run for run in self.runs if run.state() != "complete")
        running: list[_Worker] = []
        try:
            while waiting or running:
                if self.callback.should_stop():
                    raise Interrupted(f"Interrupted; {len(waiting) + len(running)} runs are not complete.")
                self._start(waiting, running)
                time.sleep(_POLL_SECONDS)
                for worker in [worker for worker in running if worker.process.poll() is not None]:
                    running.remove(worker)
                    self._ended(worker, waiting)
                self.callback.on_progress(
                    ", ".join(worker.run.title for worker in running), round(_WHOLE * self._share()), _WHOLE
                )
        finally:
            _stop(running)

    def _start(self, waiting: "deque[Run]", running: list[_Worker]) -> None:
        for _ in range(len(waiting)):
            if len(running) >= self.jobs:
                return
            run = waiting.popleft()
            state = run.state()
            if state == "running":
                waiting.append(run)
            elif state != "complete":
                running.append(_Worker(run, self._process(run)))

    def _process(self, run: Run) -> "subprocess.Popen[bytes]":
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        try:
            run.log.parent.mkdir(parents=True, exist_ok=True)
            log = append_to(run.log)
        except OSError as error:
            raise InputError(f"Cannot write to {run.log.parent}: {error}. Give another folder with --out.") from error
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "meanteacher", *command_of(run, self.options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C reaches this process alone, which then tells the runs to save.
                start_new_session=True,
            )

    def _ended(self, worker: _Worker, waiting: "deque[Run]") -> None:
        run, code = worker.run, worker.process.returncode
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
        whole = done = 0.0
        for run in self.runs:
            weight = self.seconds.get(run.recipe.name, run.recipe.training.steps)
            complete = run in self.problems or run.record.exists()
            whole += weight
            done += weight * (1.0 if complete else min(1.0, run.steps_done() / run.recipe.training.steps))
        return done / whole if whole else 1.0


def _stop(running: Sequence[_Worker]) -> None:
    """Let every run save and end."""
    for worker in running:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
    ends = time.monotonic() + _PATIENCE_SECONDS
    for worker in running:
        try:
            worker.process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
