"""The progress of a run, of many runs and of a fit: live bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from meanteacher.cli.console import make_bar, say
from meanteacher.formats import count, duration, percent
from meanteacher.records import Finding
from meanteacher.train import Alarm, Callback, Evaluation, LogEntry

_SECONDS_PER_LINE = 10.0
"""At least, between two plain lines of costs."""
_SECONDS_PER_SHARE = 60.0
"""The same between two lines about many runs."""
_STYLES = {"problem": "red", "warning": "yellow", "note": "cyan"}


class RunProgress(Callback):
    """Shows cost parts, the ramped weights, both errors, images per second and the time left."""

    def __init__(self, console: Console, title: str, *, steps: int, n_images: int = 0) -> None:
        self.console = console
        self.title = title
        self.steps = steps
        self.n_images = n_images
        self._errors = ""
        self._first: tuple[int, float] | None = None
        """Step and time of the first entry: a resumed run does not begin at zero."""
        self._last_line = time.monotonic()
        # The details get the width that is left, and are cut off at the end.
        details = TextColumn("{task.fields[details]}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        self._bar = make_bar(console, MofNCompleteColumn(), details, expand=True)
        self._task = self._bar.add_task(title, total=steps, details="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def on_log(self, entry: LogEntry) -> None:
        costs = [f"{name} {value:.3g}" for name, value in entry.costs.items()]
        weights = [f"weight {value:.3g}" for value in entry.weights.values()]
        rate = f"{entry.images_per_second:.0f} img/s"
        left = f"{self._time_left(entry)} left"
        details = "  ".join(part for part in (left, self._errors, *costs, *weights, rate) if part)
        self._bar.update(self._task, completed=entry.step, details=details)
        if not self.console.is_terminal and time.monotonic() - self._last_line >= _SECONDS_PER_LINE:
            self._print(f"step {entry.step}/{self.steps}  {details}")

    def on_evaluation(self, evaluation: Evaluation) -> None:
        student, teacher = (percent(error, self.n_images) for error in (evaluation.student, evaluation.teacher))
        self._errors = f"{evaluation.part} error: student {student}, teacher {teacher}"
        if not self.console.is_terminal:
            self._print(f"step {evaluation.step}/{self.steps}  {self._errors}")

    def on_alarm(self, alarm: Alarm) -> None:
        say(self.console, *alarm_parts(alarm.step, alarm.sentence))

    def _time_left(self, entry: LogEntry) -> str:
        """By the pace since the first entry, which includes the evaluations."""
        now = time.monotonic()
        self._first = self._first or (entry.step, now)
        step, began = self._first
        pace = (now - began) / (entry.step - step) if entry.step > step else entry.seconds_per_step
        minutes, seconds = divmod(round(pace * (self.steps - entry.step)), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"

    def _print(self, line: str) -> None:
        self._last_line = time.monotonic()
        say(self.console, f"{self.title}  {line}")


def alarm_parts(step: int, sentence: str) -> tuple[tuple[str, str], str]:
    """An alarm for `say`."""
    return ("Alarm", "bold red"), f" at step {step}: {sentence}"


class FitProgress(Callback):
    """Shows what a fit does, with the bar of `progress_bar` while it reads or predicts images."""

    def __init__(
        self, console: Console, show: Callable[[str, int, int], None], should_stop: Callable[[], bool]
    ) -> None:
        self._console, self._show, self._should_stop = console, show, should_stop
        self._run = ExitStack()
        self._shown = Callback()
        """The bar of the training run, until something else is reported."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.close()

    def on_message(self, sentence: str) -> None:
        self._run.close()
        say(self._console, sentence)

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        say_findings(self._console, findings)

    def on_progress(self, task: str, done: int, total: int) -> None:
        self._run.close()
        self._show(task, done, total)

    def on_run(self, name: str, steps: int) -> None:
        self._run.close()
        self._shown = self._run.enter_context(RunProgress(self._console, name, steps=steps))

    def on_log(self, entry: LogEntry) -> None:
        self._shown.on_log(entry)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._shown.on_evaluation(evaluation)

    def on_alarm(self, alarm: Alarm) -> None:
        self._shown.on_alarm(alarm)

    def should_stop(self) -> bool:
        return self._should_stop()


def say_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        say(console, (f"{finding.severity.capitalize()}:", _STYLES[finding.severity]), f" {finding.sentence}")


class RunsProgress(Callback):
    """One bar over all runs with the time that is left; plain lines if there is no terminal."""

    def __init__(self, console: Console, n_runs: int, should_stop: Callable[[], bool]) -> None:
        self._console, self._n, self._should_stop = console, n_runs, should_stop
        self._first: tuple[float, float] | None = None
        self._last_line = time.monotonic()
        self._bar = make_bar(
            console,
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[details]}", markup=False),
        )
        self._task = self._bar.add_task(count(self._n, "run"), total=1.0, details="")

    def __enter__(self) -> "RunsProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_progress(self, task: str, done: int, total: int) -> None:
        now, share = time.monotonic(), done / total
        self._first = self._first or (share, now)
        first, began = self._first
        left = f"{duration((1 - share) * (now - began) / (share - first))} left" if share > first else ""
        details = "  ".join(filter(None, (left, task)))
        self._bar.update(self._task, completed=share, details=details)
        if not self._console.is_terminal and now - self._last_line >= _SECONDS_PER_SHARE:
            self._last_line = now
            say(self._console, f"{percent(share)} of {count(self._n, 'run')}  {details}")

    def on_message(self, sentence: str) -> None:
        say(self._console, sentence)

    def should_stop(self) -> bool:
        return self._should_stop()
