"""Small images, such as digits and letters: Mean Teacher trains a small network from scratch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from meanteacher.core import UNLABELLED, Interrupted
from meanteacher.costs import Confident
from meanteacher.data import Dataset, Fixed, Split, TrainTest
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import TrainingSpec, run_training, step_seconds
from meanteacher.experiment.describe import describe, recorded
from meanteacher.formats import count, percent
from meanteacher.models import FastNetSpec
from meanteacher.photos.fitting.data import FitData, Learned
from meanteacher.photos.fitting.estimate import N_FOLDS, FitHead, cross_validated
from meanteacher.photos.fitting.pretrained import Pretrained, labels_alone
from meanteacher.photos.fitting.work import Work
from meanteacher.recipes.fast import fast_methods, fast_optim, fast_views, weak_labelled_view
from meanteacher.records import ErrorEstimate, Trial
from meanteacher.stats import error_interval
from meanteacher.train import Alarm, Callback, LogEntry, RunOptions
from meanteacher.views import PerChannel

_ROWS, _LABELLED_ROWS = 192, 96
"""Rows of a batch. Labelled rows limit the first half of a short run: with a quarter of the rows labelled it ends no
better than without unlabelled rows."""
_COST = Confident(threshold=0.8, temperature=0.1)
_WIDTHS = (1.0, 0.5, 0.25)
_FEW_STEPS, _FEWEST_STEPS = 1500, 60
"""Below the first a narrower network, which makes more steps in the same time, ends with the lower error, and fewer
networks do. Below the second a run learns next to nothing."""
_TESTED = 2
"""Folds that are tested before a wider network is trained instead."""
_MANY_LABELS = 1000
"""From here on labelled rows get the weak view: better with 4000 labels, worse with 300 (docs/experiments/fit.md)."""
_TRAINING_SHARE = 0.85
"""Share of the time that is left for the planned steps; the rest is for a machine that becomes slower."""
_TIMED_STEPS, _TIMED_SECONDS = 4, 2.0
_TRIAL_SHARE, _TRIAL_SECONDS = 0.08, 60.0
"""Largest share of the minutes for the trial, and its largest number of seconds."""
_TRIAL_LABELS = 1000
"""Largest number of labels in the trial; more would hardly change the outcome."""
_TRIAL_RATIO = 1.2
"""Times as many errors as the pretrained network that one from scratch may make in a trial and be chosen
(docs/experiments/backbones.md)."""
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
        training, data, split = _prepared(
            images[0], labels, n_classes, self.method, self.width, self.steps, flip=self.work.record.flip
        )
        self.n_done += 1
        now, n_left = time.perf_counter(), max(1, self.n_runs - self.n_done + 1)
        task = f"Training network {self.n_done} of {max(self.n_runs, self.n_done)}"
        folder, device = self.folder / f"{self.method}-{self.n_done}", str(self.work.device)
        outcome = run_training(
            training,
            recorded=recorded({"name": f"fit/{self.method}", "training": describe(training)}),
            seed=seed,
            out=folder,
            data=data,
            split=split,
            resume=(folder / "run.json").exists(),
            options=RunOptions(device=device, precision="float32"),
            callbacks=[_Shown(self.work.callback, task, self.steps, now + max(0.0, self.ends - now) / n_left)],
        )
        if outcome.record is None and self.work.callback.should_stop():
            raise Interrupted("The fit was stopped while it trained. Continue it with resume=True (--resume).")
        state = outcome.restored(device=device)
        return TrainedNetwork(state.predictor(training.method), state.normalise)


def _prepared(
    images: np.ndarray, labels: np.ndarray, n_classes: int, method: str, width: float, steps: int, *, flip: bool
) -> tuple[TrainingSpec, TrainTest, Split]:
    """How to train, on what. The test set is one image, as cross-validation tests elsewhere."""
    size, names = images.shape[-1], tuple(map(str, range(n_classes)))
    labelled, unlabelled = (torch.from_numpy(np.flatnonzero(k)) for k in (labels >= 0, labels == UNLABELLED))
    training = TrainingSpec(
        model=FastNetSpec(width=width),
        method=fast_methods(steps, cost=_COST)[method],
        normalise=PerChannel(),
        views=fast_views(size, flip=flip),
        labelled_view=weak_labelled_view(size, flip=flip) if len(labelled) >= _MANY_LABELS else None,
        # Both methods see the same number of labelled images per step.
        batch=Fixed(
            size=_ROWS if method == "mean-teacher" else _LABELLED_ROWS, labelled=_LABELLED_ROWS, unlabelled_pool="all"
        ),
        optim=fast_optim(steps),
        steps=steps,
        evaluate_every=steps,
    )
    pixels, known = torch.from_numpy(images), torch.from_numpy(labels)
    test = Dataset(pixels[labelled[:1]], known[labelled[:1]], names)
    split = Split(labelled, unlabelled, torch.empty(0, dtype=torch.int64))
    return training, TrainTest(Dataset(pixels, known, names), test), split


class _Shown(Callback):
    """Shows a run as one task of a fit, in which steps are shares, and stops it when its time is over."""

    def __init__(self, callback: Callback, task: str, steps: int, ends: float) -> None:
        self._callback, self._task, self._steps, self._ends = callback, task, steps, ends

    def on_log(self, entry: LogEntry) -> None:
        self._callback.on_progress(self._task, entry.step, self._steps)

    def on_alarm(self, alarm: Alarm) -> None:
        self._callback.on_message(f"{self._task}: {alarm.sentence}")

    def should_stop(self) -> bool:
        return self._callback.should_stop() or time.perf_counter() > self._ends


def train_from_scratch(data: FitData, work: Work) -> Iterator[Learned]:
    """One model: up to five networks test the recipe, each on a fifth of the labels; the last one learns from all."""
    rows, n_classes = data.usable, len(data.photos.class_names)
    images, labels = data.decoded.images[rows][None], data.labels[rows]
    if not work.record.steps:
        width, steps, n_tested = _length(images[0], labels, n_classes, work)
        work.record = replace(work.record, width=width, steps=steps, n_tested=n_tested)
    work.note({})
    train = Training(
        method="mean-teacher",
        width=work.record.width,
        steps=work.record.steps,
        folder=work.folder / "runs",
        n_runs=work.record.n_tested + 1,
        ends=work.ends - (1 - _TRAINING_SHARE) / 2 * (work.ends - time.perf_counter()),
        work=work,
    )
    with work.piece("training"):
        tested = cross_validated(
            images,
            labels,
            n_classes,
            groups=data.groups()[rows],
            seed=_SEED,
            fit=cast(FitHead, train),
            n_tested=work.record.n_tested,
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


def _length(images: np.ndarray, labels: np.ndarray, n_classes: int, work: Work) -> tuple[float, int, int]:
    """The width, steps and tested folds: the widest network that can make enough steps in the time that is left.

    All networks make the same number of steps, so each that tests takes from the one that ships.
    """
    width, n_steps = _WIDTHS[-1], 0
    for width in _WIDTHS:
        training, data, split = _prepared(
            images, labels, n_classes, "mean-teacher", width, 100_000, flip=work.record.flip
        )
        seconds = step_seconds(
            training, data=data, split=split, seconds=_TIMED_SECONDS, most=_TIMED_STEPS, device=str(work.device)
        )
        each = fmean(seconds[1:] or seconds)  # without the first step, which allocates
        n_steps = int(_TRAINING_SHARE * (work.ends - time.perf_counter()) / each)
        if n_steps >= (_TESTED + 1) * _FEW_STEPS:
            break
    n_tested = min(N_FOLDS, max(1, n_steps // _FEW_STEPS - 1))
    return width, max(_FEWEST_STEPS, n_steps // (n_tested + 1)), n_tested


def choose_network(pretrained: Pretrained, data: FitData) -> Trial:
    """Whether small images get the pretrained network or one from scratch: a short trial on the labelled ones.

    Cross-validation tests a linear head on the features of the pretrained network, and a short training from scratch
    with the labels alone, unless even guessing would win. `data` has the size of the images from scratch.
    """
    work, callback = pretrained.work, pretrained.work.callback
    callback.on_message("Trying a pretrained network and one from scratch on the labelled images …")
    ends = time.perf_counter() + max(1.0, min(_TRIAL_SHARE * 60 * work.record.minutes, _TRIAL_SECONDS))
    every = -(-len(data.labelled) // _TRIAL_LABELS)
    rows = np.sort(np.concatenate([np.flatnonzero(data.labels == k)[::every] for k in range(data.labels.max() + 1)]))
    labels, n_classes = data.labels[rows], len(data.photos.class_names)
    test = partial(cross_validated, labels=labels, n_classes=n_classes, groups=data.groups()[rows], seed=_SEED)
    features = np.asarray(pretrained.look_at(rows)[rows], np.float32)
    wrong, from_scratch = test(features[None], fit=labels_alone).wrong, None
    if len(wrong) and _TRIAL_RATIO * int(wrong.sum()) < (1 - 1 / n_classes) * len(wrong):
        with TemporaryDirectory(dir=work.cache) as runs:
            train = Training(
                method="supervised",
                width=_WIDTHS[-1],
                steps=_TRIAL_STEPS,
                folder=Path(runs),
                n_runs=N_FOLDS,
                ends=ends,
                work=work,
            )
            from_scratch = test(data.decoded.images[rows][None], fit=cast(FitHead, train)).wrong
    trial = _result(wrong, from_scratch, pretrained.backbones[0].title)
    callback.on_message(trial.sentence)
    return trial


def _result(pretrained: NDArray[np.bool_], scratch: NDArray[np.bool_] | None, title: str) -> Trial:
    """The outcome of a trial, from the errors of both on the same images.

    The linear head has nearly the error that the pretrained network ends with, while a network from scratch improves
    much in the time that it gets. So it is chosen unless it makes `_TRIAL_RATIO` times as many errors.
    """
    n = len(pretrained)
    if not n:
        sentence = f"One label per class is too few for a trial, so the pretrained network {title} is used."
        return Trial(chosen="pretrained", n=0, pretrained=None, scratch=None, sentence=sentence)
    own, other = _error(pretrained), None if scratch is None else _error(scratch)
    names = (f"the pretrained network {title}", "a small network from scratch")
    keeps = other is not None and other.wrong > _TRIAL_RATIO * own.wrong
    if other is None:
        why = f"{names[0]} was wrong on {percent(own.error)} of them, hardly better than a guess"
    else:
        best, rest = (own, other) if keeps else (other, own)
        more = "" if best.wrong < rest.wrong else ", but training improves a network from scratch more"
        why = f"it was wrong on {percent(best.error)}, {names[keeps]} on {percent(rest.error)}{more}"
    sentence = f"A short trial on {count(n, 'labelled image')} chose {names[not keeps]}: {why}."
    return Trial(chosen="pretrained" if keeps else "scratch", n=n, pretrained=own, scratch=other, sentence=sentence)


def _error(wrong: NDArray[np.bool_]) -> ErrorEstimate:
    interval = error_interval(int(wrong.sum()), len(wrong))
    return ErrorEstimate(error=interval.value, low=interval.low, high=interval.high, wrong=int(wrong.sum()))
