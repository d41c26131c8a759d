"""Cross-validation: the training runs of a fit, and the trial that chooses its network."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from meanteacher.core import Interrupted
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import run_training
from meanteacher.experiment.describe import describe, recorded
from meanteacher.formats import percent
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.features.extraction import Extraction
from meanteacher.photos.fitting.answer import loses_to_guessing, trial_result
from meanteacher.photos.fitting.budget import Timing
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.plan import WIDTHS, BackboneSpeed
from meanteacher.photos.fitting.split import EvaluationSplit, draw_split, labelled_photos
from meanteacher.photos.fitting.spreading import linear_classifier
from meanteacher.photos.fitting.stands import FromScratch, Stand
from meanteacher.photos.folder.cache import Decoded, decode_all
from meanteacher.photos.folder.find import Photos
from meanteacher.records import FIT_METHODS, Plan, Record, Trial
from meanteacher.train import Alarm, Callback, LogEntry, Pace, RunOptions
from meanteacher.views.normalise import per_channel

_SEED = 0
_TRIAL_SHARE, _TRIAL_SECONDS = 0.08, 60.0
"""Largest share of the remaining time for the trial, and its largest number of seconds."""
_TRIAL_FEATURES_SHARE = 0.5
"""Share of the trial's time spent on features."""
_TRIAL_LABELS = 1000
"""Largest number of labels in the trial; more would hardly change the outcome."""
_TRIAL_STEPS = 150
"""Steps of each run of the trial (docs/experiments/backbones.md)."""
_ON_ALL_LABELS = "Trained on every label: its errors are on images it was trained on, and estimate nothing."
_NONE = np.empty(0, dtype=np.int64)
"""Held out of the last run, which is trained on all labels."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """What a run leaves."""

    network: nn.Module
    normalise: nn.Module
    record: Record
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
    """Model of the first run. Its curve is shown, and with a held-out part it is the final model."""
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
    callback: Callback
    timing: Timing
    device: str
    runs: list[str]
    """The methods of the runs that are not begun yet, in order."""
    completed: dict[str, float] = field(default_factory=dict)
    """run -> the share of its steps that were taken, where some were skipped"""

    def compare(self, *, continued: bool) -> Comparison:
        """Evaluate both methods, and train the better one on all labels if it was evaluated with folds.

        With `continued`, runs start from an earlier model. Folds do not: it was trained on their labels.
        """
        alternatives = self._baselines()
        results = {}
        for method in FIT_METHODS:
            results[method], other = self.evaluate(method, continued=continued and self.split.how == "held-out")
            alternatives |= other
            self.timing.end(method)
        better = better_method(results)
        model = results[better].first
        if self.split.how == "folds":
            model = self.train(better, _NONE, f"{better}-on-all-labels", continued=continued)
            self.timing.end("on all labels")
        return Comparison(results, better, results[better].kept(model), self._skipped(), alternatives)

    def evaluate(
        self, method: str, *, continued: bool, name: str = ""
    ) -> tuple[EvaluationResult, dict[str, np.ndarray]]:
        """Train one model for each part of the split, and evaluate it on that part.

        The runs are called `name`, or like the method.
        Also returns what else was found: of a supervised model before its first step and after its last, the worse.
        """
        outputs: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        first: TrainedModel | None = None
        for number, part in enumerate(self.split.parts, start=1):
            fold = "" if self.split.how == "held-out" else f"-fold-{number}"
            model = self.train(method, part, f"{name or method}{fold}", continued=continued)
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
        """Train without the held-out photos. If the callback stops the run, a checkpoint is saved."""
        folder = self.out / name
        training = self.stand.training(method, held_out, folder, continued=continued)
        pace = Pace(
            steps=training.steps, seconds_per_step=self.stand.plan.seconds_per_step[method], ends=self._end_of_next()
        )
        data, split = self.stand.train_test(held_out)
        self.callback.on_run(name, training.steps)
        outcome = run_training(
            training,
            recorded=recorded(
                {"name": f"fit/{method}", "training": describe(training)},
                deviations=() if len(held_out) else (_ON_ALL_LABELS,),
            ),
            seed=_SEED,
            out=folder,
            data=data,
            split=split,
            resume=(folder / "run.json").exists(),
            options=RunOptions(device=self.device, precision="float32"),
            callbacks=(self.callback if len(held_out) else _WithoutErrors(self.callback),),
            skip_to=pace,
        )
        if outcome.record is None:
            raise Interrupted("The fit was stopped while it trained. Continue it with resume=True (--resume).")
        state = outcome.restored(device=self.device)
        if skipped := outcome.record.skipped_steps:
            self.completed[name] = 1 - skipped / training.steps
        if pace.last_step_began is not None:
            self.overhead = time.perf_counter() - pace.last_step_began
        network = state.predictor(training.method)
        return TrainedModel(network, state.normalise, outcome.record, self.stand.start(training))

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
        costs = [self.stand.plan.seconds_per_step[method] for method in self.runs]
        del self.runs[0]
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

    def should_stop(self) -> bool:
        return self._callback.should_stop()


def choose_network(
    config: FitConfig,
    callback: Callback,
    timing: Timing,
    photos: Photos,
    decoded: Decoded,
    backbone: Backbone,
    speed: BackboneSpeed,
    *,
    size: int,
    flip: bool,
    device: torch.device,
) -> Trial:
    """Whether all time is given to the pretrained network or to one from scratch: a trial on the labelled photos alone.

    It uses folds, so that every label evaluates a model that it has not trained. On the pretrained network that is a
    linear classifier, from scratch a short supervised run. `decoded` has the size of the photos from scratch, `size` is
    theirs on the pretrained network.
    """
    callback.on_message("Trying a pretrained network and one from scratch on the labelled images …")
    seconds = max(1.0, min(_TRIAL_SHARE * (60 * config.minutes - timing.total()), _TRIAL_SECONDS))
    ends = time.perf_counter() + seconds
    most = min(_TRIAL_LABELS, max(1, int(_TRIAL_FEATURES_SHARE * seconds / speed.seconds(1, size))))
    data = labelled_photos(photos, decoded, most)
    split = draw_split(data.labels, data.groups, seed=0, prefer="folds")
    # Half the time per step that there is: a machine which is as fast as that skips no step.
    per_step = seconds / _TRIAL_STEPS / len(split.parts) / 2
    plan = Plan(
        minutes=config.minutes,
        size=decoded.images.shape[-1],
        steps=_TRIAL_STEPS,
        flip=flip,
        width=WIDTHS[0],
        seconds_per_step={"supervised": per_step},
    )
    with TemporaryDirectory(dir=config.out / "cache") as folder:
        extraction = Extraction(
            images=decode_all(data.photos, size, Path(folder)).images,
            normalise=per_channel(backbone.mean, backbone.deviation),
            front=backbone.network(),
            n_views=1,
            flip=False,
            file=Path(folder, "features.npy"),
            key="trial",
            device=device,
            should_stop=callback.should_stop,
        )
        features = extraction.run().values[:, 0].float().numpy()  # of the photos themselves
        guesses = []
        for part in split.parts:
            trained, _ = data.training_rows(part)
            linear = linear_classifier(features[trained], data.labels[trained], len(photos.class_names))
            guesses.append(linear.logits(features[part]).argmax(1))
        wrong = {"pretrained": np.concatenate(guesses) != data.labels[split.positions]}
        from_scratch = CrossValidation(
            stand=FromScratch(data=data, plan=plan, earlier=None),
            split=split,
            out=Path(folder, "runs"),
            ends=ends,
            overhead=0.0,
            callback=callback,
            timing=timing,
            device=str(device),
            runs=["supervised"] * len(split.parts),
        )
        if not loses_to_guessing(wrong["pretrained"], len(photos.class_names)):
            wrong["scratch"] = from_scratch.evaluate("supervised", continued=False, name="trial")[0].wrong
    trial = trial_result(wrong, backbone.title)
    callback.on_message(trial.sentence)
    return trial
