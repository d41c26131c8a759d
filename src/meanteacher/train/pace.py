"""Runs that have to end in time: which of their steps are taken, and which are left out."""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean


class Pace:
    """Chooses the next step of a run so that it ends in time: the one that is due, or a later one.

    While the run is in time no step is skipped, and its weights do not depend on the clock. Once it is late, the steps
    ahead are thinned out until there is time for those that remain, so that the schedules still reach their ends.
    """

    _RECENT = 16
    """Steps that the speed is estimated from. Only the faster half counts: an evaluation, or a reading of the vitals,
    does not make a run late."""
    _FAR_OFF = 4.0

    def __init__(
        self, *, steps: int, seconds_per_step: float, ends: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.steps, self.planned, self.ends, self.clock = steps, seconds_per_step, ends, clock
        self.last_step_began: float | None = None
        self._recent: deque[float] = deque(maxlen=self._RECENT)

    def __call__(self, due: int) -> int:
        now = self.clock()
        if self.last_step_began is not None:
            self._recent.append(now - self.last_step_began)
        self.last_step_began = now
        possible = (self.ends - now) / self._seconds_per_step()
        left = self.steps - due
        if possible >= left:
            return due
        return due + math.ceil(left / max(possible, 1.0)) - 1

    def _seconds_per_step(self) -> float:
        faster_half = sorted(self._recent)[: max(1, len(self._recent) // 2)]
        if len(self._recent) >= self._RECENT // 2:
            return fmean(faster_half)
        # The first steps are slower than most, but not by so much.
        return faster_half[0] if faster_half and faster_half[0] > self._FAR_OFF * self.planned else self.planned
