"""Heads on features whose classes are known."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from clusters import clusters, shown
from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting import heads
from meanteacher.photos.fitting.heads import Head, fit_head, logistic_regression, neighbour_weights


def error(head: Head, features: np.ndarray, truth: np.ndarray) -> float:
    return float((head.logits(features[0]).argmax(1) != truth).mean())


def labels_alone(features: np.ndarray, labels: np.ndarray, n_classes: int) -> Head:
    known = labels != UNLABELLED
    return logistic_regression(features[0][known], labels[known], n_classes)


@pytest.mark.parametrize("n_classes", [3, 7])
def test_the_regression_is_that_of_scikit_learn_with_balanced_classes(n_classes: int) -> None:
    features, truth = clusters(n_classes, 60)
    x, uneven = features[0], np.flatnonzero((truth > 0) | (np.arange(60) % 4 == 0))
    ours = logistic_regression(x[uneven], truth[uneven], n_classes)
    length = np.linalg.norm(x[uneven], axis=1).mean()
    theirs = LogisticRegression(C=10, class_weight="balanced", max_iter=2000, tol=1e-8)
    theirs.fit(x[uneven] / length, truth[uneven])
    np.testing.assert_allclose(heads.softmax(ours.logits(x)), theirs.predict_proba(x / length), atol=0.01)


@pytest.mark.parametrize("n_views", [1, 2, 5])
def test_unlabelled_photos_lower_the_error(n_views: int) -> None:
    before, after = [], []
    for seed in range(3):
        features, truth = clusters(4, 400, spread=1.1, n_views=n_views, seed=seed)
        labels = shown(truth, 3)
        before.append(error(labels_alone(features, labels, 4), features, truth))
        after.append(error(fit_head(features, labels, 4, seed=0), features, truth))
    assert np.mean(after) < 0.8 * np.mean(before)


def test_rare_classes_do_not_take_photos_of_a_frequent_one() -> None:
    before, after = [], []
    for seed in range(3):
        features, truth = clusters(4, 0, spread=1.1, n_views=3, counts=(320, 60, 30, 20), seed=seed)
        labels = shown(truth, 8)
        before.append(error(labels_alone(features, labels, 4), features, truth))
        after.append(error(fit_head(features, labels, 4, seed=0), features, truth))
    assert np.mean(after) < 0.8 * np.mean(before)


def test_the_same_seed_gives_the_same_head() -> None:
    features, truth = clusters(3, 90, n_views=3)
    first, second = (fit_head(features, shown(truth, 5), 3, seed=7) for _ in range(2))
    np.testing.assert_array_equal(first.weight, second.weight)
    assert not np.array_equal(first.weight, fit_head(features, shown(truth, 5), 3, seed=8).weight)


def test_few_unlabelled_photos_teach_nothing() -> None:
    features, truth = clusters(3, 40)
    labels = np.where(np.arange(40) < 30, truth, UNLABELLED)
    np.testing.assert_array_equal(
        fit_head(features, labels, 3, seed=0).weight, labels_alone(features, labels, 3).weight
    )


def test_labels_that_follow_very_unequal_classes_teach_alone() -> None:
    features, truth = clusters(4, 0, spread=1.1, counts=(200, 40, 30, 20))
    labels = shown(truth, 4)
    for n, same in ((14, True), (10, False)):
        labels[np.flatnonzero(truth == 0)[:n]] = 0
        labels[np.flatnonzero(truth == 0)[n:]] = UNLABELLED
        found = fit_head(features, labels, 4, seed=0).weight
        assert np.array_equal(found, labels_alone(features, labels, 4).weight) == same


def test_a_class_without_labels_is_never_predicted() -> None:
    features, truth = clusters(3, 90)
    labels = np.where(truth == 1, UNLABELLED, shown(truth, 5))
    assert 1 not in fit_head(features, labels, 3, seed=0).logits(features[0]).argmax(1)


def test_a_single_labelled_class_is_the_answer_for_all() -> None:
    features, truth = clusters(2, 60)
    labels = np.where(truth == 1, UNLABELLED, shown(truth, 5))
    assert set(fit_head(features, labels, 2, seed=0).logits(features[0]).argmax(1)) == {0}


def test_of_many_unlabelled_photos_some_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_MOST", 50)
    seen = []
    monkeypatch.setattr(heads, "neighbour_weights", lambda x, n: seen.append(x) or neighbour_weights(x, n))
    features, truth = clusters(3, 300, spread=0.6)
    labels = shown(truth, 5)
    assert error(fit_head(features, labels, 3, seed=0), features, truth) < 0.1
    assert len(seen[0]) == 50 + 15


def test_neighbours_are_photos_of_the_same_kind_and_never_the_photo_itself() -> None:
    features, truth = clusters(3, 90, spread=0.5)
    weights = neighbour_weights(features[0], 5).toarray()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert not weights.diagonal().any()
    assert (weights * (truth[:, None] == truth)).sum() > 0.9 * len(truth)


@pytest.mark.parametrize("mix", [(0.5, 0.5), (0.9, 0.1)], ids=["equal", "unequal"])
def test_the_class_frequencies_of_unlabelled_photos_are_found(mix: tuple[float, float]) -> None:
    draws = np.random.default_rng(0)
    truth = draws.choice(2, 4000, p=mix)
    x = draws.normal(2.0 * truth - 1)  # for equal classes the log odds are 2x
    p = 1 / (1 + np.exp(-2 * x))
    both = np.stack([1 - p, p], 1)
    np.testing.assert_allclose(heads.class_mix(both, np.array([20, 20])), mix, atol=0.03)
    # A head with few labels of a rare class expects it to be rare, so its answers are right as they are.
    learned = both * mix / (both * mix).sum(1, keepdims=True)
    np.testing.assert_allclose(heads.class_mix(learned, np.rint(40 * np.array(mix))), mix, atol=0.03)
    # The posteriors of a single label per class are too rough for that.
    np.testing.assert_allclose(heads.class_mix(both, np.array([1, 1])), (0.5, 0.5), atol=0.1)
