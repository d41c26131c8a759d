"""Heads on features whose classes are known."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from clusters import clusters, shown
from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.heads import fit_head, logistic_regression


@pytest.mark.parametrize("n_classes", [3, 7])
def test_the_regression_is_that_of_scikit_learn_with_balanced_classes(n_classes: int) -> None:
    features, truth = clusters(n_classes, 60)
    x, uneven = features[0], np.flatnonzero((truth > 0) | (np.arange(60) % 4 == 0))
    ours = logistic_regression(x[uneven], truth[uneven], n_classes)
    length = np.linalg.norm(x[uneven], axis=1).mean()
    theirs = LogisticRegression(C=10, class_weight="balanced", max_iter=2000, tol=1e-8)
    theirs.fit(x[uneven] / length, truth[uneven])
    np.testing.assert_allclose(ours.probabilities(x), theirs.predict_proba(x / length), atol=0.01)


def test_a_head_predicts_the_classes_of_unlabelled_photos() -> None:
    features, truth = clusters(3, 300, spread=0.6)
    head = fit_head(features, shown(truth, 5), 3, seed=0)
    assert (head.logits(features[0]).argmax(1) != truth).mean() < 0.05


def test_a_class_without_labels_is_never_predicted() -> None:
    features, truth = clusters(3, 90)
    labels = np.where(truth == 1, UNLABELLED, shown(truth, 5))
    assert 1 not in fit_head(features, labels, 3, seed=0).logits(features[0]).argmax(1)
