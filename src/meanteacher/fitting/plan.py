"""The plan of a fit: how large the network, how many steps and threads, so that training ends in time."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from meanteacher.core import InputError
from meanteacher.costs import Confident
from meanteacher.data import Fixed, TrainTest
from meanteacher.data.download import Progress
from meanteacher.experiment import DataSpec, Recipe
from meanteacher.files import write_json
from meanteacher.formats import count
from meanteacher.models import FastNetSpec, ModelSpec
from meanteacher.recipes.fast import fast_methods, fast_optim, fast_views, weak_labelled_view
from meanteacher.views import PerChannel

METHODS = ("supervised", "mean-teacher")
FEWEST_STEPS = 60
"""Below this a run learns next to nothing."""
WIDTHS = (0.25, 0.5, 1.0)
FEW_STEPS = 1500
"""Below this a narrower network, which makes more of them in the same time, ends with the lower error."""
_RESERVE = 0.08
"""Share of the time kept free, since the machine may be busier later than while it was measured."""
_READINGS = 6
"""Steps of a short run whose time the vitals double, since they read the gradients of each cost."""
_LABELLED_ROWS, ROWS = 96, 192
"""Of a batch. The labelled rows limit the first half of a short run: with a quarter of the rows labelled it ends no
better than without any unlabelled ones."""
_MANY_LABELS = 1000
"""From here on labelled rows get the weak view: better with 4000 labels, worse with 300 (docs/experiments/fit.md)."""
_COST = Confident(threshold=0.8, temperature=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about the training runs that the time decides. Written to plan.json, and read from it to resume."""

    minutes: float
    size: int
    width: float
    steps: int
    flip: bool
    weak_labelled_view: bool = False
    """Whether labelled rows get no RandAugment; "gentle" in plan.json and fit.json."""
    threads: int = 1
    seconds_per_step: dict[str, float] = field(default_factory=dict)
    """By method."""
    seconds: float = 0.0
    """Expected, for all runs."""
    n_rounds: int = 1
    """1 with a held-out part; with folds, one per fold and a last one on all labels."""

    @property
    def network(self) -> FastNetSpec:
        return FastNetSpec(width=self.width)

    def runs(self) -> list[str]:
        """The method of each run, in order. The last run, on all labels, is counted as the more expensive method."""
        if self.n_rounds == 1:
            return list(METHODS)
        folds = self.n_rounds - 1
        return [method for method in METHODS for _ in range(folds)] + [METHODS[-1]]

    def sentence(self) -> str:
        threads = count(self.threads, "thread")
        return (
            f"Training {len(self.runs())} networks for {self.steps:,} steps each (FastNet at width {self.width:g}, "
            f"images of {self.size}x{self.size} pixels, {threads}): about {max(1, round(self.seconds / 60))} min."
        )

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return fields | {"gentle": fields.pop("weak_labelled_view")}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Plan":
        fields = dict(content)
        return Plan(weak_labelled_view=fields.pop("gentle"), **fields)


def image_size(shapes: np.ndarray | None, native: int | None = None) -> int:
    """The side that images are resized to: the largest of 32, 64 and 96 that most of them fill.

    `shapes` are the widths and heights of files, [N, 2], zeros where unknown; `native` the shorter side of arrays.
    """
    if shapes is not None:
        known = shapes[shapes.min(1) > 0]
        native = int(np.median(known.min(1))) if len(known) else 32
    assert native is not None
    return max((side for side in (32, 64, 96) if side <= native), default=32)


@dataclass(frozen=True)
class OwnPhotos:
    """The source of a recipe on a user's own photos, identified by their contents; `fit` itself loads them."""

    fingerprint: str

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        raise InputError("A recipe on one's own photos can only be run by meanteacher fit, which loads them.")


def photo_recipe(plan: Plan, method: str, *, fingerprint: str, model: ModelSpec | None = None) -> Recipe:
    """The fast recipe of a method for these photos. Both methods see the same number of labelled images per step.

    `fingerprint` is that of the photos and labels; `model` is an earlier one to continue, instead of a new network.
    """
    rows = _LABELLED_ROWS if method == "supervised" else ROWS
    return Recipe(
        name=f"fit/{method}",
        data=DataSpec(source=OwnPhotos(fingerprint), n_labelled=None),
        model=model or plan.network,
        method=fast_methods(plan.steps, cost=_COST, weight=1.0, ramp=0.1)[method],
        normalise=PerChannel(),
        views=fast_views(plan.size, flip=plan.flip),
        labelled_view=weak_labelled_view(plan.size, flip=plan.flip) if plan.weak_labelled_view else None,
        batch=Fixed(size=rows, labelled=_LABELLED_ROWS, unlabelled_pool="all"),
        optim=fast_optim(plan.steps),
        steps=plan.steps,
        evaluate_every=max(1, plan.steps // 5),
        seeds=(0,),
    )


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

    Args:
        machine: its measured speed
        minutes: that the fit may take
        spent: seconds used already, for measuring and for reading the images
        overhead: seconds that each run takes in addition to its steps
        size: of the images
        flip: whether they may be mirrored
        n_rounds: as in `Plan`
        n_images: to be predicted at the end
        n_labelled: how many of them have a label
    """
    plans: list[Plan] = []
    for width, cost in machine.seconds_per_step.items():
        plan = Plan(
            minutes=minutes,
            size=size,
            width=width,
            steps=1,
            flip=flip,
            weak_labelled_view=n_labelled >= _MANY_LABELS,
            threads=machine.threads,
            seconds_per_step=cost,
            n_rounds=n_rounds,
        )
        runs = plan.runs()
        per_step = sum(cost[method] for method in runs)
        left = 60 * minutes * (1 - _RESERVE) - spent - len(runs) * overhead - prediction_seconds(cost, n_images)
        steps = max(1, int(left / per_step) - _READINGS)
        if not plans or steps >= FEW_STEPS:
            plans.append(replace(plan, steps=steps, seconds=steps * per_step))
    return plans[-1]


def check_enough(machine: Machine, *, minutes: float, spent: float, n_images: int) -> None:
    """Refuse minutes in which even the narrowest network learns next to nothing, and say how many are enough."""
    cost = next(iter(machine.seconds_per_step.values()))
    needed = FEWEST_STEPS / 2 * sum(cost.values()) + prediction_seconds(cost, n_images) + spent
    if needed > 60 * minutes:
        raise InputError(
            f"{minutes:g} minutes are too few for {n_images:,} images on this machine at its present load. "
            f"Set minutes (--minutes) to at least {math.ceil(2 * needed / 60)}."
        )


def prediction_seconds(cost: dict[str, float], n_images: int) -> float:
    """For predicting all images at the end: predicting an image takes about a quarter of a training step on it."""
    return n_images * cost["mean-teacher"] / ROWS / 4


class PlanFile:
    """plan.json of a fit: the plan, the seconds used so far, and what must be unchanged to resume."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "plan.json"

    def exists(self) -> bool:
        return self.path.exists()

    def write(self, plan: Plan, *, fingerprint: str, spent: float, device: str) -> None:
        about = {"fingerprint": fingerprint, "spent": spent, "device": device, "plan": plan.to_json()}
        write_json(self.path, about)

    def device(self) -> str:
        """The kind of device that the fit was started on; versions that did not record it had only the CPU."""
        return str(self._saved().get("device", "cpu"))

    def read(self, fingerprint: str) -> tuple[Plan, float]:
        """The plan, and the seconds used so far.

        Raises:
            InputError: the file is damaged, or belongs to other photos.
        """
        saved = self._saved()
        try:
            plan, spent = Plan.from_json(saved["plan"]), float(saved["spent"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        if saved.get("fingerprint") != fingerprint:
            raise InputError(
                f"The photos or their labels are not those that {self.folder} was begun with. "
                "Restore them to resume, or start again with overwrite=True (--overwrite)."
            )
        return plan, spent

    def _saved(self) -> dict[str, Any]:
        try:
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(saved, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError) as error:
            raise self._damaged(error) from error
        return saved

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.path} is damaged ({error}). Start again with overwrite=True (--overwrite).")
