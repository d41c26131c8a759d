"""The pieces of work of a fit: which are done, how long each took, and whether the next one can finish in time."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch

from meanteacher.core import InputError, Progress
from meanteacher.files import reporting_full_disk, write_json
from meanteacher.files.typed import read_json
from meanteacher.records import WORK_FILE, WorkRecord
from meanteacher.train import Callback

_READING_SECONDS, _REFUSAL_SECONDS = 3.0, 12.0
"""Time of reading images before its speed is judged, and since the start after which a fit is not refused any more."""
_READING_SHARE = 0.5
"""Largest share of the minutes for reading images."""
_SLOWER = 1.25
"""Times that a piece may take longer than the one before it suggests: other programs come and go."""


class Work:
    """The time of a fit and work.json, which says what a resumed fit need not do again.

    Nothing is measured in advance: a piece of work starts only if it can finish in the time that is left, judged by the
    pieces before it.
    """

    def __init__(
        self, folder: Path, record: WorkRecord, *, began: float, callback: Callback, device: torch.device
    ) -> None:
        self.folder, self.cache, self.record = folder, folder / "cache", record
        self.callback, self.device = callback, device
        self._began = began - record.spent

    @property
    def ends(self) -> float:
        """When the minutes are over, by `time.perf_counter`."""
        return self._began + 60 * self.record.minutes

    def spent(self) -> float:
        return time.perf_counter() - self._began

    def fits(self, *seconds: float) -> bool:
        """Whether pieces that are expected to take these seconds can finish in time."""
        return time.perf_counter() + _SLOWER * sum(seconds) < self.ends

    def reading(self) -> Progress:
        """Reports how many images are read, and refuses early when reading would leave too little time for learning."""
        start = time.perf_counter()

        def progress(done: int, n: int) -> None:
            self.callback.on_progress("Reading images", done, n)
            now = time.perf_counter()
            took = now - start
            if not took > _READING_SECONDS or now - self._began > _REFUSAL_SECONDS:
                return
            expected, minutes = took * n / done, self.record.minutes
            if expected > _READING_SHARE * 60 * minutes:
                raise InputError(
                    f"Reading the {n:,} images would take about {max(1, round(expected / 60))} of the {minutes:g} "
                    f"minutes ({done / took:.0f} images per second). Give smaller copies of the images, or set minutes "
                    f"(--minutes) to at least {math.ceil(expected / _READING_SHARE / 60)}."
                )

        return progress

    @contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Do a piece of work, and note how long it took: the longest time, if it was resumed or repeated."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.note({})
        took = time.perf_counter() - began
        self.note({name: max(round(took, 2), self.took(name))})

    def took(self, name: str) -> float:
        """The seconds of a piece; 0 if it is not done."""
        return self.record.pieces.get(name, 0.0)

    def note(self, pieces: dict[str, float], *, finished: bool = False) -> None:
        """Save the time spent, these pieces, and whether the fit is finished."""
        everything = {**self.record.pieces, **pieces}
        self.record = replace(self.record, pieces=everything, spent=round(self.spent(), 2), finished=finished)
        with reporting_full_disk(self.folder):
            write_json(self.folder / WORK_FILE, asdict(self.record))


def read_work(folder: Path) -> WorkRecord | None:
    """What an earlier fit in this folder has done; None if none has started."""
    path = folder / WORK_FILE
    return read_json(path, WorkRecord, "Start again with overwrite=True (--overwrite).") if path.exists() else None
