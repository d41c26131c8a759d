"""Simple models of the labels alone, and cross-validation on the labels between them and the method."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline

_FOLDS = 3
_LANDMARKS = 500
"""Labelled rows at most, whose distances are the features of the model with a kernel."""
_KERNEL_C = 10.0
"""Inverse strength of the regularisation with a kernel, whose features are at most 1 long."""


def simple_models(n_features: int, n_labelled: int, weights: Mapping[int, float] | None) -> dict[str, Any]:
    """The simple models by name: a linear one, and one with a Gaussian kernel for classes that no plane divides."""
    kernel = Nystroem(gamma=1 / n_features, n_components=min(n_labelled, _LANDMARKS), random_state=0)
    return {
        "logistic regression": LogisticRegression(max_iter=1000, class_weight=weights),
        "kernel logistic regression": make_pipeline(
            kernel, LogisticRegression(C=_KERNEL_C, max_iter=1000, class_weight=weights)
        ),
    }


def folds(labels: NDArray[np.int64], seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The positions of the labels to learn from and to test on, three times or as often as the rarest class allows.

    There are none if a class has a single label.
    """
    n = min(_FOLDS, int(np.bincount(labels).min()))
    if n < 2:
        return []
    return list(StratifiedKFold(n, shuffle=True, random_state=seed % 2**32).split(labels, labels))
