"""The estimate of the error: who tests whom, and for which mix of classes it holds."""

import numpy as np
import pytest

from clusters import clusters, shown
from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.estimate import (
    VARIANCE,
    OutOfFold,
    class_frequencies,
    cross_validated,
    error_estimate,
    known_photos,
    label_doubts,
    most_similar,
)
from meanteacher.photos.fitting.heads import Head, fit_head
from meanteacher.stats import error_interval


def answered(labels: list[int], guesses: list[int], groups: np.ndarray | None = None) -> OutOfFold:
    positions = np.arange(len(labels))
    logits = 9 * np.eye(2, dtype=np.float32)[np.array(guesses, dtype=np.int64)]
    truth = np.array(labels, dtype=np.int64)
    return OutOfFold(positions, truth, logits, 1.0, positions if groups is None else groups)


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


def test_of_some_folds_only_their_photos_are_tested() -> None:
    features, truth = clusters(2, 60)
    labels, groups = np.where(np.arange(60) < 48, truth, UNLABELLED), np.arange(60)
    every = cross_validated(features, labels, 2, groups=groups, seed=0)
    two = cross_validated(features, labels, 2, groups=groups, seed=0, n_tested=2)
    assert len(two.labels) == len(two.groups) == pytest.approx(2 / 5 * len(every.labels), abs=1)
    among = np.isin(every.positions, two.positions)
    np.testing.assert_array_equal(two.logits, every.logits[among])


def test_a_class_whose_labels_are_one_group_is_learned_from_and_not_tested() -> None:
    features, truth = clusters(3, 30)
    groups = np.where(truth == 2, -1, np.arange(30))
    found = cross_validated(features, truth, 3, groups=groups, seed=0)
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
    assert error_estimate(found, np.array([0.0, 1.0])).high == pytest.approx(
        error_interval(5 / VARIANCE, 10 / VARIANCE).high
    )


def test_photos_of_one_group_count_once() -> None:
    labels, guesses = [0] * 12 + [1] * 12, [0] * 9 + [1] * 3 + [1] * 12
    alone = error_estimate(answered(labels, guesses), np.full(2, 0.5))
    bursts = error_estimate(answered(labels, guesses, groups=np.arange(24) // 3), np.full(2, 0.5))
    assert alone.error == bursts.error
    assert bursts.high == pytest.approx(error_interval(1 / VARIANCE, 8 / VARIANCE).high)
    assert alone.high == pytest.approx(error_interval(3 / VARIANCE, 24 / VARIANCE).high)


def test_wrong_labels_are_doubted_and_right_ones_are_not() -> None:
    features, truth = clusters(4, 300, spread=0.7)
    labels, wrong = shown(truth, 15), np.array([3, 20, 41])
    wrong = np.flatnonzero(labels != UNLABELLED)[wrong]
    labels[wrong] = (labels[wrong] + 1) % 4
    doubts = label_doubts(features[0], labels, 4, groups=np.arange(300), seed=0)
    assert np.isnan(doubts[labels == UNLABELLED]).all()
    assert (doubts[wrong] >= 0.5).all()
    others = np.setdiff1d(np.flatnonzero(labels != UNLABELLED), wrong)
    assert (doubts[others] >= 0.5).sum() <= 2


def test_a_wrong_label_is_not_defended_by_photos_of_its_group() -> None:
    features, truth = clusters(3, 120, spread=0.5)
    labels, groups = shown(truth, 8), np.arange(120)
    burst = np.flatnonzero(labels == 1)[:3]
    features[0, burst] = features[0, burst[0]]
    labels[burst], groups[burst] = 2, 7
    assert (label_doubts(features[0], labels, 3, groups=groups, seed=0)[burst] >= 0.5).all()


def test_photos_unlike_any_labelled_one_are_strange() -> None:
    features, truth = clusters(4, 200, spread=0.3)
    strangers = np.random.default_rng(5).uniform(0, 2, (60, 40))
    labels = shown(truth, 10)
    labelled = labels != UNLABELLED
    known = known_photos(features[0][labelled], labels[labelled], np.arange(40))
    assert known is not None
    usual, strange = (known.strangeness(most_similar(some, known)) for some in (features[0][~labelled], strangers))
    assert (usual > 1).mean() < 0.15
    assert (strange > 1).mean() > 0.85


def test_photos_of_a_burst_do_not_make_all_others_strange() -> None:
    features, truth = clusters(3, 90, spread=0.3)
    things = np.concatenate([np.flatnonzero(truth == k)[:5] for k in range(3)])
    shots, groups = np.repeat(features[0][things], 4, axis=0), np.repeat(np.arange(15), 4)
    known = known_photos(shots, np.repeat(truth[things], 4), groups)
    assert known is not None
    assert (known.strangeness(most_similar(features[0], known)) > 1).mean() < 0.15
    assert known_photos(shots[:4], truth[:4], np.zeros(4)) is None


def test_the_frequencies_of_answers_are_their_mean() -> None:
    np.testing.assert_allclose(class_frequencies(np.array([[0.5, 0.5], [1.0, 0.0]])), [0.75, 0.25])
