"""The time budget of a fit: the speed of this machine is measured first, and training keeps to the minutes given."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

import numpy as np
import torch

from meanteacher.core import InputError
from meanteacher.experiment import TrainingSpec, step_seconds
from meanteacher.models import LiteSpec
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.photos.fitting.plan import (
    FEW_STEPS,
    REFERENCE_SIZE,
    REFUSAL_SECONDS,
    ROWS,
    WIDTHS,
    BackboneSpeed,
    Machine,
)
from meanteacher.photos.fitting.stands import half_labelled, photo_training, trial_seconds
from meanteacher.records import FIT_METHODS, Plan, TimeSpent

_READING_SECONDS = 3.0
"""Time of reading images before its speed is estimated."""
_READING_SHARE = 0.5
"""Largest share of the minutes for reading images."""
_MEASURING_SHARE = 0.1
_MEASURING_SECONDS = 30.0
"""Measuring takes at most this share of the time, and at most so many seconds."""
_TRIAL_STEPS = 4
_TRIAL_IMAGES, _TRIAL_SECONDS = 8, 1.5
"""Images per batch and number of seconds for timing a pretrained network."""
_TAIL_MINUTES = 5
"""With fewer, only the last layer of a pretrained network is trained."""


class Timing:
    """How long each part of the work took."""

    def __init__(self, began: float) -> None:
        self.began = self.last = began
        self.parts: dict[str, float] = {}

    def end(self, name: str) -> float:
        """Note the end of a part. Returns its seconds."""
        now = time.perf_counter()
        took, self.last = now - self.last, now
        self.parts[name] = round(took, 1)
        return took

    def total(self) -> float:
        return time.perf_counter() - self.began

    def finish(self, name: str) -> TimeSpent:
        """Note the end of the last part. Returns the content of fit.json."""
        self.end(name)
        return TimeSpent(total_seconds=round(self.last - self.began, 1), parts=self.parts)


class ReadingBudget:
    """Reports how many images are read, and refuses early when reading would leave too little time for training."""

    def __init__(self, on_progress: Callable[[str, int, int], None], timing: Timing, minutes: float) -> None:
        self.on_progress, self.timing, self.minutes = on_progress, timing, minutes
        self.began = timing.total()

    def __call__(self, done: int, n: int) -> None:
        self.on_progress("Reading images", done, n)
        now = self.timing.total()
        if not now - self.began > _READING_SECONDS or now > REFUSAL_SECONDS:
            return
        expected = (now - self.began) * n / done
        if expected > _READING_SHARE * 60 * self.minutes:
            raise InputError(
                f"Reading the {n:,} images would take about {max(1, round(expected / 60))} of the "
                f"{self.minutes:g} minutes ({done / (now - self.began):.0f} images per second). Give smaller copies of "
                f"the images, or set minutes (--minutes) to at least {math.ceil(expected / _READING_SHARE / 60)}."
            )


StepSeconds = Callable[[TrainingSpec, int, float], list[float]]
"""A training, the number of threads and the seconds to spend -> how long each of a few steps takes."""


def measure_machine(
    *,
    minutes: float,
    size: int,
    n_classes: int,
    width: float | None = None,
    device: str = "auto",
    step_seconds_of: StepSeconds | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Machine:
    """Time real training steps on random images, for at most a tenth of the minutes and half a minute.

    The narrowest network comes first, since a slow machine has no time for another one. A wider one is tried while
    there is time left and the run could afford it. A given `width`, that of an earlier model, is the only one tried.
    Tests replace `step_seconds_of` and `clock`.
    """
    timed = step_seconds_of or _step_timer(size, n_classes, device)
    widths = WIDTHS if width is None else (width,)
    ends = clock() + min(_MEASURING_SHARE * 60 * minutes, _MEASURING_SECONDS)

    def seconds_of(method: str, width: float, threads: int, share: float) -> float:
        trial = Plan(minutes=minutes, size=size, width=width, steps=100_000, flip=True)
        seconds = timed(photo_training(trial, method), threads, max(0.0, ends - clock()) * share)
        return fmean(seconds[1:] or seconds)  # without the first step, which allocates

    by_threads: dict[int, float] = {}
    for threads in _thread_counts(torch.get_num_threads()):
        # More threads are tried while there is time left to measure the methods.
        if not by_threads or ends - clock() > 4 * min(by_threads.values()):
            by_threads[threads] = seconds_of("supervised", widths[0], threads, 0.25)
    threads = min(by_threads, key=lambda n: by_threads[n])

    found: dict[float, dict[str, float]] = {}
    for tried in widths:
        found[tried] = {}
        for method in FIT_METHODS:
            known = by_threads[threads] if (method, tried) == ("supervised", widths[0]) else None
            found[tried][method] = known or seconds_of(method, tried, threads, 0.5)
        both = sum(found[tried].values())
        # Twice the width takes two to four times as long.
        too_slow = 2 * FEW_STEPS * both > 60 * minutes
        if too_slow or clock() + 4 * both > ends:
            break
    return Machine(threads=threads, seconds_per_step=found)


def measure_backbone(
    backbone: Backbone, *, minutes: float, n_classes: int, cut: int | None = None, device: torch.device
) -> BackboneSpeed:
    """Time the frozen layers and steps behind each cut, or the given one, for at most a tenth of the minutes."""
    ends = time.perf_counter() + min(_MEASURING_SHARE * 60 * minutes, _MEASURING_SECONDS)
    only_size = None if isinstance(backbone.spec, LiteSpec) else backbone.size
    side = only_size or REFERENCE_SIZE
    network = backbone.network()
    compute = computing(network, (3, side, side), np.float32, device)
    images = np.zeros((_TRIAL_IMAGES, 3, side, side), np.float32)
    with one_network_per_thread() as (pool, n_threads):
        list(pool.map(compute, [images[:1]] * n_threads))
        began, n_done = time.perf_counter(), 0
        while n_done == 0 or time.perf_counter() - began < _TRIAL_SECONDS:
            list(pool.map(compute, [images] * n_threads))
            n_done += n_threads * _TRIAL_IMAGES
        images_per_second = n_done / (time.perf_counter() - began)
    found: dict[int, dict[str, float]] = {}
    n_bytes: dict[int, int] = {}
    best_threads: dict[int, int] = {}
    for tried in [cut] if cut else reversed(backbone.cuts):
        left = ends - time.perf_counter()
        if found and (left < _TRIAL_SECONDS or minutes < _TAIL_MINUTES):
            break
        with torch.inference_mode():
            shape = network[:tried](torch.zeros(1, 3, side, side)).shape[1:]
        n_bytes[tried] = 2 * math.prod(shape)
        # A step on the classifier alone is too short to share among threads.
        counts = _thread_counts(torch.get_num_threads()) if tried < backbone.cuts[-1] else [1]
        for threads in counts:
            with limited_threads(threads):
                share = max(0.0, left) / 4 / len(counts)
                found_now = trial_seconds(backbone, tried, shape, n_classes, seconds=share, device=str(device))
            if tried not in found or sum(found_now.values()) < sum(found[tried].values()):
                found[tried], best_threads[tried] = found_now, threads
    return BackboneSpeed(
        threads=best_threads,
        size=only_size,
        head_cut=backbone.cuts[-1],
        images_per_second=images_per_second,
        seconds_per_step=found,
        bytes_per_view=n_bytes,
    )


def _thread_counts(most: int) -> list[int]:
    """The candidates: half of the threads, all but one (another process may be busy), and all; the fewest first.

    >>> _thread_counts(1), _thread_counts(2), _thread_counts(8)
    ([1], [1, 2], [4, 7, 8])
    """
    return sorted({max(1, most // 2), max(1, most - 1), most})


def _step_timer(size: int, n_classes: int, device: str) -> StepSeconds:
    """Times steps on random pixels: how long a step takes does not depend on what an image shows."""
    shape, draws = (2 * ROWS, 3, size, size), torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)
    data, split = half_labelled(images, images[:1], n_classes)

    def timed(training: TrainingSpec, threads: int, seconds: float) -> list[float]:
        with limited_threads(threads):
            return step_seconds(training, data=data, split=split, seconds=seconds, most=_TRIAL_STEPS, device=device)

    return timed


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Let torch compute on so many threads, and on as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
