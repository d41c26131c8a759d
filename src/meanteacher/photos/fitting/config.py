"""The options of a fit, and its progress in plain lines."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meanteacher.core import InputError, Resume
from meanteacher.records import Finding
from meanteacher.train import Callback

MIN_MINUTES = 1
_READING_SECONDS, _REFUSAL_SECONDS = 3.0, 12.0
"""Time of reading images before its speed is judged, and since the start after which a fit is not refused any more."""
_READING_SHARE = 0.5
"""Largest share of the minutes for reading images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """The arguments of `meanteacher.fit`, where each is explained."""

    photos: Path
    labels: Path | None = None
    minutes: float = 30
    out: Path = Path("fit")
    flip: bool | None = None
    group_by: str | None = None
    resume: Resume = False
    overwrite: bool = False
    device: str = "auto"
    backbone: str = "auto"

    def __post_init__(self) -> None:
        if not MIN_MINUTES <= self.minutes < math.inf:
            raise InputError(
                f"minutes (--minutes) must be at least {MIN_MINUTES}, got {self.minutes:g}. "
                "Less time gives no useful model."
            )
        if self.resume == "auto" and self.overwrite:
            raise InputError(
                "resume='auto' (--start-or-resume) continues the fit that overwrite=True (--overwrite) would replace. "
                "Give one of them."
            )


class PrintedProgress(Callback):
    """Plain lines on standard error."""

    def on_message(self, sentence: str) -> None:
        sys.stderr.write(f"{sentence}\n")

    def on_findings(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            self.on_message(f"{finding.severity.capitalize()}: {finding.sentence}")


class ReadingBudget:
    """Reports how many images are read, and refuses early when reading would leave too little time for learning."""

    def __init__(self, on_progress: Callable[[str, int, int], None], began: float, minutes: float) -> None:
        self.on_progress, self.minutes = on_progress, minutes
        self.began, self.reading = began, time.perf_counter()

    def __call__(self, done: int, n: int) -> None:
        self.on_progress("Reading images", done, n)
        now = time.perf_counter()
        took = now - self.reading
        if not took > _READING_SECONDS or now - self.began > _REFUSAL_SECONDS:
            return
        expected = took * n / done
        if expected > _READING_SHARE * 60 * self.minutes:
            raise InputError(
                f"Reading the {n:,} images would take about {max(1, round(expected / 60))} of the "
                f"{self.minutes:g} minutes ({done / took:.0f} images per second). Give smaller copies of "
                f"the images, or set minutes (--minutes) to at least {math.ceil(expected / _READING_SHARE / 60)}."
            )
