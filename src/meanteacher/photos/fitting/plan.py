"""The plan of a fit: how large the network, how many steps and threads, so that training ends in time."""

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from meanteacher.core import InputError
from meanteacher.photos.features.extraction import MAX_VIEWS, n_weak_views
from meanteacher.photos.folder.find import Photos
from meanteacher.records import Plan, runs_of

FEWEST_STEPS = 60
"""Below this a run learns next to nothing."""
REFUSAL_SECONDS = 12.0
"""A fit is refused for lack of time within so many seconds of its start; later it ends with the best model it can."""
WIDTHS = (0.25, 0.5, 1.0)
FEW_STEPS = 1500
"""Below this a narrower network, which makes more of them in the same time, ends with the lower error."""
_RESERVE = 0.08
"""Share of the time kept free, since the machine may be busier later than while it was measured."""
_READINGS = 6
"""Steps of a short run whose time the vitals double, since they read the gradients of each cost."""
ROWS = 192
"""Rows of a batch of a network from scratch."""
_MANY_LABELS = 1000
"""From here on labelled rows get the weak view: better with 4000 labels, worse with 300 (docs/experiments/fit.md)."""


def shorter_side(photos: Photos, shapes: np.ndarray | None) -> int:
    """The shorter side of arrays in pixels, or the median over files, whose `shapes` are [N, 2], zeros if unknown."""
    if shapes is None:
        assert photos.arrays is not None
        return int(min(photos.arrays.shape[1:3]))
    known = shapes[shapes.min(1) > 0]
    return int(np.median(known.min(1))) if len(known) else 32


def image_size(side: int) -> int:
    """The side that images are resized to from scratch: the largest of 32, 64 and 96 that most of them fill.

    >>> image_size(28), image_size(70), image_size(1000)
    (32, 64, 96)
    """
    return max((size for size in (32, 64, 96) if size <= side), default=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How fast this machine trains at its present load."""

    threads: int
    """With the shortest step: on a busy machine one thread can be faster than two."""
    seconds_per_step: dict[float, dict[str, float]]
    """width -> method -> seconds, for the widths that were measured, the narrowest first."""


def make_plan(
    machine: Machine,
    *,
    minutes: float,
    spent: float,
    overhead: float,
    size: int,
    flip: bool,
    n_rounds: int,
    n_images: int,
    n_labelled: int,
) -> Plan:
    """The widest network that can take enough steps in the time that is left.

    `spent` are the seconds used already, and `overhead` those that each run takes in addition to its steps.
    """
    plans: list[Plan] = []
    runs = runs_of(n_rounds)
    for width, cost in machine.seconds_per_step.items():
        per_step = sum(cost[method] for method in runs)
        left = 60 * minutes * (1 - _RESERVE) - spent - len(runs) * overhead - prediction_seconds(cost, n_images)
        steps = max(1, int(left / per_step) - _READINGS)
        plan = Plan(
            minutes=minutes,
            size=size,
            width=width,
            steps=steps,
            flip=flip,
            weak_labelled_view=n_labelled >= _MANY_LABELS,
            threads=machine.threads,
            seconds=steps * per_step,
            seconds_per_step=cost,
            seconds_per_image=prediction_seconds(cost, 1),
            n_rounds=n_rounds,
        )
        if not plans or steps >= FEW_STEPS:
            plans.append(plan)
    return plans[-1]


SIZES = (96, 128, 160, 192, 224)
"""Sides in pixels that photos may have for a pretrained network: larger ones take longer and are seen better."""
REFERENCE_SIZE = 160
"""Side of the images whose speed is measured; the time grows like the area."""
SMALL = 48
"""Images of at most this side may be digits or letters, on which a network from scratch can be better."""
_SMALL_SIZE = 160
"""Small images gain nothing from being enlarged further."""
_FEATURES_SHARE, _TAIL_FEATURES_SHARE = 0.8, 0.3
"""Largest share of the remaining time for features: for runs on the classifier alone, whose time is subtracted first,
and for runs on more layers."""
_STRONG = 1.4
"""Times that a strong view takes, of the photo itself."""
_RUN_SECONDS = 2.0
"""That a run on the classifier alone takes in addition to its steps."""
_TAIL_VIEWS = 4
"""Fewer are too few for more layers than the classifier, which would learn them by heart."""
_PASSES, _HEAD_STEPS, _TAIL_STEPS = 25, (200, 1200), (80, 600)
"""Times that a run sees every photo; and the fewest and most steps of a run, on the classifier or on more layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpeed:
    """How fast this machine computes a pretrained network at its present load."""

    threads: dict[int, int]
    """cut -> threads with the shortest step."""
    size: int | None
    """The only one that the network takes, if so."""
    images_per_second: float
    """Through all layers at `REFERENCE_SIZE`, or at its only size, by all threads."""
    head_cut: int
    """Where all layers are frozen but the classifier."""
    seconds_per_step: dict[int, dict[str, float]]
    """cut -> method -> seconds at the size of the images measured, for the cuts that were tried."""
    bytes_per_view: dict[int, int]
    """cut -> of the features of one photo of that size."""

    def seconds(self, n_images: int, size: int) -> float:
        return n_images / self.images_per_second * self._area(size)

    def bytes(self, cut: int, size: int) -> float:
        return self.bytes_per_view[cut] * self._area_at(cut, size)

    def per_step(self, cut: int, size: int) -> dict[str, float]:
        """method -> seconds, for photos of this size."""
        return {method: cost * self._area_at(cut, size) for method, cost in self.seconds_per_step[cut].items()}

    def _area(self, size: int) -> float:
        return (size / (self.size or REFERENCE_SIZE)) ** 2

    def _area_at(self, cut: int, size: int) -> float:
        return 1.0 if cut == self.head_cut else self._area(size)


def _head_steps(n_images: int) -> int:
    """The steps of a run on the classifier alone."""
    fewest, most = _HEAD_STEPS
    return min(most, max(fewest, _PASSES * n_images // ROWS))


def backbone_size(speed: BackboneSpeed, *, seconds: float, n_images: int, n_runs: int, side: int) -> int:
    """The largest side of photos at which one view of each, and the predictions, take their share of the seconds.

    Larger photos lower the error more than further views, even where files are enlarged
    (docs/experiments/backbones.md). `n_runs` are expected, and `side` is the shorter one of the files.
    """
    if speed.size is not None:
        return speed.size
    allowed = [size for size in SIZES if size <= _SMALL_SIZE or side > SMALL]
    per_run = _RUN_SECONDS + _head_steps(n_images) * fmean(speed.seconds_per_step[speed.head_cut].values())
    left = seconds * (1 - _RESERVE) - n_runs * per_run
    fast = [size for size in allowed if speed.seconds(2 * n_images, size) < _FEATURES_SHARE * left]
    return max(fast, default=SIZES[0])


def _passes(n_views: int) -> float:
    """How many times as long as the photo itself all its views take: the strong ones are drawn first."""
    n_weak = n_weak_views(n_views)
    return n_weak + _STRONG * (n_views - n_weak)


def make_backbone_plan(
    speed: BackboneSpeed,
    *,
    backbone: str,
    minutes: float,
    seconds: float,
    overhead: float,
    size: int,
    flip: bool,
    n_rounds: int,
    n_images: int,
    room: int,
) -> Plan:
    """The deepest cut, and as many views and steps, that the time allows.

    `seconds` are left of the minutes, `overhead` are those that each run takes in addition to its steps, and `room` is
    the number of bytes that the features may take.
    """
    per_view = speed.seconds(n_images, size)
    seconds = seconds * (1 - _RESERVE) - per_view  # the predictions
    runs = runs_of(n_rounds)
    fixed_seconds = len(runs) * (overhead + _RUN_SECONDS)
    plans: list[Plan] = []
    for tried in sorted(speed.seconds_per_step, reverse=True):
        cost = speed.per_step(tried, size)
        fitting = int(room / (n_images * speed.bytes(tried, size)))
        on_head = tried == speed.head_cut
        per_step = sum(cost[method] for method in runs)
        share = _TAIL_FEATURES_SHARE * seconds
        if on_head:
            share = _FEATURES_SHARE * (seconds - fixed_seconds - _head_steps(n_images) * per_step)
        affordable = max((n for n in range(1, MAX_VIEWS + 1) if _passes(n) <= share / per_view), default=1)
        n_views = max(1, min(fitting, affordable))
        looking = per_view * _passes(n_views)
        possible = int((seconds - looking - fixed_seconds) / per_step) - _READINGS
        fewest, most = (_HEAD_STEPS[0], _head_steps(n_images)) if on_head else _TAIL_STEPS
        steps = max(1, min(most, possible))
        plan = Plan(
            minutes=minutes,
            size=size,
            steps=steps,
            flip=flip,
            backbone=backbone,
            cut=tried,
            n_views=n_views,
            threads=speed.threads[tried],
            seconds=looking + steps * per_step,
            seconds_per_step=cost,
            seconds_per_image=per_view / n_images,
            n_rounds=n_rounds,
        )
        if not plans or (steps >= fewest and n_views >= _TAIL_VIEWS):
            plans.append(plan)
    return plans[-1]


def check_enough(speed: Machine | BackboneSpeed, *, minutes: float, spent: float, n_images: int) -> None:
    """Refuse minutes in which even the least work gives next to no model, and say how many are enough.

    A fit that has already taken more than a few seconds is not refused: it ends with the best model that it can.
    """
    if spent >= REFUSAL_SECONDS:
        return
    if isinstance(speed, Machine):
        cost = next(iter(speed.seconds_per_step.values()))
        needed = FEWEST_STEPS / 2 * sum(cost.values()) + prediction_seconds(cost, n_images) + spent
    else:
        needed = speed.seconds(2 * n_images, speed.size or SIZES[0]) + spent
    if needed > 60 * minutes:
        raise InputError(
            f"{minutes:g} minutes are too few for {n_images:,} images on this machine at its present load. "
            f"Set minutes (--minutes) to at least {math.ceil(2 * needed / 60)}."
        )


def prediction_seconds(cost: dict[str, float], n_images: int) -> float:
    """For predicting all images at the end: predicting an image takes about a quarter of a training step on it."""
    return n_images * cost["mean-teacher"] / ROWS / 4
