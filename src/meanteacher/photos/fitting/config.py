"""The options of a fit, and the callback that prints its progress."""

import math
import sys
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


class PrintedProgress(Callback):
    """Plain lines on standard error."""

    _run = ""

    def on_message(self, sentence: str) -> None:
        sys.stderr.write(f"{sentence}\n")

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            self.on_message(f"{finding.severity.capitalize()}: {finding.sentence}")

    def on_run(self, name: str, steps: int) -> None:
        self._run = name
        self.on_message(f"{name}: {steps:,} steps")

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.on_message(f"{self._run}: step {evaluation.step:,}, error {percent(evaluation.teacher)}")

    def on_alarm(self, alarm: Alarm) -> None:
        self.on_message(f"{self._run}: step {alarm.step:,}, alarm: {alarm.sentence}")
