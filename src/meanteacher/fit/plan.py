"""A plan that fits the time: how large the images and the network, and how many steps."""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from meanteacher.core import InputError
from meanteacher.costs import Confident
from meanteacher.data import Fixed, Split, TrainTest
from meanteacher.data.download import Progress
from meanteacher.models import FastNet, ModelSpec
from meanteacher.recipes import DataSpec, Recipe, run
from meanteacher.recipes.fast import fast_methods, fast_optim, fast_views
from meanteacher.train import Alarm, Evaluation, LogEntry
from meanteacher.views import PerChannel

METHODS = ("supervised", "mean-teacher")
_WIDTHS = (1.0, 0.5, 0.25)
_FEW_STEPS = 1500
"""Below this a narrower network, which makes more of them in the same time, ends with the lower error."""
_FEWEST_STEPS = 60
_RESERVE = 0.08
"""Of the time, for what cannot be foreseen: a machine that is busier later than while it was measured."""
_TRIAL_STEPS = 20
_LABELLED_ROWS, _ROWS = 96, 192
"""Of a batch. In a short run it is the labelled ones that limit the first half: with a quarter of the rows labelled it
ends no better than without any unlabelled ones."""
_MANY_LABELS = 1000
"""From here on labelled images are spared the strong view: 4000 are learnt better so, 300 worse (decision 11)."""
_COST = Confident(threshold=0.8, temperature=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about the training runs that the time decides. Written to plan.json, and read from it to resume."""

    minutes: float
    size: int
    width: float
    steps: int
    flip: bool
    gentle: bool
    """Whether images that show their label are changed less."""
    seconds_per_step: dict[str, float]
    """By method."""
    seconds: float
    """Expected, for all runs."""
    n_rounds: int
    """Runs of each method: one with a held-out part, one a fold and a last one on all labels otherwise."""

    def sentence(self) -> str:
        rounds = "" if self.n_rounds == 1 else f" in each of {self.n_rounds} rounds"
        return (
            f"Images of {self.size}x{self.size} pixels, FastNet at width {self.width:g}, {self.steps} steps of "
            f"Mean Teacher and of supervised-only{rounds}: about {max(1, round(self.seconds / 60))} min of training."
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def image_size(shapes: np.ndarray | None, native: int | None = None) -> int:
    """The side that images are brought to: the largest of 32, 64 and 96 that most of them fill.

    Args:
        shapes: [N, 2], width and height of files; zeros where unknown
        native: the shorter side of an array's images
    """
    if shapes is not None:
        known = shapes[shapes.min(1) > 0]
        native = int(np.median(known.min(1))) if len(known) else 32
    assert native is not None
    return max((side for side in (32, 64, 96) if side <= native), default=32)


@dataclass(frozen=True)
class OwnPhotos:
    """The source of a recipe on a person's own images: named by their contents, loaded by `fit` alone."""

    fingerprint: str

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        raise InputError("A recipe on one's own photos is run by meanteacher fit.")


def photo_recipe(plan: Plan, method: str, *, fingerprint: str, model: ModelSpec | None = None) -> Recipe:
    """The fast recipe of a method for these images. Both see as many labelled images; Mean Teacher sees others, too.

    Args:
        plan: how large and how long
        method: "supervised" or "mean-teacher"
        fingerprint: of the images and labels
        model: to go on from, instead of a new network
    """
    return Recipe(
        name=f"fit/{method}",
        data=DataSpec(source=OwnPhotos(fingerprint), n_labelled=None),
        model=model or FastNet(width=plan.width),
        method=fast_methods(plan.steps, cost=_COST, weight=1.0, ramp=0.1)[method],
        normalise=PerChannel(),
        views=fast_views(plan.size, flip=plan.flip, gentle=plan.gentle),
        batch=Fixed(
            size=_LABELLED_ROWS if method == "supervised" else _ROWS,
            labelled=_LABELLED_ROWS,
            unlabelled_pool="all",
        ),
        optim=fast_optim(plan.steps),
        steps=plan.steps,
        evaluate_every=max(1, plan.steps // 5),
        seeds=(0,),
    )


def make_plan(
    *,
    minutes: float,
    spent: float,
    size: int,
    flip: bool,
    n_rounds: int,
    n_images: int,
    data: TrainTest,
    split: Split,
    width: float | None = None,
    device: str = "auto",
    seconds_of: Callable[[Recipe, TrainTest, Split], float] | None = None,
) -> Plan:
    """Measure this machine on the network for a few seconds, and share out what is left of the time.

    Args:
        minutes: that the person grants
        spent: seconds used already, for reading the images
        size: of the images
        flip: whether they may be mirrored
        n_rounds: runs of each method
        n_images: to be predicted at the end
        data: as the first run will have it
        split: likewise
        width: of the network, where it is given by an earlier model
        device: where to compute
        seconds_of: measures the seconds a step of a recipe takes; another one for tests

    Raises:
        InputError: the minutes do not suffice for anything useful; says how many would.
    """
    measure = seconds_of or partial(seconds_per_step, device=device)
    began = time.perf_counter()
    widths = _WIDTHS if width is None else (width,)
    for tried in widths:
        plan = Plan(
            minutes=minutes,
            size=size,
            width=tried,
            steps=_TRIAL_STEPS,
            flip=flip,
            gentle=len(split.labelled) >= _MANY_LABELS,
            seconds_per_step={},
            seconds=0.0,
            n_rounds=n_rounds,
        )
        is_last = tried == widths[-1]
        least = _FEWEST_STEPS if is_last else _FEW_STEPS
        cost: dict[str, float] = {}
        for name in METHODS:
            cost[name] = measure(photo_recipe(plan, name, fingerprint="trial"), data, split)
            # Predicting an image takes about a quarter of what training on it does.
            others = spent + time.perf_counter() - began + n_images * cost[name] / _ROWS / 4
            per_step = n_rounds * sum(cost.values())
            steps = int((60 * minutes * (1 - _RESERVE) - others) / per_step)
            if steps < least and not is_last:
                break  # too slow without a teacher already: measuring it with one would only cost time
        if steps >= least:
            return replace(plan, steps=steps, seconds_per_step=cost, seconds=steps * per_step)
    needed = (_FEWEST_STEPS * per_step + others) / (1 - _RESERVE) / 60
    raise InputError(
        f"{minutes:g} minutes are too few for {n_images} images on this machine. "
        f"Give at least {math.ceil(needed)} with --minutes."
    )


def seconds_per_step(recipe: Recipe, data: TrainTest, split: Split, *, device: str = "auto") -> float:
    """Of a few real steps, without the first ones, which are slower."""
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        run(recipe, seed=0, out=Path(folder) / "trial", data=data, split=split, device=device, listeners=(clock,))
    return median(clock.seconds[1:] or clock.seconds)


class _Clock:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_log(self, entry: LogEntry) -> None:
        self.seconds.append(entry.seconds_per_step)

    def on_evaluation(self, evaluation: Evaluation) -> None: ...

    def on_alarm(self, alarm: Alarm) -> None: ...
