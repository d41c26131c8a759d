"""Which labelled images evaluate the models, and the training runs that leave them out."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED
from meanteacher.data import Dataset, Split, TrainTest
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import restored, run
from meanteacher.fitting.budget import Pace
from meanteacher.fitting.plan import Continued, Plan, photo_recipe
from meanteacher.formats import percent
from meanteacher.models import ModelSpec
from meanteacher.seeding import derive_seed
from meanteacher.train import Alarm, Callback, LogEntry

_HOLD_OUT_FROM = 100
"""Labels in all from which a part of them can be spared; with fewer, each must both teach and judge."""
_SHARE = 0.25
MOST_JUDGES = 1000
"""Held-out labels beyond which the interval hardly shrinks, but the model would."""


@dataclass(frozen=True, slots=True, eq=False)
class Judging:
    """One part for each round of training: whoever is in it judges that round and does not teach it."""

    how: Literal["held-out", "folds"]
    parts: tuple[np.ndarray, ...]
    """Positions of labelled images, disjoint."""

    @property
    def judged(self) -> np.ndarray:
        return np.concatenate(self.parts)


def choose_judging(
    labels: np.ndarray, groups: np.ndarray, *, seed: int, folds: bool = False, hurried: bool = False
) -> Judging:
    """A held-out quarter where there are labels enough, else folds that take turns.

    With folds every label judges one model, and the shipped model is trained on all of them; its error is
    then estimated by models that had fewer labels, so the estimate errs on the safe side.

    Images that look the same stay on the same side: a copy of a training image proves nothing.

    Args:
        labels: [N], `UNLABELLED` where unknown
        groups: [N], equal for images that look the same
        seed: of the draw
        folds: whatever the number of labels
        hurried: hold a part out of few labels too, where every class has some to spare: folds take too many runs
    """
    known = np.flatnonzero(labels != UNLABELLED)
    fewest = int(np.unique(labels[known], return_counts=True)[1].min())
    enough = fewest >= 3 if hurried else fewest >= 4 and len(known) >= _HOLD_OUT_FROM
    if enough and not folds:
        n_parts = max(round(1 / _SHARE), -(-len(known) // MOST_JUDGES))
        return Judging("held-out", _dealt(known, labels, groups, n_parts, seed)[:1])
    return Judging("folds", _dealt(known, labels, groups, 3 if fewest >= 3 else 2, seed))


def _dealt(
    known: np.ndarray, labels: np.ndarray, groups: np.ndarray, n_parts: int, seed: int
) -> tuple[np.ndarray, ...]:
    """Deal the labelled images of each class to the parts in turn, all copies of one image to the same part."""
    draws = np.random.default_rng(derive_seed(seed, "judging"))
    part_of_group: dict[int, int] = {}
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for label in np.unique(labels[known]):
        members = draws.permutation(known[labels[known] == label])
        counts = [0] * n_parts
        for index in members:
            group = int(groups[index])
            part = part_of_group.setdefault(group, int(np.argmin(counts)))
            counts[part] += 1
            parts[part].append(int(index))
    return tuple(np.array(sorted(part), dtype=np.int64) for part in parts)


_SEED = 0
Show = Callable[[str, int], AbstractContextManager[Callback]]
"""The name of a run and its steps -> who is told how it goes."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What a run leaves."""

    network: nn.Module
    normalise: nn.Module
    spec: ModelSpec
    record: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The outputs of one method for every judging image, each by a model that was not taught by it."""

    logits: np.ndarray
    """[n, n_classes], in the order of `Judging.judged`."""
    wrong: np.ndarray
    """[n] of bool."""
    first: Trained
    """Of the first round: its curve is shown, and with a held-out part it is the one to ship."""


class Interrupted(Exception):  # noqa: N818 - not an error: everything is saved
    """The person asked to stop; the folder can be resumed."""


class Rounds:
    """Trains into folders below `out`; what is there already is taken up or read."""

    def __init__(
        self,
        images: Tensor,
        labels: np.ndarray,
        groups: np.ndarray,
        usable: np.ndarray,
        class_names: tuple[str, ...],
        *,
        plan: Plan,
        fingerprint: str,
        out: Path,
        ends: float,
        overhead: float,
        show: Show,
        should_stop: Callable[[], bool],
        device: str = "auto",
    ) -> None:
        self.images, self.labels, self.groups = images, labels, groups
        self.usable, self.class_names = usable, class_names
        self.plan, self.fingerprint, self.out = plan, fingerprint, out
        self._ends, self._overhead = ends, overhead
        """When all of them have to be done, by `time.perf_counter`; the seconds that a run takes after its steps."""
        self.show, self.should_stop, self.device = show, should_stop, device
        self._to_come = plan.runs()
        self._shortened: dict[str, float] = {}
        """run -> the share of its steps that there was time for, where that is not all of them"""
        self.model: Continued | None = None
        """To go on from, instead of a new network."""

    def judge(self, method: str, judging: Judging) -> Judged:
        """Train one model for each part, and let each be judged by the part it has not seen."""
        outputs: list[np.ndarray] = []
        first: Trained | None = None
        for number, part in enumerate(judging.parts):
            name = method if judging.how == "held-out" else f"{method}-fold-{number + 1}"
            trained = self.train(method, part, name)
            first = first or trained
            logits = predict_logits(trained.network, self.images[torch.from_numpy(part)], normalise=trained.normalise)
            outputs.append(logits.numpy())
        assert first is not None
        together = np.concatenate(outputs)
        return Judged(together, together.argmax(1) != self.labels[judging.judged], first)

    def train(self, method: str, part: np.ndarray, name: str) -> Trained:
        """Train without the images of the part; on all of them where it is empty.

        Raises:
            Interrupted: with a checkpoint to go on from.
        """
        recipe = photo_recipe(self.plan, method, fingerprint=self.fingerprint, model=self.model)
        if not len(part):
            note = "Trained on every label: its errors are on images it was taught by, and estimate nothing."
            recipe = replace(recipe, deviations=(note,))
        pace = Pace(steps=recipe.steps, seconds_per_step=self.plan.seconds_per_step[method], ends=self._end_of_next())
        data, split = round_data(self.images, self.labels, self.groups, self.usable, self.class_names, part)
        folder = self.out / name
        with self.show(name, recipe.steps) as callback:
            outcome = run(
                recipe,
                seed=_SEED,
                out=folder,
                data=data,
                split=split,
                resume=(folder / "run.json").exists(),
                device=self.device,
                callbacks=(callback if len(part) else _Unjudged(callback),),
                should_stop=self.should_stop,
                skip_to=pace,
            )
        if outcome.record is None:
            raise Interrupted
        state = restored(recipe, seed=_SEED, out=folder, data=data, split=split, device=self.device)
        if skipped := outcome.record["skipped_steps"]:
            self._shortened[name] = 1 - skipped / recipe.steps
        if pace.last_step_began is not None:
            self._overhead = time.perf_counter() - pace.last_step_began
        spec = self.model.network if self.model else recipe.model
        return Trained(state.predictor(recipe.method), state.normalise, spec, outcome.record)

    def shortage(self) -> str:
        """What a person has to know of runs that left steps out, in a sentence; empty where none did."""
        if not self._shortened:
            return ""
        shares = ", ".join(f"{percent(share)} of {name}" for name, share in self._shortened.items())
        return (
            "The machine was slower than when it was measured, so some of the planned steps were left out to end in "
            f"time. Made were {shares}. On a less busy machine, or with more minutes, the model may become better and "
            "the comparison fairer."
        )

    def _end_of_next(self) -> float:
        """When the next run's steps have to be done: each run has the share of what is left that was planned for it."""
        costs = [self.plan.seconds_per_step[method] for method in self._to_come]
        del self._to_come[0]
        now = time.perf_counter()
        return now + max(0.0, self._ends - now) * costs[0] / sum(costs) - self._overhead


class _Unjudged(Callback):
    """Tells how a training on every label goes, but no error: it would be on images that taught it."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def on_log(self, entry: LogEntry) -> None:
        self._callback.on_log(entry)

    def on_alarm(self, alarm: Alarm) -> None:
        self._callback.on_alarm(alarm)


def learnt_from(
    labels: np.ndarray, groups: np.ndarray, usable: np.ndarray, part: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The images that teach while those of the part judge: with their labels, and without.

    An image of the part does not teach, and no copy of it does: a model that has seen the picture is not judged by it.
    Copies with a label are in the part themselves.
    """
    is_known = labels[usable] != UNLABELLED
    is_copy = np.isin(groups[usable], groups[part])
    return np.setdiff1d(usable[is_known], part), usable[~is_known & ~is_copy]


def round_data(
    images: Tensor,
    labels: np.ndarray,
    groups: np.ndarray,
    usable: np.ndarray,
    class_names: tuple[str, ...],
    part: np.ndarray,
) -> tuple[TrainTest, Split]:
    """What teaches, and the part that judges; without a part, those that teach with their labels."""
    known, unknown = learnt_from(labels, groups, usable, part)
    judges = part if len(part) else known
    split = Split(
        labelled=torch.from_numpy(known), unlabelled=torch.from_numpy(unknown), validation=torch.from_numpy(part)
    )
    train = Dataset(images, torch.from_numpy(labels), class_names, on_disk=True)
    test = Dataset(images[torch.from_numpy(judges)], torch.from_numpy(labels[judges]), class_names)
    return TrainTest(train, test), split
