"""Cross-validation: the training runs of a fit, each evaluated on photos that it was not trained on."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from meanteacher.core import Interrupted
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import run
from meanteacher.fitting.budget import Pace, Timing
from meanteacher.fitting.config import FitCallback
from meanteacher.fitting.plan import METHODS, Plan, photo_recipe
from meanteacher.fitting.split import EvaluationSplit, FitData
from meanteacher.formats import percent
from meanteacher.models import ModelSpec
from meanteacher.train import Alarm, Callback, LogEntry

_SEED = 0
_NONE = np.empty(0, dtype=np.int64)
"""Held out of the last run, which is trained on all labels."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """What a run leaves."""

    network: nn.Module
    normalise: nn.Module
    record: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationResult:
    """The outputs of one method for every evaluated photo, each by a model that was not trained on it."""

    logits: np.ndarray
    """[n, n_classes], in the order of `EvaluationSplit.positions`."""
    wrong: np.ndarray
    """[n] of bool."""
    first: TrainedModel
    """Of the first run: its curve is shown, and with a held-out part it is the final model."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Both methods on the same photos, and the model to keep."""

    results: dict[str, EvaluationResult]
    better: str
    model: TrainedModel
    skipped: str
    """A sentence about runs that skipped steps to end in time; empty where none did."""


def better_method(results: dict[str, EvaluationResult]) -> str:
    """The method with fewer errors; Mean Teacher where both make as many."""
    return min(("mean-teacher", "supervised"), key=lambda method: int(results[method].wrong.sum()))


@dataclass(slots=True, eq=False, kw_only=True)
class CrossValidation:
    """Trains the runs of a fit into folders below `out`. Runs that are there already are resumed or read."""

    data: FitData
    split: EvaluationSplit
    plan: Plan
    fingerprint: str
    out: Path
    ends: float
    """When all runs have to be done, by `time.perf_counter`."""
    overhead: float
    """The seconds that a run takes after its steps."""
    callback: FitCallback
    timing: Timing
    device: str
    n_begun: int = 0
    completed: dict[str, float] = field(default_factory=dict)
    """run -> the share of its steps that were taken, where some were skipped"""

    def compare(self, start: ModelSpec | None) -> Comparison:
        """Evaluate both methods, and train the better one on all labels where it was evaluated with folds.

        Args:
            start: an earlier model to continue. Folds do not: it was trained on their labels.
        """
        results = {}
        for method in METHODS:
            results[method] = self.evaluate(method, start if self.split.how == "held-out" else None)
            self.timing.end(method)
        better = better_method(results)
        model = results[better].first
        if self.split.how == "folds":
            model = self.train(better, _NONE, f"{better}-on-all-labels", start)
            self.timing.end("on all labels")
        return Comparison(results, better, model, self._skipped())

    def evaluate(self, method: str, start: ModelSpec | None) -> EvaluationResult:
        """Train one model for each part of the split, and evaluate it on that part."""
        outputs: list[np.ndarray] = []
        first: TrainedModel | None = None
        for number, part in enumerate(self.split.parts, start=1):
            name = method if self.split.how == "held-out" else f"{method}-fold-{number}"
            model = self.train(method, part, name, start)
            first = first or model
            images = self.data.dataset.images[torch.from_numpy(part)]
            outputs.append(predict_logits(model.network, images, normalise=model.normalise).numpy())
        assert first is not None
        logits = np.concatenate(outputs)
        return EvaluationResult(logits, logits.argmax(1) != self.data.labels[self.split.positions], first)

    def train(self, method: str, held_out: np.ndarray, name: str, start: ModelSpec | None) -> TrainedModel:
        """Train without the held-out photos.

        Raises:
            Interrupted: the callback stopped it; a checkpoint is saved.
        """
        recipe = photo_recipe(self.plan, method, fingerprint=self.fingerprint, model=start)
        if not len(held_out):
            note = "Trained on every label: its errors are on images it was trained on, and estimate nothing."
            recipe = replace(recipe, deviations=(note,))
        pace = Pace(steps=recipe.steps, seconds_per_step=self.plan.seconds_per_step[method], ends=self._end_of_next())
        data, split = self.data.train_test(held_out)
        folder = self.out / name
        with self.callback.on_run(name, recipe.steps) as callback:
            outcome = run(
                recipe,
                seed=_SEED,
                out=folder,
                data=data,
                split=split,
                resume=(folder / "run.json").exists(),
                device=self.device,
                callbacks=(callback if len(held_out) else _WithoutErrors(callback),),
                should_stop=self.callback.should_stop,
                skip_to=pace,
            )
        if outcome.record is None:
            raise Interrupted(f"The fit in {self.out.parent} was stopped. Continue it with resume=True (--resume).")
        state = outcome.restored(device=self.device)
        if skipped := outcome.record["skipped_steps"]:
            self.completed[name] = 1 - skipped / recipe.steps
        if pace.last_step_began is not None:
            self.overhead = time.perf_counter() - pace.last_step_began
        return TrainedModel(state.predictor(recipe.method), state.normalise, outcome.record)

    def _skipped(self) -> str:
        if not self.completed:
            return ""
        shares = ", ".join(f"{percent(share)} of {name}" for name, share in self.completed.items())
        return (
            "The machine was slower than measured at the start, so training skipped some of the planned steps to end "
            f"in time. It completed {shares}. More minutes, or a less busy machine, may give a better model and a "
            "fairer comparison."
        )

    def _end_of_next(self) -> float:
        """When the next run's steps have to be done: it gets its planned share of the time that is left."""
        costs = [self.plan.seconds_per_step[method] for method in self.plan.runs()[self.n_begun :]]
        self.n_begun += 1
        now = time.perf_counter()
        return now + max(0.0, self.ends - now) * costs[0] / sum(costs) - self.overhead


class _WithoutErrors(Callback):
    """Follows a run on all labels, but reports no error: it would be on images that were trained on."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def on_log(self, entry: LogEntry) -> None:
        self._callback.on_log(entry)

    def on_alarm(self, alarm: Alarm) -> None:
        self._callback.on_alarm(alarm)
