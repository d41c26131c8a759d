"""What labelled photos say about a head that has not seen them: its error on new photos, and labels that may be wrong.

Cross-validation covers the whole recipe. The error is weighted for the class frequencies of the folder
(docs/experiments/heads.md).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.heads import (
    Floats,
    Head,
    Ints,
    fit_head,
    logistic_regression,
    neighbour_weights,
    smoothed,
    softmax,
    some,
    unit_length,
)
from meanteacher.photos.model.predict import Known
from meanteacher.records import FitEstimate
from meanteacher.seeding import derive_seed
from meanteacher.stats import CONFIDENCE, Interval, error_interval, fitted_temperature

FitHead = Callable[..., Head]
"""`fit_head`, or another function with its arguments."""

N_FOLDS = 5
VARIANCE = 1 + N_FOLDS / (N_FOLDS - 1)
"""Variance of a cross-validated error, relative to that on independent photos (Nadeau & Bengio 2003): the same labels
teach and test, so hard photos among them are learned from badly and tested badly."""
_NEIGHBOURS, _FROM_NEIGHBOURS, _SPREADS = 10, 0.9, 10
_CHUNK = 4096
_KNOWN, _STRANGE = 500, 2.0
"""About how many labelled photos others are compared with, and from how many standard deviations on one is strange."""


@dataclass(frozen=True, slots=True, eq=False)
class OutOfFold:
    """Answers for labelled photos, each by a head that has seen neither the photo nor one of its group."""

    positions: Ints
    """[n], positions of the tested photos: all labelled ones but those of classes with a single group, or all of the
    folds that were tested."""
    labels: Ints
    """[n], their labels."""
    logits: Floats
    """[n, n_classes]"""
    temperature: float
    """Divisor of the logits that makes these labels most probable; 1 without tested photos."""
    groups: NDArray[Any]
    """[n], equal for photos that belong together."""

    @property
    def probabilities(self) -> Floats:
        """[n, n_classes], calibrated."""
        return softmax(self.logits / self.temperature)

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return np.asarray(self.logits.argmax(1) != self.labels)


def cross_validated(
    features: NDArray[Any],
    labels: Ints,
    n_classes: int,
    *,
    groups: NDArray[Any],
    seed: int,
    fit: FitHead = fit_head,
    run: Callable[..., Iterable[Any]] = map,
    n_tested: int = N_FOLDS,
) -> OutOfFold:
    """Test every labelled photo with a head that was fitted without its group.

    Args:
        features: [n_views, N, D]; the first view is the photo itself, and the only one that is tested
        labels: [N], `UNLABELLED` for photos without a label
        n_classes: number of classes
        groups: [N], equal for photos that belong together; unlabelled ones of a tested group are left out as well
        seed: of the folds and of the fits
        fit: the recipe
        run: the function `map`, or that of a pool of threads
        n_tested: only the photos of so many folds are tested
    """
    fold_of = _folds(labels, groups, seed)
    fold_of[fold_of >= n_tested] = -1

    def answered(fold: int) -> tuple[Ints, Floats]:
        tested = np.flatnonzero(fold_of == fold)
        kept = ~np.isin(groups, groups[tested])
        head = fit(features[:, kept], labels[kept], n_classes, seed=derive_seed(seed, "fold", fold))
        return tested, head.logits(features[0][tested])

    logits = np.empty((len(labels), n_classes), np.float32)
    for tested, answers in run(answered, np.unique(fold_of[fold_of >= 0])):
        logits[tested] = answers
    positions = np.flatnonzero(fold_of >= 0)
    logits = logits[positions]
    temperature = fitted_temperature(logits, labels[positions]) if len(positions) else 1.0
    return OutOfFold(positions, labels[positions], logits, temperature, groups[positions])


def _folds(labels: Ints, groups: NDArray[Any], seed: int) -> Ints:
    """The fold of each photo; -1 without a label, or if its class is one group, of which none would be left to learn.

    The groups of each class are dealt to the folds in turn; each class begins where the one before it ended.
    """
    draws = np.random.default_rng(derive_seed(seed, "folds"))
    fold_of_group: dict[Any, int] = {}
    fold_of, turn = np.full(len(labels), -1), 0
    for label in np.unique(labels[labels != UNLABELLED]).tolist():
        of_class = np.flatnonzero(labels == label)
        names = draws.permutation(np.unique(groups[of_class])).tolist()
        if len(names) < 2:
            continue
        for name in names:
            if name not in fold_of_group:
                fold_of_group[name] = turn % N_FOLDS
                turn += 1
        fold_of[of_class] = [fold_of_group[name] for name in groups[of_class].tolist()]
    return fold_of


def label_doubts(
    features: NDArray[Any], labels: Ints, n_classes: int, *, groups: NDArray[Any], seed: int
) -> NDArray[np.float64]:
    """By how much another class is more probable than the label of each photo, [N]; NaN if it is not tested.

    Logistic regression that has seen neither the label nor those of its group answers for all photos, and most of the
    answer for a photo comes from its neighbours: they are right where regression fails (docs/experiments/heads.md).
    The features [N, D] are those of the photos themselves.
    """
    doubts, rows = np.full(len(labels), np.nan), some(labels, seed)
    seen, given, of_group = np.asarray(features[rows], np.float32), labels[rows], groups[rows]
    fold_of = _folds(given, of_group, seed)
    neighbours = neighbour_weights(seen, _NEIGHBOURS)
    for fold in np.unique(fold_of[fold_of >= 0]):
        tested = np.flatnonzero(fold_of == fold)
        taught = (given != UNLABELLED) & ~np.isin(of_group, of_group[tested])
        own = logistic_regression(seen[taught], given[taught], n_classes).probabilities(seen)
        own[taught] = np.eye(n_classes)[given[taught]]
        found = smoothed(own, taught, neighbours, share=_FROM_NEIGHBOURS, times=_SPREADS)[tested]
        doubts[rows[tested]] = found.max(1) - found[np.arange(len(tested)), given[tested]]
    return doubts


def known_photos(features: NDArray[Any], labels: Ints, groups: NDArray[Any]) -> Known | None:
    """Labelled photos that others are compared with, of features [n, D]; None for a single photo or group.

    A photo is strange if it is less similar to all of them than they are to each other: by two standard deviations
    more than their mean distance from the nearest one of another group.
    """
    rows = np.concatenate([np.flatnonzero(labels == k)[:: 1 + len(labels) // _KNOWN] for k in np.unique(labels)])
    directions = unit_length(np.asarray(features[rows], np.float32))
    similarity = directions @ directions.T
    similarity[groups[rows][:, None] == groups[rows]] = -1
    nearest = 1 - similarity.max(1)
    if (nearest > 1).any():  # all belong together
        return None
    above = float(np.clip(nearest.mean() + _STRANGE * nearest.std(), 1e-3, 2))
    return Known(torch.from_numpy(directions), above)


def most_similar(features: NDArray[Any], known: Known) -> Floats:
    """The cosine of each photo of features [n, D] to the most similar known one, [n]."""
    found, directions = np.empty(len(features), np.float32), known.features.numpy()
    for first in range(0, len(features), _CHUNK):
        rows = slice(first, first + _CHUNK)
        found[rows] = (unit_length(np.asarray(features[rows], np.float32)) @ directions.T).max(1)
    return found


def class_frequencies(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """The class frequencies [K] of photos, by their probabilities [n, K] of a head that was fitted to their mix."""
    return np.asarray(probabilities.mean(0, dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(FitEstimate):
    """The error on new photos with the class frequencies of the folder, and that of each class."""

    per_class: tuple[float | None, ...]
    """Error of each class; None if it was not tested. The error in all is that on photos of the tested classes."""
    frequencies: tuple[float, ...]
    """The class frequencies that it holds for."""


def error_estimate(out_of_fold: OutOfFold, frequencies: NDArray[Any]) -> Estimate:
    """E = sum_k pi_k e_k, the errors e_k per class weighted by the class frequencies pi_k, with Wilson's interval.

    The interval is that of n = 1 / sum_k (pi_k^2 / n_k) photos, divided by `VARIANCE`. Photos that belong together are
    right or wrong together, so n_k is the number of independent photos: groups, if they are equally large.
    """
    n_classes = len(frequencies)
    counts = np.bincount(out_of_fold.labels, minlength=n_classes)
    wrong = np.bincount(out_of_fold.labels[out_of_fold.wrong], minlength=n_classes)
    tested, errors = counts > 0, wrong / counts.clip(1)
    error, interval = None, Interval(0.0, 0.0, 1.0)
    if tested.any():
        share = np.where(tested, frequencies, 0.0)
        share = share / share.sum()
        error = float(share @ errors)
        n = 1 / float((share[tested] ** 2 / _independent(out_of_fold, n_classes)[tested]).sum()) / VARIANCE
        interval = error_interval(error * n, n)
    return Estimate(
        error=error,
        low=interval.low,
        high=interval.high,
        n=int(counts.sum()),
        wrong=int(wrong.sum()),
        per_class=tuple(float(e) if t else None for e, t in zip(errors, tested, strict=True)),
        frequencies=tuple(float(f) for f in frequencies),
        confidence=CONFIDENCE,
    )


def _independent(out_of_fold: OutOfFold, n_classes: int) -> NDArray[np.float64]:
    """The number of independent photos of each class: (sum of sizes)^2 / sum of squared sizes of its groups."""
    found = np.zeros(n_classes)
    for k in np.unique(out_of_fold.labels).tolist():
        sizes = np.unique(out_of_fold.groups[out_of_fold.labels == k], return_counts=True)[1]
        found[k] = sizes.sum() ** 2 / np.square(sizes).sum()
    return found
