"""The progress of a run, of many runs and of a fit: live bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, ProgressColumn, TextColumn, TimeElapsedColumn
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


class _Bar(Callback):
    """A bar with details after it; if the output is not a terminal, plain lines in its place."""

    def __init__(self, console: Console, title: str, total: float, *columns: ProgressColumn) -> None:
        self.console = console
        self.title = title
        self._first: tuple[float, float] | None = None
        """The progress and the time of the first report: resumed work does not begin at zero."""
        self._last_line = time.monotonic()
        # The details get the width that is left, and are cut off at the end.
        details = TextColumn("{task.fields[details]}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        self._bar = make_bar(console, *columns, details, expand=True)
        self._task = self._bar.add_task(title, total=total, details="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _pace(self, done: float) -> float | None:
        """Seconds per unit of progress since the first report; None at the first one."""
        now = time.monotonic()
        self._first = self._first or (done, now)
        first, began = self._first
        return (now - began) / (done - first) if done > first else None

    def _report(self, done: float, details: str, line: str, *, every: float) -> None:
        """Show the details, or print the line if the last one is `every` seconds old."""
        self._bar.update(self._task, completed=done, details=details)
        if time.monotonic() - self._last_line >= every:
            self._print(line)

    def _print(self, line: str) -> None:
        if not self.console.is_terminal:
            self._last_line = time.monotonic()
            say(self.console, line)


class RunProgress(_Bar):
    """Shows cost parts, the ramped weights, both errors, images per second and the time left."""

    def __init__(self, console: Console, title: str, *, steps: int, n_images: int = 0) -> None:
        super().__init__(console, title, steps, MofNCompleteColumn())
        self.steps = steps
        self.n_images = n_images
        self._errors = ""

    def on_log(self, entry: LogEntry) -> None:
        costs = [f"{name} {value:.3g}" for name, value in entry.costs.items()]
        weights = [f"weight {value:.3g}" for value in entry.weights.values()]
        pace = self._pace(entry.step) or entry.seconds_per_step  # the former includes the evaluations
        minutes, seconds = divmod(round(pace * (self.steps - entry.step)), 60)
        left = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"
        rate = f"{entry.images_per_second:.0f} img/s"
        details = "  ".join(part for part in (left, self._errors, *costs, *weights, rate) if part)
        self._report(entry.step, details, self._line(entry.step, details), every=_SECONDS_PER_LINE)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        student, teacher = (percent(error, self.n_images) for error in (evaluation.student, evaluation.teacher))
        self._errors = f"{evaluation.part} error: student {student}, teacher {teacher}"
        self._print(self._line(evaluation.step, self._errors))

    def on_alarm(self, alarm: Alarm) -> None:
        say(self.console, *alarm_parts(alarm.step, alarm.sentence))

    def _line(self, step: int, words: str) -> str:
        return f"{self.title}  step {step}/{self.steps}  {words}"


def alarm_parts(step: int, sentence: str) -> tuple[tuple[str, str], str]:
    """An alarm for `say`."""
    return ("Alarm", "bold red"), f" at step {step}: {sentence}"


class FitProgress(Callback):
    """Shows what a fit does, with the bar of `progress_bar` while it reads or predicts images."""

    def __init__(
        self, console: Console, show: Callable[[str, int, int], None], should_stop: Callable[[], bool]
    ) -> None:
        self._console, self._show, self._should_stop = console, show, should_stop

    def on_message(self, sentence: str) -> None:
        say(self._console, sentence)

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        say_findings(self._console, findings)

    def on_progress(self, task: str, done: int, total: int) -> None:
        self._show(task, done, total)

    def should_stop(self) -> bool:
        return self._should_stop()


def say_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        say(console, (f"{finding.severity.capitalize()}:", _STYLES[finding.severity]), f" {finding.sentence}")


class RunsProgress(_Bar):
    """One bar over all runs with the time that is left."""

    def __init__(self, console: Console, n_runs: int, should_stop: Callable[[], bool]) -> None:
        columns = TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()
        super().__init__(console, count(n_runs, "run"), 1.0, *columns)
        self._should_stop = should_stop

    def on_progress(self, task: str, done: int, total: int) -> None:
        share = done / total
        pace = self._pace(share)
        left = f"{duration((1 - share) * pace)} left" if pace else ""
        details = "  ".join(filter(None, (left, task)))
        self._report(share, details, f"{percent(share)} of {self.title}  {details}", every=_SECONDS_PER_SHARE)

    def on_message(self, sentence: str) -> None:
        say(self.console, sentence)

    def should_stop(self) -> bool:
        return self._should_stop()
