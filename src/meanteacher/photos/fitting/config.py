"""What a fit is asked to do, and the callback that follows it."""

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from meanteacher.core import InputError
from meanteacher.formats import percent
from meanteacher.records import Finding
from meanteacher.train import Alarm, Callback, Evaluation

MIN_MINUTES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """The arguments of `meanteacher.fit`, where each is explained."""

    photos: Path
    labels: Path | None = None
    minutes: float = 30
    out: Path = Path("fit")
    flip: bool | None = None
    start: Path | None = None
    resume: bool | None = False
    overwrite: bool = False
    device: str = "auto"
    backbone: str = "auto"

    def __post_init__(self) -> None:
        if not MIN_MINUTES <= self.minutes < math.inf:
            raise InputError(
                f"minutes (--minutes) must be at least {MIN_MINUTES}, got {self.minutes:g}. "
                "Less time gives no useful model."
            )
        if self.resume is None and self.overwrite:
            raise InputError(
                "resume=None (--start-or-resume) continues the fit that overwrite=True (--overwrite) would replace. "
                "Give one of them."
            )


class FitCallback:
    """Follows a fit. Every method does nothing: override those that you need.

    >>> class Messages(FitCallback):
    ...     def on_message(self, sentence):
    ...         print(sentence)
    >>> Messages().on_message("Reading 200 photos.")
    Reading 200 photos.
    """

    def on_message(self, sentence: str) -> None:
        """What happens next, or what a user should know, in a sentence."""

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        """After the images are read: what is wrong or remarkable about them."""

    def on_progress(self, task: str, done: int, total: int) -> None:
        """While images are read or predicted."""

    def on_run(self, name: str, steps: int) -> AbstractContextManager[Callback]:
        """Before each training run. Returns a context whose value follows the run."""
        return nullcontext(Callback())

    def should_stop(self) -> bool:
        """Asked after every step. True saves the fit and raises `Interrupted`."""
        return False


class PrintedProgress(FitCallback, Callback):
    """Plain lines on standard error."""

    _run = ""

    def on_message(self, sentence: str) -> None:
        sys.stderr.write(f"{sentence}\n")

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            self.on_message(f"{finding.severity.capitalize()}: {finding.sentence}")

    def on_run(self, name: str, steps: int) -> AbstractContextManager[Callback]:
        self._run = name
        self.on_message(f"{name}: {steps:,} steps")
        return nullcontext(self)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.on_message(f"{self._run}: step {evaluation.step:,}, error {percent(evaluation.teacher)}")

    def on_alarm(self, alarm: Alarm) -> None:
        self.on_message(f"{self._run}: step {alarm.step:,}, alarm: {alarm.sentence}")
