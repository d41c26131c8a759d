"""Linear classifiers and label spreading on features whose classes are known."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting import spreading
from meanteacher.photos.fitting.spreading import (
    NeighbourSpace,
    SpreadLabels,
    certain_labels,
    linear_classifier,
    spread_labels,
)


def clusters(n_classes: int, n: int, *, spread: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 200] of equally many photos of each class around a point of its own, and the classes."""
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(9).uniform(0, 2, (n_classes, 200))
    truth = np.arange(n) % n_classes
    noisy = centres[truth] + spread * draws.normal(size=(n, 200))
    return noisy.clip(0).astype(np.float32), truth


def overlapping(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two classes, about a tenth of them nearer to the middle of the other one, and the classes."""
    truth = np.arange(n) % 2
    points = np.random.default_rng(0).normal(size=(n, 4))
    points[:, 0] += 2.6 * truth
    return points.astype(np.float32), truth


def shown(truth: np.ndarray, *n_labels: int) -> np.ndarray:
    """The labels of so many photos of each class."""
    labels = np.full(len(truth), UNLABELLED)
    for k, n in enumerate(n_labels):
        labels[np.flatnonzero(truth == k)[:n]] = k
    return labels


# --- the space in which neighbours are found --------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "n_dimensions"), [(400, 128), (10, 10), (2, 2), (1, 1)])
def test_points_of_the_space_have_unit_length_and_at_most_128_dimensions(n: int, n_dimensions: int) -> None:
    features, _ = clusters(2, n)
    points = NeighbourSpace(features)(features)
    assert points.shape == (n, n_dimensions)
    assert points.dtype == np.float32
    assert np.isfinite(points).all()
    if n > 1:  # one photo alone is the mean itself
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-4)


def test_the_space_does_not_depend_on_the_length_of_features_and_evens_out_large_ones() -> None:
    features, truth = clusters(3, 150)
    lengths = np.random.default_rng(0).uniform(0.1, 10, (150, 1)).astype(np.float32)
    space = NeighbourSpace(features)
    np.testing.assert_allclose(space(features * lengths), space(features), atol=1e-4)
    # Three features that are far larger than all others, and alike for all classes, do not decide who is near whom.
    features[:, :3] = np.random.default_rng(1).uniform(0, 100, (150, 3))
    points = NeighbourSpace(features)(features)
    similarity = points @ points.T - 2 * np.eye(150)
    assert (truth[similarity.argmax(1)] == truth).mean() > 0.95


def test_features_of_length_zero_do_no_harm() -> None:
    features, truth = clusters(3, 150)
    features[[3, 77, 120]] = 0
    labels = shown(truth, 3, 3, 3)
    space = NeighbourSpace(features)
    points = space(features)
    assert np.isfinite(points).all()
    spread = spread_labels(points, labels, 3)
    assert np.isfinite(spread.distributions).all()
    assert np.isfinite(spread.predict(space(np.zeros((2, 200), np.float32)))).all()
    whole = np.setdiff1d(np.arange(150), [3, 77, 120])
    assert (spread.distributions.argmax(1)[whole] == truth[whole]).mean() > 0.95
    found = linear_classifier(np.zeros((4, 5), np.float32), np.array([0, 1, 0, 1]), 2)
    np.testing.assert_array_equal(found.logits(np.zeros((1, 5), np.float32)), 0)


# --- label spreading --------------------------------------------------------------------------------------------------


def test_labels_spread_to_the_photos_of_their_class_and_to_new_ones() -> None:
    features, truth = clusters(4, 400)
    new, new_truth = clusters(4, 100, seed=1)
    space = NeighbourSpace(features)
    spread = spread_labels(space(features), shown(truth, 2, 2, 2, 2), 4)
    assert (spread.distributions.argmax(1) == truth).mean() > 0.97
    assert (spread.predict(space(new)).argmax(1) == new_truth).mean() > 0.97
    for distributions in (spread.distributions, spread.predict(space(new))):
        np.testing.assert_allclose(distributions.sum(1), 1, atol=1e-4)


def test_labels_spread_along_a_curve_from_neighbour_to_neighbour() -> None:
    """Two moons with one label each: the nearest label is often that of the other moon."""
    points, truth = make_moons(400, noise=0.05, random_state=0)
    labels = np.full(400, UNLABELLED)
    ends = [int(np.flatnonzero(truth == k)[points[truth == k, 0].argmin()]) for k in (0, 1)]
    labels[ends] = truth[ends]
    distance = np.linalg.norm(points[:, None] - points[ends], axis=2)
    assert (distance.argmin(1) != truth).mean() > 0.2
    spread = spread_labels(points.astype(np.float32), labels, 2)
    assert (spread.distributions.argmax(1) != truth).mean() < 0.05


@pytest.mark.parametrize("n_labels", [(3, 30), (30, 3), (10, 10)])
def test_unequal_numbers_of_labels_do_not_shift_the_spread_labels(n_labels: tuple[int, int]) -> None:
    """Classes that overlap and have as many photos each: each is found about as often, whatever the labels."""
    points, truth = overlapping(600)
    spread = spread_labels(points, shown(truth, *n_labels), 2)
    found = spread.distributions.argmax(1)
    assert 0.05 < (found != truth).mean() < 0.3  # else there is no doubt that a number could decide
    assert 0.35 < found.mean() < 0.65


def test_photos_out_of_reach_of_any_label_have_no_preference() -> None:
    near, truth = clusters(2, 60)
    far = np.zeros((40, 200), np.float32)
    far[:, :20] = np.random.default_rng(0).uniform(5, 6, (40, 20))
    points = np.concatenate([near, far])
    labels = np.concatenate([shown(truth, 3, 3), np.full(40, UNLABELLED)])
    spread = spread_labels(points / np.linalg.norm(points, axis=1, keepdims=True), labels, 2)
    np.testing.assert_allclose(spread.distributions[60:], 0.5, atol=1e-6)


def test_certain_labels_are_those_given_and_the_surer_half_of_each_class() -> None:
    certainty = np.array([0.9, 0.6, 0.8, 0.7, 0.95, 0.55, 0.99, 0.51])
    found = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    distributions = np.where(found[:, None] == [0, 1], certainty[:, None], 1 - certainty[:, None])
    labels = np.full(8, UNLABELLED)
    labels[7] = 0  # given, though its distribution says 1
    kept = certain_labels(SpreadLabels(None, distributions.astype(np.float32)), labels)
    assert kept.tolist() == [0, -1, 0, -1, 1, -1, 1, 0]


def test_certain_labels_of_clusters_are_right() -> None:
    points, truth = overlapping(600)
    labels = shown(truth, 5, 5)
    spread = spread_labels(points, labels, 2)
    kept = certain_labels(spread, labels)
    known = kept != UNLABELLED
    for k in (0, 1):
        added = (spread.distributions.argmax(1) == k) & (labels == UNLABELLED)
        assert (known & added).sum() == round(added.sum() / 2)
    wrong_of_kept = (kept != truth)[known].mean()
    assert wrong_of_kept < 0.7 * (spread.distributions.argmax(1) != truth).mean()


# --- linear classifiers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logits_are_the_decisions_of_logistic_regression(n_classes: int) -> None:
    features, truth = clusters(n_classes, 40, spread=3.0)
    length = np.linalg.norm(features, axis=1).mean()
    theirs = LogisticRegression(C=10.0, class_weight="balanced", max_iter=300).fit(features / length, truth)
    decision = theirs.decision_function(features / length)
    logits = linear_classifier(features, truth, n_classes).logits(features)
    assert logits.shape == (40, n_classes)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits.sum(1), 0, atol=1e-3)
    ours = logits[:, 1] - logits[:, 0] if n_classes == 2 else logits
    np.testing.assert_allclose(ours, decision, atol=1e-2 * abs(decision).max())


def test_rows_without_a_label_are_left_out_and_the_length_of_features_does_not_matter() -> None:
    features, truth = clusters(3, 30)
    with_others = np.concatenate([features, 100 * np.ones((5, 200), np.float32)])
    labels = np.concatenate([truth, np.full(5, UNLABELLED)])
    expected = linear_classifier(features, truth, 3).logits(features)
    np.testing.assert_allclose(linear_classifier(with_others, labels, 3).logits(features), expected, atol=1e-4)
    longer = linear_classifier(100 * features, truth, 3)
    np.testing.assert_allclose(longer.logits(100 * features), expected, atol=1e-2 * abs(expected).max())


def test_classes_weigh_alike_however_many_labels_they_have() -> None:
    """Three photos of one class and ten times their mirror images: the boundary goes through the middle."""
    few = np.random.default_rng(0).normal(1.0, 1.0, (3, 5)).astype(np.float32)
    features = np.concatenate([few, np.repeat(-few, 10, axis=0)])
    found = linear_classifier(features, np.repeat([0, 1], [3, 30]), 2)
    bias, slope = found.bias, found.logits(few)
    assert abs(bias[1] - bias[0]) < 0.02 * abs(slope[:, 0] - slope[:, 1]).max()


def test_a_class_without_a_label_is_a_class_that_nothing_speaks_for() -> None:
    """A part of the labels may have none of a class: the others keep their columns."""
    features, truth = clusters(4, 80)
    for left in ([0, 2, 3], [1, 3], [2]):
        labels = np.where(np.isin(truth, left), shown(truth, 5, 5, 5, 5), UNLABELLED)
        logits = linear_classifier(features, labels, 4).logits(features)
        of_left = np.isin(truth, left)
        assert logits.shape == (80, 4)
        if len(left) > 1:
            assert (logits.argmax(1) == truth)[of_left].all()
        points = NeighbourSpace(features)(features)
        spread = spread_labels(points, labels, 4)
        for distributions in (spread.distributions, spread.predict(points)):
            assert distributions.shape == (80, 4)
            assert np.isin(distributions.argmax(1), left).all()
            assert (distributions.argmax(1) == truth)[of_left].mean() > 0.9
        assert np.isin(certain_labels(spread, labels), [UNLABELLED, *left]).all()


@pytest.mark.parametrize(("n", "expected"), [(2, 1), (9, 3), (30, 6), (90_000, 20)])
def test_more_photos_have_more_neighbours(n: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Told(Exception):  # noqa: N818
        """Nothing has to be computed."""

    def told(**options: Any) -> None:
        asked.append(options["n_neighbors"])
        raise Told

    monkeypatch.setattr(spreading, "LabelSpreading", told)
    with pytest.raises(Told):
        spread_labels(np.zeros((n, 2), np.float32), np.zeros(n, np.int64), 2)
    assert asked == [expected]
