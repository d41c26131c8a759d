"""Linear classifiers and label spreading on the features of a pretrained network: baselines, and starts of training."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading

from meanteacher.core import UNLABELLED

Floats = NDArray[np.float32]

_DIMENSIONS = 128
"""Dimensions of the space in which neighbours are found: as good as all of them, in a tenth of the time."""
_NEIGHBOURS = (3, 20)
"""At least and at most; else a fifth of the photos."""
_ALPHA = 0.95
"""How much of a photo's distribution comes from its neighbours rather than from its own label."""
_KEPT = 0.5
"""Share of the photos of each spread label whose label is certain enough to start from."""
_STRENGTH = 10.0
"""Inverse of the regularisation of a linear classifier, for features of unit length on average."""


class NeighbourSpace:
    """Where photos of one kind are nearer to each other than in the features themselves.

    The root evens out the few large features, and the mean is what all photos share. `features` are those of the photos
    that are trained on, [n, D].
    """

    def __init__(self, features: Floats) -> None:
        rooted = self._rooted(features)
        self._pca = PCA(min(_DIMENSIONS, *rooted.shape), svd_solver="randomized", random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a single photo has no variance
            self._pca.fit(rooted)

    def __call__(self, features: Floats) -> Floats:
        """[n, D] -> [n, at most 128], each of unit length."""
        return unit_length(self._pca.transform(self._rooted(features)))

    @staticmethod
    def _rooted(features: Floats) -> Floats:
        return unit_length(np.sign(features) * np.sqrt(np.abs(features)))


def unit_length(rows: NDArray[Any]) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SpreadLabels:
    """Labels that have spread to the neighbours of the labelled photos, and on to theirs."""

    model: Any
    distributions: Floats
    """[n, n_classes], of the photos given."""

    def predict(self, space: Floats) -> Floats:
        """[n, n_classes] for photos that no label has spread to: the mean over their neighbours among those given."""
        return np.asarray(self.model.predict_proba(space), dtype=np.float32)


def spread_labels(space: Floats, labels: NDArray[np.int64], n_classes: int) -> SpreadLabels:
    """Label spreading (Zhou et al. 2004) over the graph of nearest neighbours. `NeighbourSpace` gives the space."""
    fewest, most = _NEIGHBOURS
    n_neighbors = max(1, min(most, max(fewest, len(space) // 5), len(space) - 1))
    model = LabelSpreading(kernel="knn", n_neighbors=n_neighbors, alpha=_ALPHA, max_iter=100)
    with warnings.catch_warnings():
        # A hundred rounds are enough; a photo without any labelled one in reach has no distribution.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        model.fit(space, labels)
    # A class with more labels spreads more: each class gets the same mass.
    mass, undecided = np.zeros((len(space), n_classes)), np.zeros(n_classes)
    mass[:, model.classes_] = model.label_distributions_ / model.label_distributions_.sum(0).clip(1e-12)
    undecided[model.classes_] = 1 / len(model.classes_)
    total = mass.sum(1, keepdims=True)
    distributions = np.where(total > 0, mass / total.clip(1e-12), undecided)
    model.label_distributions_ = distributions
    return SpreadLabels(model, distributions.astype(np.float32))


def certain_labels(spread: SpreadLabels, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n], the labels given, and of the spread labels of each class the half that is most certain."""
    found, certainty = spread.distributions.argmax(1), spread.distributions.max(1)
    certain = np.full(len(labels), UNLABELLED)
    for k in range(spread.distributions.shape[1]):
        of_class = np.flatnonzero((found == k) & (labels == UNLABELLED))
        most = of_class[np.argsort(-certainty[of_class], kind="stable")]
        certain[most[: round(_KEPT * len(most))]] = k
    return np.where(labels == UNLABELLED, certain, labels)


@dataclass(frozen=True, slots=True, eq=False)
class LinearClassifier:
    """A matrix and an offset: logits = features @ weight.T + bias."""

    weight: Floats
    """[n_classes, D]"""
    bias: Floats

    def logits(self, features: Floats) -> Floats:
        return features @ self.weight.T + self.bias


def linear_classifier(features: Floats, labels: NDArray[np.int64], n_classes: int) -> LinearClassifier:
    """Logistic regression in which every class weighs the same; rows without a label are left out.

    A class without a label has zeros for its weights, as all classes have if there is only one.
    """
    known = labels != UNLABELLED
    found = LinearClassifier(np.zeros((n_classes, features.shape[1]), np.float32), np.zeros(n_classes, np.float32))
    if len(np.unique(labels[known])) < 2:
        return found
    length = float(np.linalg.norm(features[known], axis=1).mean()) or 1.0
    model = LogisticRegression(C=_STRENGTH, class_weight="balanced", max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features[known] / length, labels[known])
    weight, bias = model.coef_ / length, model.intercept_
    if len(model.classes_) == 2:  # scikit-learn keeps one row for two classes
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    found.weight[model.classes_], found.bias[model.classes_] = weight, bias
    return found
