"""Callbacks follow runs, fits and streams: they show or record what happens, and may stop it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meanteacher.core import InputError
from meanteacher.files import append_to, read_regular, remove, reporting_full_disk, write_atomic
from meanteacher.records import Alarm, Evaluation, RecordedRecipe

_MAX_BYTES = 1 << 30
"""Largest size of metrics.jsonl, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """Means over the steps since the last entry."""

    step: int
    """Steps done."""
    costs: dict[str, float]
    weights: dict[str, float]
    learning_rate: float
    images_per_second: float
    seconds_per_step: float
    """Without the evaluations."""


class Callback:
    """Follows a run, a fit, a table or a stream. Every method does nothing: override those that you need.

    >>> class Errors(Callback):
    ...     def on_evaluation(self, evaluation):
    ...         print(f"step {evaluation.step}: {evaluation.teacher:.1%}")
    >>> Errors().on_evaluation(Evaluation(step=50, part="test", student=0.25, teacher=0.125))
    step 50: 12.5%
    """

    def on_message(self, sentence: str) -> None:
        """Before a part of a fit or table, or after a run of it: what happens, in a sentence."""

    def on_findings(self, findings: tuple[Any, ...]) -> None:
        """After a fit has read its images: what is wrong or remarkable about them, as `Finding`s."""

    def on_progress(self, task: str, done: int, total: int) -> None:
        """While a fit reads or predicts images, or the runs of a table are trained."""

    def on_start(self, recipe: RecordedRecipe, seed: int) -> None:
        """Before the first step of a run, or of its continuation: its recipe with all fields, and its seed."""

    def on_log(self, entry: LogEntry) -> None:
        """Every few steps: mean costs, their weights, the learning rate and the speed."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """After each evaluation: the errors of student and teacher."""

    def on_alarm(self, alarm: Alarm) -> None:
        """When the vitals find that something is wrong; once per kind and run."""

    def should_stop(self) -> bool:
        """Asked after every step, on every process. True saves a checkpoint and ends the work, to be resumed."""
        return False

    def is_satisfied(self) -> bool:
        """Asked after every evaluation. True completes the run at this step: it is recorded as if it were its last."""
        return False


class StopWhen(Callback):
    """Stops when a function returns True.

    >>> StopWhen(lambda: True).should_stop()
    True
    """

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def should_stop(self) -> bool:
        return self._should_stop()


class EarlyStop(Callback):
    """Completes a run when the teacher's error is low enough, or no longer falls.

    Errors are those of the evaluations: on validation images if the recipe holds some out. A run that was stopped by
    its test errors has a test error that is too low. A resumed run counts its evaluations anew.

    Args:
        error: complete the run at an error of at most this
        patience: complete the run after so many evaluations in a row without a lower error than before

    Raises:
        InputError: neither is given, or patience is below 1.

    >>> stop = EarlyStop(error=0.1)
    >>> stop.on_evaluation(Evaluation(step=50, part="validation", student=0.25, teacher=0.09))
    >>> stop.is_satisfied()
    True
    """

    def __init__(self, *, error: float | None = None, patience: int | None = None) -> None:
        if (error is None and patience is None) or (patience is not None and patience < 1):
            raise InputError(f"Give an error, or a patience of at least 1; got error={error}, patience={patience}.")
        self.error, self.patience = error, patience
        self._errors: list[float] = []

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._errors.append(evaluation.teacher)

    def is_satisfied(self) -> bool:
        if not self._errors:
            return False
        since_best = len(self._errors) - 1 - self._errors.index(min(self._errors))
        is_low = self.error is not None and self._errors[-1] <= self.error
        return is_low or (self.patience is not None and since_best >= self.patience)


class MetricsFile(Callback):
    """Writes metrics.jsonl: one JSON object per line, each with its event and step."""

    def __init__(self, path: Path, *, from_step: int = 0) -> None:
        self.path = path
        self._drop_after(from_step)

    def on_log(self, entry: LogEntry) -> None:
        self._append("log", entry)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._append("evaluation", evaluation)

    def on_alarm(self, alarm: Alarm) -> None:
        self._append("alarm", alarm)

    def _append(self, event: str, entry: LogEntry | Evaluation | Alarm) -> None:
        with reporting_full_disk(self.path), append_to(self.path) as file:
            file.write(json.dumps({"event": event, **asdict(entry)}).encode() + b"\n")

    def _drop_after(self, step: int) -> None:
        """Remove what a killed run wrote after its last checkpoint: the resumed run writes it again."""
        try:
            lines = read_regular(self.path, _MAX_BYTES).splitlines()
        except FileNotFoundError:
            remove(self.path)  # a link to nowhere
            return
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}). Move it away, and resume.") from error
        with reporting_full_disk(self.path):
            write_atomic(self.path, b"".join(line + b"\n" for line in lines if _is_before(line, step)))


def _is_before(line: bytes, step: int) -> bool:
    """Whether it is an entry from before `step` steps were done, and not the line that was being written at the end."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(entry, dict) or type(at := entry.get("step")) is not int:
        return False
    # An alarm names the step that raised it, which is not done yet; other entries count the steps that are.
    return at < step if entry.get("event") == "alarm" else at <= step
