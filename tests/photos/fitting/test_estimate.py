"""The estimate of the error: who tests whom, and for which mix of classes it holds."""

import numpy as np
import pytest

from clusters import clusters, shown
from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.estimate import (
    OutOfFold,
    class_frequencies,
    cross_validated,
    error_estimate,
)
from meanteacher.photos.fitting.heads import Head, fit_head
from meanteacher.stats import error_interval


def answered(labels: list[int], guesses: list[int], groups: np.ndarray | None = None) -> OutOfFold:
    positions = np.arange(len(labels))
    logits = 9 * np.eye(2, dtype=np.float32)[np.array(guesses, dtype=np.int64)]
    truth = np.array(labels, dtype=np.int64)
    return OutOfFold(positions, truth, logits, 1.0, (), positions if groups is None else groups)


def test_no_head_sees_the_group_of_a_photo_that_it_is_tested_on() -> None:
    features, truth = clusters(2, 60)
    features[0, :, 0] = groups = np.arange(60) // 6 * 2 + truth
    seen = []

    def fit(features: np.ndarray, labels: np.ndarray, n_classes: int, *, seed: int) -> Head:
        seen.append(set(features[0, :, 0]))
        head = fit_head(features, labels, n_classes, seed=seed)
        return Head(head.weight, head.bias + len(seen))  # so that the logits tell which head it was

    labels = np.where(np.arange(60) < 48, truth, UNLABELLED)
    found = cross_validated(features, labels, 2, groups=groups, seed=0, fit=fit)
    assert found.positions.tolist() == np.flatnonzero(labels != UNLABELLED).tolist()
    assert len(seen) == 5
    for head_seen in seen:
        assert head_seen < set(groups)
    assert all(sum(group not in head_seen for head_seen in seen) == 1 for group in set(groups[labels != UNLABELLED]))


def test_a_class_whose_labels_are_one_group_is_learned_from_and_not_tested() -> None:
    features, truth = clusters(3, 30)
    groups = np.where(truth == 2, -1, np.arange(30))
    found = cross_validated(features, truth, 3, groups=groups, seed=0)
    assert found.untested == (2,)
    assert set(found.labels) == {0, 1}
    assert error_estimate(found, np.full(3, 1 / 3)).per_class[2] is None


def test_with_one_label_per_class_nothing_is_estimated() -> None:
    features, truth = clusters(3, 30)
    found = cross_validated(features, shown(truth, 1), 3, groups=np.arange(30), seed=0)
    estimate = error_estimate(found, np.full(3, 1 / 3))
    assert (estimate.error, estimate.n, estimate.low, estimate.high) == (None, 0, 0, 1)


def test_errors_of_classes_are_weighted_by_their_frequency() -> None:
    found = answered([0] * 10 + [1] * 10, [0] * 10 + [0] * 5 + [1] * 5)
    even, skewed = (error_estimate(found, np.array(mix)) for mix in ([0.5, 0.5], [0.9, 0.1]))
    assert even.error == pytest.approx(0.25)
    assert skewed.error == pytest.approx(0.05)
    assert even.wrong == skewed.wrong == 5
    assert skewed.low < 0.05 < skewed.high
    # A mix that rests on one class alone is tested by half as many photos.
    assert error_estimate(found, np.array([0.0, 1.0])).high == pytest.approx(error_interval(5, 10).high)


def test_a_class_that_is_hardly_ever_recognised_is_named() -> None:
    found = answered([0] * 10 + [1] * 10, [0] * 19 + [1])
    assert error_estimate(found, np.full(2, 0.5)).unrecognised == (1,)


def test_photos_of_one_group_count_once() -> None:
    labels, guesses = [0] * 12 + [1] * 12, [0] * 9 + [1] * 3 + [1] * 12
    alone = error_estimate(answered(labels, guesses), np.full(2, 0.5))
    bursts = error_estimate(answered(labels, guesses, groups=np.arange(24) // 3), np.full(2, 0.5))
    assert alone.error == bursts.error
    assert bursts.high == pytest.approx(error_interval(1, 8).high)
    assert alone.high == pytest.approx(error_interval(3, 24).high)


def test_the_frequencies_of_answers_are_their_mean() -> None:
    np.testing.assert_allclose(class_frequencies(np.array([[0.5, 0.5], [1.0, 0.0]])), [0.75, 0.25])
