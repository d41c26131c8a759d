"""The error that a fit expects on new photos: cross-validation over the whole recipe, weighted for the folder's mix."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.heads import Floats, Head, Ints, fit_head, softmax
from meanteacher.seeding import derive_seed
from meanteacher.stats import error_interval, fitted_temperature

FitHead = Callable[..., Head]
"""`fit_head`, or another function with its arguments."""

_N_FOLDS = 5
_SHRINKING = 0.1
"""Weight of equal frequencies in each step of the estimate of frequencies, which overshoots without."""
_STEPS = 100


@dataclass(frozen=True, slots=True, eq=False)
class OutOfFold:
    """Answers for labelled photos, each by a head that has seen neither the photo nor one of its group."""

    positions: Ints
    """[n], positions of the tested photos: all labelled ones but those of classes with a single group."""
    labels: Ints
    """[n], their labels."""
    logits: Floats
    """[n, n_classes]"""
    temperature: float
    """Divisor of the logits that makes these labels most probable; 1 without tested photos."""
    untested: tuple[int, ...]
    """Classes whose labels all belong to one group, so that a test would leave none to learn from."""

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
) -> OutOfFold:
    """Test every labelled photo with a head that was fitted without its group.

    Args:
        features: [n_views, N, D]; the first view is the photo itself, and the only one that is tested
        labels: [N], `UNLABELLED` for photos without a label
        n_classes: number of classes
        groups: [N], equal for photos that belong together; unlabelled ones of a tested group are left out as well
        seed: of the folds and of the fits
        fit: the recipe
    """
    fold_of, untested = _folds(labels, groups, seed)
    found: dict[int, Floats] = {}
    for fold in range(_N_FOLDS):
        tested = np.flatnonzero(fold_of == fold)
        if len(tested):
            kept = ~np.isin(groups, groups[tested])
            head = fit(features[:, kept], labels[kept], n_classes, seed=derive_seed(seed, "fold", fold))
            found |= dict(zip(tested.tolist(), head.logits(features[0][tested]), strict=True))
    positions = np.array(sorted(found), dtype=np.int64)
    logits = np.array([found[k] for k in positions.tolist()], np.float32).reshape(-1, n_classes)
    temperature = fitted_temperature(logits, labels[positions]) if len(positions) else 1.0
    return OutOfFold(positions, labels[positions], logits, temperature, untested)


def _folds(labels: Ints, groups: NDArray[Any], seed: int) -> tuple[Ints, tuple[int, ...]]:
    """The fold of each photo, -1 if it is not tested, and the classes that are not tested.

    The groups of each class are dealt to the folds in turn; each class begins where the one before it ended.
    """
    draws = np.random.default_rng(derive_seed(seed, "folds"))
    fold_of_group: dict[Any, int] = {}
    fold_of, untested, turn = np.full(len(labels), -1), [], 0
    for label in np.unique(labels[labels != UNLABELLED]).tolist():
        of_class = np.flatnonzero(labels == label)
        names = draws.permutation(np.unique(groups[of_class])).tolist()
        if len(names) < 2:
            untested.append(label)
            continue
        for name in names:
            if name not in fold_of_group:
                fold_of_group[name] = turn % _N_FOLDS
                turn += 1
        fold_of[of_class] = [fold_of_group[name] for name in groups[of_class].tolist()]
    return fold_of, tuple(untested)


def class_frequencies(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """The class frequencies among photos, [K], by expectation maximisation (Saerens et al. 2002).

    `probabilities` are [n, K] of unlabelled photos, by a calibrated head for which all classes are equally frequent.
    The estimate is shrunk towards equal frequencies.
    """
    n_classes = probabilities.shape[1]
    found = np.full(n_classes, 1 / n_classes)
    for _ in range(_STEPS if len(probabilities) else 0):
        shifted = probabilities * found
        shifted /= shifted.sum(1, keepdims=True).clip(1e-12)
        found = (shifted.mean(0) + _SHRINKING / n_classes) / (1 + _SHRINKING)
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """The error on new photos with the class frequencies of the folder, with its 95 % interval."""

    error: float | None
    """None if no class could be tested."""
    low: float
    high: float
    n: int
    """Number of tested photos."""
    wrong: int
    """Number of them that were wrong, unweighted."""
    per_class: tuple[float | None, ...]
    """Error of each class; None if it was not tested."""
    frequencies: tuple[float, ...]
    """The class frequencies that it holds for."""
    untested: tuple[int, ...]
    """Classes that could not be tested."""
    unrecognised: tuple[int, ...]
    """Classes that are hardly ever recognised."""


def error_estimate(out_of_fold: OutOfFold, frequencies: NDArray[Any]) -> Estimate:
    """E = sum_k pi_k e_k: the errors per class, weighted by the class frequencies, with Wilson's interval.

    The interval is that of n_eff = 1 / sum_k (pi_k^2 / n_k) photos.
    """
    n_classes = len(frequencies)
    counts = np.bincount(out_of_fold.labels, minlength=n_classes)
    wrong = np.bincount(out_of_fold.labels[out_of_fold.wrong], minlength=n_classes)
    tested = counts > 0
    errors = wrong / counts.clip(1)
    share = np.where(tested, frequencies, 0.0)
    share = share / share.sum() if tested.any() else share
    low, high = 0.0, 1.0
    if tested.any():
        n_effective = 1 / float((share[tested] ** 2 / counts[tested]).sum())
        interval = error_interval(float(share @ errors) * n_effective, n_effective)
        low, high = interval.low, interval.high
    return Estimate(
        error=float(share @ errors) if tested.any() else None,
        low=low,
        high=high,
        n=int(counts.sum()),
        wrong=int(wrong.sum()),
        per_class=tuple(float(e) if t else None for e, t in zip(errors, tested, strict=True)),
        frequencies=tuple(float(f) for f in frequencies),
        untested=out_of_fold.untested,
        unrecognised=tuple(np.flatnonzero(tested & (wrong >= 3) & (errors >= _HARDLY)).tolist()),
    )


_HARDLY = 0.8
"""Error from which a class counts as hardly ever recognised."""
