"""Linear classifiers on the stored features of a pretrained network: what a fit learns from labels and other photos."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_STRENGTH = 10.0
"""Inverse of the regularisation of a linear classifier, for features of unit length on average."""
_ITERATIONS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A linear classifier of features: logits = features @ weight.T + bias."""

    weight: Floats
    """[n_classes, D]"""
    bias: Floats
    """[n_classes]"""
    temperature: float = 1.0
    """Divisor of the logits that calibrates the probabilities."""

    def logits(self, features: NDArray[Any]) -> Floats:
        """[..., D] -> [..., n_classes]."""
        return np.asarray(features, np.float32) @ self.weight.T + self.bias

    def probabilities(self, features: NDArray[Any]) -> Floats:
        """[..., D] -> [..., n_classes], calibrated by the temperature."""
        return softmax(self.logits(features) / self.temperature)

    def calibrated(self, temperature: float) -> "Head":
        return replace(self, temperature=temperature)


def fit_head(features: NDArray[Any], labels: Ints, n_classes: int, *, seed: int) -> Head:
    """The classifier that a fit ships.

    Args:
        features: [n_views, N, D]; the first view is the photo itself
        labels: [N], `UNLABELLED` for photos without a label
        n_classes: number of classes. A class without a label is never predicted.
        seed: of the draws
    """
    known = labels != UNLABELLED
    return logistic_regression(np.asarray(features[0][known], np.float32), labels[known], n_classes)


def logistic_regression(features: Floats, labels: Ints, n_classes: int) -> Head:
    """The labelled photos alone, in which every class weighs the same."""
    counts = np.bincount(labels, minlength=n_classes)
    weights = (1 / counts.clip(1))[labels] * len(labels) / max(1, (counts > 0).sum())
    return _regression(features, np.eye(n_classes, dtype=np.float32)[labels], weights.astype(np.float32))


def _regression(features: Floats, targets: Floats, weights: Floats) -> Head:
    """The least cross-entropy with soft targets [N, K] of weighted rows, and a penalty on the weights.

    A class without any target gets a bias so low that it is never predicted.
    """
    from scipy.optimize import minimize

    d, k = features.shape[1], targets.shape[1]
    length = float(np.linalg.norm(features, axis=1).mean()) or 1.0
    x, aims = features / length, targets * weights[:, None]
    present = np.flatnonzero(aims.sum(0) > 0)

    def cost(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weight = flat[: len(present) * d].reshape(-1, d).astype(np.float32)
        logits = x @ weight.T + flat[len(present) * d :].astype(np.float32)
        logits -= logits.max(1, keepdims=True)
        exponentials = np.exp(logits)
        total = exponentials.sum(1, keepdims=True)
        value = float((aims[:, present] * (np.log(total) - logits)).sum(dtype=np.float64))
        slope = exponentials * (weights[:, None] / total) - aims[:, present]
        gradient = [(slope.T @ x + weight / _STRENGTH).ravel(), slope.sum(0)]
        penalty = float(np.square(weight, dtype=np.float64).sum()) / (2 * _STRENGTH)
        return value + penalty, np.concatenate(gradient).astype(np.float64)

    start = np.zeros(len(present) * (d + 1))
    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS}).x
    weight, bias = np.zeros((k, d), np.float32), np.full(k, -1e4, np.float32)
    weight[present], bias[present] = found[: len(present) * d].reshape(-1, d) / length, found[len(present) * d :]
    return Head(weight, bias)


def softmax(logits: NDArray[Any]) -> Floats:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True), np.float32)
