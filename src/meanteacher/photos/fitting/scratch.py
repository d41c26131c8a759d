"""Small images, such as digits and letters: Mean Teacher trains a small network from scratch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch
from torch import nn

from meanteacher.core import UNLABELLED, Interrupted
from meanteacher.costs import Confident
from meanteacher.data import Dataset, Fixed, Split, TrainTest
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import TrainingSpec, run_training, step_seconds
from meanteacher.experiment.describe import describe, recorded
from meanteacher.models import FastNetSpec
from meanteacher.photos.fitting.answer import loses_to_guessing, trial_result
from meanteacher.photos.fitting.data import FitData, Learned
from meanteacher.photos.fitting.estimate import FitHead, cross_validated
from meanteacher.photos.fitting.pretrained import Pretrained, labels_alone
from meanteacher.photos.fitting.work import Work
from meanteacher.recipes.fast import fast_methods, fast_optim, fast_views, weak_labelled_view
from meanteacher.records import Trial
from meanteacher.train import Alarm, Callback, LogEntry, RunOptions
from meanteacher.views import PerChannel

_ROWS, _LABELLED_ROWS = 192, 96
"""Rows of a batch. Labelled rows limit the first half of a short run: with a quarter of the rows labelled it ends no
better than without unlabelled rows."""
_COST = Confident(threshold=0.8, temperature=0.1)
_WIDTHS = (1.0, 0.5, 0.25)
_FEW_STEPS, _FEWEST_STEPS = 1500, 60
"""Below the first a narrower network, which makes more steps in the same time, ends with the lower error. Below the
second a run learns next to nothing."""
_MANY_LABELS = 1000
"""From here on labelled rows get the weak view: better with 4000 labels, worse with 300 (docs/experiments/fit.md)."""
_N_FOLDS = 5
_TRAINING_SHARE = 0.85
"""Share of the time that is left for the planned steps; the rest is for a machine that becomes slower."""
_TIMED_STEPS, _TIMED_SECONDS = 4, 2.0
_TRIAL_SHARE, _TRIAL_SECONDS = 0.08, 60.0
"""Largest share of the minutes for the trial, and its largest number of seconds."""
_TRIAL_LABELS = 1000
"""Largest number of labels in the trial; more would hardly change the outcome."""
_TRIAL_STEPS = 150
"""Steps of each run of the trial (docs/experiments/backbones.md)."""
_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNetwork:
    """A network in the place of a head: it takes pixels as its features."""

    network: nn.Module
    normalise: nn.Module

    def logits(self, images: np.ndarray) -> np.ndarray:
        """[n, 3, size, size] -> [n, n_classes]."""
        return predict_logits(self.network, torch.from_numpy(images), normalise=self.normalise).numpy()


@dataclass(slots=True, eq=False, kw_only=True)
class Training:
    """Trains networks one after the other, with the arguments of `fit_head`; each gets its share of the time."""

    method: str
    width: float
    steps: int
    folder: Path
    """Each run has a folder below it. Runs that are there already are resumed or read."""
    n_runs: int
    """How many are still expected."""
    ends: float
    """When all of them have to be done, by `time.perf_counter`."""
    work: Work
    n_done: int = 0

    def __call__(self, images: np.ndarray, labels: np.ndarray, n_classes: int, *, seed: int) -> TrainedNetwork:
        """Train on images [1, n, 3, size, size]. A network that has no time left is used as far as it is trained."""
        training, data, split = self.prepared(images[0], labels, n_classes)
        self.n_done += 1
        now = time.perf_counter()
        ends = now + max(0.0, self.ends - now) / max(1, self.n_runs - self.n_done + 1)
        shown = _Shown(
            self.work.callback, f"Training network {self.n_done} of {max(self.n_runs, self.n_done)}", self.steps
        )
        folder = self.folder / f"{self.method}-{self.n_done}"
        outcome = run_training(
            training,
            recorded=recorded({"name": f"fit/{self.method}", "training": describe(training)}),
            seed=seed,
            out=folder,
            data=data,
            split=split,
            resume=(folder / "run.json").exists(),
            options=RunOptions(device=str(self.work.device), precision="float32"),
            callbacks=(shown, _Until(ends)),
        )
        if outcome.record is None and self.work.callback.should_stop():
            raise Interrupted("The fit was stopped while it trained. Continue it with resume=True (--resume).")
        state = outcome.restored(device=str(self.work.device))
        return TrainedNetwork(state.predictor(training.method), state.normalise)

    def prepared(self, images: np.ndarray, labels: np.ndarray, n_classes: int) -> tuple[TrainingSpec, TrainTest, Split]:
        """How to train, on what. The test set is one image, as cross-validation tests elsewhere."""
        size, steps = images.shape[-1], self.steps
        labelled, unlabelled = (torch.from_numpy(np.flatnonzero(k)) for k in (labels >= 0, labels == UNLABELLED))
        weak = len(labelled) >= _MANY_LABELS
        training = TrainingSpec(
            model=FastNetSpec(width=self.width),
            method=fast_methods(steps, cost=_COST)[self.method],
            normalise=PerChannel(),
            views=fast_views(size, flip=self.work.record.flip),
            labelled_view=weak_labelled_view(size, flip=self.work.record.flip) if weak else None,
            # Both methods see the same number of labelled images per step.
            batch=Fixed(
                size=_ROWS if self.method == "mean-teacher" else _LABELLED_ROWS,
                labelled=_LABELLED_ROWS,
                unlabelled_pool="all",
            ),
            optim=fast_optim(steps),
            steps=steps,
            evaluate_every=steps,
        )
        names = tuple(str(k) for k in range(n_classes))
        pixels, known = torch.from_numpy(images), torch.from_numpy(labels)
        test = Dataset(pixels[labelled[:1]], known[labelled[:1]], names)
        split = Split(labelled, unlabelled, torch.empty(0, dtype=torch.int64))
        return training, TrainTest(Dataset(pixels, known, names), test), split


class _Shown(Callback):
    """Shows a run as one task of a fit, in which steps are shares."""

    def __init__(self, callback: Callback, task: str, steps: int) -> None:
        self._callback, self._task, self._steps = callback, task, steps

    def on_log(self, entry: LogEntry) -> None:
        self._callback.on_progress(self._task, entry.step, self._steps)

    def on_alarm(self, alarm: Alarm) -> None:
        self._callback.on_message(f"{self._task}: {alarm.sentence}")

    def should_stop(self) -> bool:
        return self._callback.should_stop()


class _Until(Callback):
    """Stops a run when its time is over."""

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def should_stop(self) -> bool:
        return time.perf_counter() > self._ends


@dataclass(slots=True, eq=False, kw_only=True)
class Scratch:
    """Learns from photos with a network of random first weights."""

    data: FitData
    folder: Path
    """Where the runs are kept."""
    work: Work

    def rounds(self) -> Iterator[Learned]:
        """One model: five networks test the recipe, each on other labels, and the last one learns from every label."""
        data, n_classes = self.data, len(self.data.photos.class_names)
        rows = data.usable
        images, labels = data.images[rows][None], data.labels[rows]
        if not self.work.record.steps:
            width, steps = self._length(images[0], labels, n_classes)
            self.work.record = replace(self.work.record, width=width, steps=steps)
        self.work.note({})
        train = self._training(self.work.record.width, self.work.record.steps)
        with self.work.piece("training"):
            tested = cross_validated(
                images, labels, n_classes, groups=data.groups()[rows], seed=_SEED, fit=cast(FitHead, train)
            )
            train.n_runs = train.n_done + 1
            network = train(images, labels, n_classes, seed=_SEED)
        logits = np.full((len(data.photos), n_classes), np.nan, np.float32)
        logits[rows] = network.logits(images[0])
        yield Learned(
            network=network.network,
            normalise=network.normalise,
            spec=FastNetSpec(width=train.width),
            logits=logits,
            out_of_fold=replace(tested, positions=rows[tested.positions]),
            baseline=None,
            missing=data.left_out,
            title="FastNet",
        )

    def _training(self, width: float, steps: int) -> Training:
        return Training(
            method="mean-teacher",
            width=width,
            steps=steps,
            folder=self.folder,
            n_runs=_N_FOLDS + 1,
            ends=self.work.ends - (1 - _TRAINING_SHARE) / 2 * (self.work.ends - time.perf_counter()),
            work=self.work,
        )

    def _length(self, images: np.ndarray, labels: np.ndarray, n_classes: int) -> tuple[float, int]:
        """The widest network that can make enough steps in the time that is left, and its number of steps."""
        width, steps = _WIDTHS[-1], _FEWEST_STEPS
        for width in _WIDTHS:
            training, data, split = self._training(width, 100_000).prepared(images, labels, n_classes)
            seconds = step_seconds(
                training,
                data=data,
                split=split,
                seconds=_TIMED_SECONDS,
                most=_TIMED_STEPS,
                device=str(self.work.device),
            )
            each = fmean(seconds[1:] or seconds)  # without the first step, which allocates
            left = _TRAINING_SHARE * (self.work.ends - time.perf_counter())
            steps = max(_FEWEST_STEPS, int(left / (_N_FOLDS + 1) / each))
            if steps >= _FEW_STEPS:
                break
        return width, steps


def choose_network(pretrained: Pretrained, data: FitData, folder: Path) -> Trial:
    """Whether small images get the pretrained network or one from scratch: a short trial on the labelled ones.

    Cross-validation tests a linear head on the features of the pretrained network, and a short training from scratch
    with the labels alone. `data` has the size of the images from scratch.
    """
    work, callback = pretrained.work, pretrained.work.callback
    callback.on_message("Trying a pretrained network and one from scratch on the labelled images …")
    seconds = max(1.0, min(_TRIAL_SHARE * 60 * work.record.minutes, _TRIAL_SECONDS))
    ends = time.perf_counter() + seconds
    rows = _some(data.labelled, data.labels)
    labels, groups, n_classes = data.labels[rows], data.groups()[rows], len(data.photos.class_names)
    features = np.asarray(pretrained.look_at(rows)[rows], np.float32)[None]
    wrong = {
        "pretrained": cross_validated(features, labels, n_classes, groups=groups, seed=_SEED, fit=labels_alone).wrong
    }
    if len(wrong["pretrained"]) and not loses_to_guessing(wrong["pretrained"], n_classes):
        with TemporaryDirectory(dir=folder) as runs:
            train = Training(
                method="supervised",
                width=_WIDTHS[-1],
                steps=_TRIAL_STEPS,
                folder=Path(runs),
                n_runs=_N_FOLDS,
                ends=ends,
                work=work,
            )
            tested = cross_validated(
                data.images[rows][None], labels, n_classes, groups=groups, seed=_SEED, fit=cast(FitHead, train)
            )
        wrong["scratch"] = tested.wrong
    trial = trial_result(wrong, pretrained.backbones[0].title)
    callback.on_message(trial.sentence)
    return trial


def _some(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """At most `_TRIAL_LABELS` of the rows, from each class in its share."""
    every = -(-len(rows) // _TRIAL_LABELS)
    by_class = np.concatenate([rows[labels[rows] == k][::every] for k in np.unique(labels[rows])])
    return np.sort(by_class)
