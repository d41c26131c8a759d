"""Cross-validation: the training runs of a fit, each evaluated on photos that it was not trained on."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from meanteacher.core import Interrupted
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import run_with_helpers
from meanteacher.fitting.budget import Pace, Timing
from meanteacher.fitting.config import FitCallback
from meanteacher.fitting.plan import METHODS
from meanteacher.fitting.split import EvaluationSplit
from meanteacher.fitting.stands import Stand
from meanteacher.formats import percent
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
    start: nn.Module | None
    """As in `Stand.start`."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationResult:
    """The outputs of one method for every evaluated photo, each by a model that was not trained on it."""

    logits: np.ndarray
    """[n, n_classes], in the order of `EvaluationSplit.positions`."""
    wrong: np.ndarray
    """[n] of bool."""
    first: TrainedModel
    """Of the first run: its curve is shown, and with a held-out part it is the final model."""
    untrained: bool = False
    """Whether the outputs are those before the first step, which were better."""

    def kept(self, model: TrainedModel) -> TrainedModel:
        """The model of a run as it is to be used."""
        return replace(model, network=model.start) if self.untrained and model.start is not None else model


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Both methods on the same photos, and the model to keep."""

    results: dict[str, EvaluationResult]
    better: str
    model: TrainedModel
    skipped: str
    """A sentence about runs that skipped steps to end in time; empty where none did."""
    alternatives: dict[str, np.ndarray]
    """What else was evaluated -> [n] of bool, whether it was wrong."""

    @property
    def n_wrong(self) -> int:
        return int(self.results[self.better].wrong.sum())


def better_method(results: dict[str, EvaluationResult]) -> str:
    """The method with fewer errors; Mean Teacher where both make as many."""
    return min(("mean-teacher", "supervised"), key=lambda method: int(results[method].wrong.sum()))


@dataclass(slots=True, eq=False, kw_only=True)
class CrossValidation:
    """Trains the runs of a fit into folders below `out`. Runs that are there already are resumed or read."""

    stand: Stand
    split: EvaluationSplit
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

    def compare(self, *, continued: bool) -> Comparison:
        """Evaluate both methods, and train the better one on all labels where it was evaluated with folds.

        Args:
            continued: start from an earlier model. Folds do not: it was trained on their labels.
        """
        alternatives = self._baselines()
        results = {}
        for method in METHODS:
            results[method], other = self.evaluate(method, continued=continued and self.split.how == "held-out")
            alternatives |= other
            self.timing.end(method)
        better = better_method(results)
        model = results[better].first
        if self.split.how == "folds":
            model = self.train(better, _NONE, f"{better}-on-all-labels", continued=continued)
            self.timing.end("on all labels")
        return Comparison(results, better, results[better].kept(model), self._skipped(), alternatives)

    def evaluate(self, method: str, *, continued: bool) -> tuple[EvaluationResult, dict[str, np.ndarray]]:
        """Train one model for each part of the split, and evaluate it on that part.

        Also returns what else was found: of a supervised model before its first step and after its last, the worse.
        """
        outputs: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        first: TrainedModel | None = None
        for number, part in enumerate(self.split.parts, start=1):
            name = method if self.split.how == "held-out" else f"{method}-fold-{number}"
            model = self.train(method, part, name, continued=continued)
            first = first or model
            inputs = self.stand.inputs(part)
            outputs.append(predict_logits(model.network, inputs, normalise=model.normalise).numpy())
            if model.start is not None and method == "supervised":
                starts.append(predict_logits(model.start, inputs, normalise=model.normalise).numpy())
        assert first is not None
        logits = np.concatenate(outputs)
        wrong = self._wrong(logits)
        if not starts:
            return EvaluationResult(logits, wrong, first), {}
        probe = np.concatenate(starts)
        probe_wrong = self._wrong(probe)
        both = {"probe": probe_wrong, "tuned": wrong}
        if probe_wrong.sum() <= wrong.sum():
            return EvaluationResult(probe, probe_wrong, first, untrained=True), both
        return EvaluationResult(logits, wrong, first), both

    def _baselines(self) -> dict[str, np.ndarray]:
        parts = [self.stand.baselines(part) for part in self.split.parts]
        return {name: self._wrong(np.concatenate([part[name] for part in parts])) for name in parts[0]}

    def _wrong(self, logits: np.ndarray) -> np.ndarray:
        return np.asarray(logits.argmax(1) != self.stand.data.labels[self.split.positions])

    def train(self, method: str, held_out: np.ndarray, name: str, *, continued: bool) -> TrainedModel:
        """Train without the held-out photos.

        Raises:
            Interrupted: the callback stopped it; a checkpoint is saved.
        """
        folder = self.out / name
        recipe = self.stand.recipe(method, held_out, folder, continued=continued)
        if not len(held_out):
            note = "Trained on every label: its errors are on images it was trained on, and estimate nothing."
            recipe = replace(recipe, deviations=(note,))
        pace = Pace(
            steps=recipe.steps, seconds_per_step=self.stand.plan.seconds_per_step[method], ends=self._end_of_next()
        )
        data, split = self.stand.train_test(held_out)
        with self.callback.on_run(name, recipe.steps) as callback:
            outcome = run_with_helpers(
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
            raise Interrupted("The fit was stopped while it trained. Continue it with resume=True (--resume).")
        state = outcome.restored(device=self.device)
        if skipped := outcome.record["skipped_steps"]:
            self.completed[name] = 1 - skipped / recipe.steps
        if pace.last_step_began is not None:
            self.overhead = time.perf_counter() - pace.last_step_began
        network = state.predictor(recipe.method)
        return TrainedModel(network, state.normalise, outcome.record, self.stand.start(recipe))

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
        plan = self.stand.plan
        costs = [plan.seconds_per_step[method] for method in plan.runs()[self.n_begun :]]
        self.n_begun += 1
        now = time.perf_counter()
        return now + max(0.0, self.ends - now - len(costs) * self.overhead) * costs[0] / sum(costs)


class _WithoutErrors(Callback):
    """Follows a run on all labels, but reports no error: it would be on images that were trained on."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def on_log(self, entry: LogEntry) -> None:
        self._callback.on_log(entry)

    def on_alarm(self, alarm: Alarm) -> None:
        self._callback.on_alarm(alarm)
