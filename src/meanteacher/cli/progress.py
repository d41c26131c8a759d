"""A run as it goes: a live bar on a terminal, plain lines anywhere else."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from meanteacher.data import TrainTest
from meanteacher.data.download import data_folder
from meanteacher.recipes import Recipe
from meanteacher.train import Alarm, Evaluation, LogEntry

_QUIET_SECONDS = 10.0
"""Between two plain lines."""


def load_data(console: Console, recipe: Recipe, folder: Path | None) -> TrainTest:
    """The recipe's data, with a bar for what has to be downloaded."""
    bar = Progress(
        TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console, transient=True
    )
    task = bar.add_task("", total=None, visible=False)
    with bar:
        return recipe.data.source.load(
            data_folder(folder),
            lambda done, total: bar.update(task, completed=done, total=total, visible=True),
        )


class RunProgress:
    """Shows cost parts, the ramped weights, both errors, images per second and the time left."""

    def __init__(self, console: Console, title: str, *, steps: int, from_step: int = 0) -> None:
        self.console = console
        self.title = title
        self.steps = steps
        self._errors = ""
        self._last_line = time.monotonic()
        self._began, self._from = time.monotonic(), from_step
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(escape(title), total=steps, completed=from_step, details="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def on_log(self, entry: LogEntry) -> None:
        costs = "  ".join(f"{name} {value:.3g}" for name, value in entry.costs.items())
        weights = "  ".join(f"weight {value:.3g}" for value in entry.weights.values())
        details = "  ".join(filter(None, [costs, weights, self._errors, f"{entry.images_per_second:.0f} img/s"]))
        self._bar.update(self._task, completed=entry.step, details=escape(details))
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line >= _QUIET_SECONDS:
            self._last_line = now
            pace = (now - self._began) / max(entry.step - self._from, 1)
            left = time.strftime("%H:%M:%S", time.gmtime(pace * (self.steps - entry.step)))
            self._print(f"step {entry.step}/{self.steps}  {details}  {left} left")

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._errors = f"{evaluation.part} error: student {evaluation.student:.2%}, teacher {evaluation.teacher:.2%}"
        if not self.console.is_terminal:
            self._last_line = time.monotonic()
            self._print(f"step {evaluation.step}/{self.steps}  {self._errors}")

    def on_alarm(self, alarm: Alarm) -> None:
        self.console.print(f"[bold red]Alarm[/] at step {alarm.step}: {escape(alarm.sentence)}", soft_wrap=True)

    def _print(self, line: str) -> None:
        self.console.print(escape(f"{self.title}  {line}"), soft_wrap=True, highlight=False)
