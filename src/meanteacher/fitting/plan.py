"""A plan that fits the time: how large the network, how many steps, on how many threads; and how to keep to it."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from meanteacher.classifier.bundle import load_bundle
from meanteacher.core import InputError, Problem
from meanteacher.costs import Confident
from meanteacher.data import Fixed, TrainTest
from meanteacher.data.download import Progress
from meanteacher.experiment import DataSpec, Recipe
from meanteacher.files import write_json
from meanteacher.models import FastNetSpec, ModelSpec
from meanteacher.recipes.fast import fast_methods, fast_optim, fast_views
from meanteacher.views import PerChannel

METHODS = ("supervised", "mean-teacher")
FEWEST_STEPS = 60
"""Below this a run learns next to nothing."""
WIDTHS = (0.25, 0.5, 1.0)
FEW_STEPS = 1500
"""Below this a narrower network, which makes more of them in the same time, ends with the lower error."""
_RESERVE = 0.08
"""Of the time, for what cannot be foreseen: a machine that is busier later than while it was measured."""
_READINGS = 6
"""Steps of a short run whose time the vitals double, since they read the gradients of each cost."""
_LABELLED_ROWS, ROWS = 96, 192
"""Of a batch. In a short run it is the labelled ones that limit the first half: with a quarter of the rows labelled it
ends no better than without any unlabelled ones."""
_MANY_LABELS = 1000
"""From here on labelled rows do not get the strong view: better with 4000 labels, worse with 300
(docs/experiments/fit.md)."""
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
    threads: int
    seconds_per_step: dict[str, float]
    """By method."""
    seconds: float
    """Expected, for all runs."""
    n_rounds: int
    """Runs of each method: one with a held-out part, one a fold and a last one on all labels otherwise."""

    def runs(self) -> list[str]:
        """The method of each run, in order; the last of several rounds, on all labels, may be of the cheaper one."""
        if self.n_rounds == 1:
            return list(METHODS)
        folds = self.n_rounds - 1
        return [method for method in METHODS for _ in range(folds)] + [METHODS[-1]]

    def sentence(self) -> str:
        rounds = "" if self.n_rounds == 1 else f" in each of {self.n_rounds} rounds"
        return (
            f"Images of {self.size}x{self.size} pixels, FastNet at width {self.width:g}, {self.steps:,} steps of "
            f"Mean Teacher and of supervised-only{rounds}, on {self.threads} "
            f"{'thread' if self.threads == 1 else 'threads'}: about {max(1, round(self.seconds / 60))} min of training."
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


@dataclass(frozen=True, kw_only=True)
class Continued:
    """The network of `start`, its last layer's rows carried over class by class."""

    network: FastNetSpec
    start: str
    """The folder of the model."""
    sha256: str
    """Of its weights: another model makes another run."""
    class_names: tuple[str, ...]
    """Of the new run; a class that the model does not know starts as a new row."""

    def build(self, problem: Problem) -> nn.Module:
        old = load_bundle(Path(self.start))
        network = self.network.build(problem)
        weights = network.state_dict()
        for name, tensor in old.network.state_dict().items():
            if name != "head.weight":
                if tensor.shape != weights[name].shape:
                    raise InputError(
                        f"The model in {self.start} has a {name} of shape {tuple(tensor.shape)}, the network to go on "
                        f"with {tuple(weights[name].shape)}. Start anew, without --from."
                    )
                weights[name].copy_(tensor)
        with torch.no_grad():
            for row, class_name in enumerate(self.class_names):
                if class_name in old.class_names:
                    weights["head.weight"][row] = old.network.state_dict()["head.weight"][
                        old.class_names.index(class_name)
                    ]
        return network


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
        model=model or FastNetSpec(width=plan.width),
        method=fast_methods(plan.steps, cost=_COST, weight=1.0, ramp=0.1)[method],
        normalise=PerChannel(),
        views=fast_views(plan.size, flip=plan.flip, gentle=plan.gentle),
        batch=Fixed(
            size=_LABELLED_ROWS if method == "supervised" else ROWS,
            labelled=_LABELLED_ROWS,
            unlabelled_pool="all",
        ),
        optim=fast_optim(plan.steps),
        steps=plan.steps,
        evaluate_every=max(1, plan.steps // 5),
        seeds=(0,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How fast this machine trains at the moment, with whatever else it is doing."""

    threads: int
    """That gave the shortest step: beside a busy neighbour one thread can be faster than two."""
    seconds_per_step: dict[float, dict[str, float]]
    """width -> method -> seconds, of the widths that there was time to measure, the narrowest first."""


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
    """Share out what is left of the time, to the widest network that can make enough steps of it.

    Args:
        machine: what it can do
        minutes: that the person grants
        spent: seconds used already, for measuring and for reading the images
        overhead: seconds that each run takes beside its steps
        size: of the images
        flip: whether they may be mirrored
        n_rounds: runs of each method
        n_images: to be predicted at the end
        n_labelled: images that teach
    """
    plans: list[Plan] = []
    for width, cost in machine.seconds_per_step.items():
        plan = Plan(
            minutes=minutes,
            size=size,
            width=width,
            steps=1,
            flip=flip,
            gentle=n_labelled >= _MANY_LABELS,
            threads=machine.threads,
            seconds_per_step=cost,
            seconds=0.0,
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
    """Refuse minutes in which even the narrowest network learns next to nothing, before any image is read.

    Raises:
        InputError: says how many would do.
    """
    cost = next(iter(machine.seconds_per_step.values()))
    needed = FEWEST_STEPS / 2 * sum(cost.values()) + prediction_seconds(cost, n_images) + spent
    if needed > 60 * minutes:
        raise InputError(
            f"{minutes:g} minutes are too few for {n_images:,} images on this machine, as busy as it is now. "
            f"Give at least {math.ceil(2 * needed / 60)} with --minutes."
        )


def prediction_seconds(cost: dict[str, float], n_images: int) -> float:
    """For predicting all images at the end: an image takes about a quarter of what training on it does."""
    return n_images * cost["mean-teacher"] / ROWS / 4


class PlanFile:
    """plan.json of a fit: the plan, the seconds of its minutes that are gone, and what resuming needs unchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "plan.json"

    def exists(self) -> bool:
        return self.path.exists()

    def write(self, plan: Plan, *, fingerprint: str, spent: float, device: str) -> None:
        about = {"fingerprint": fingerprint, "spent": spent, "device": device, "plan": plan.to_json()}
        write_json(self.path, about)

    def device(self) -> str:
        """The kind of device that the fit was started on."""
        return str(self._saved().get("device", "cpu"))

    def read(self, fingerprint: str) -> tuple[Plan, float]:
        """The plan, and the seconds that are gone.

        Raises:
            InputError: it is damaged, or of other photos.
        """
        saved = self._saved()
        try:
            plan, spent = Plan(**saved["plan"]), float(saved["spent"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        if saved.get("fingerprint") != fingerprint:
            raise InputError(
                f"The photos or their labels are not those that {self.folder} was begun with. "
                "Put them back as they were to resume, or start again with --overwrite."
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
        return InputError(f"{self.path} is damaged ({error}). Start again with --overwrite.")
