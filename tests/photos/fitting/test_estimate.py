"""The estimate of the error: who tests whom, and for which mix of classes it holds."""

import numpy as np
import pytest

from clusters import clusters, shown
from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting import estimate as module
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


def test_the_groups_of_each_class_are_dealt_to_the_folds_in_turn_and_the_next_class_goes_on_from_there() -> None:
    labels = np.array([2] * 7 + [0] * 6 + [-1] * 3 + [1] * 2 + [0])
    groups = np.array([0, 0, 1, 2, 3, 4, 4, *range(10, 16), 20, 21, 22, 30, 31, 16])
    folds = module._folds(labels, groups, seed=0)
    assert (folds == -1).tolist() == (labels == UNLABELLED).tolist()
    for group in np.unique(groups):
        assert len(set(folds[groups == group])) == 1
    # Seven groups of class 0, then two of class 1, then five of class 2.
    sizes = {
        k: np.bincount([folds[groups == g][0] for g in np.unique(groups[labels == k])], minlength=5) for k in range(3)
    }
    assert [sizes[k].tolist() for k in range(3)] == [[2, 2, 1, 1, 1], [0, 0, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert module._folds(labels, groups, seed=0).tolist() == folds.tolist()
    assert any(module._folds(labels, groups, seed=k).tolist() != folds.tolist() for k in range(1, 4))


def test_photos_are_compared_with_thinned_out_labelled_ones_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN", 10)
    draws = np.random.default_rng(0)
    labels, features = draws.permutation([2] * 13 + [0] * 8 + [1] * 2), 3 * draws.normal(size=(23, 4))
    groups = np.arange(23) // 2
    known = known_photos(features, labels, groups)
    assert known is not None
    # More than twice ten labels, so every third one of each class.
    rows = np.concatenate([np.flatnonzero(labels == k)[::3] for k in range(3)])
    directions = features[rows] / np.linalg.norm(features[rows], axis=1, keepdims=True)
    np.testing.assert_allclose(known.features, directions, atol=1e-5)
    others = groups[rows][:, None] != groups[rows]
    nearest = np.array([1 - max((one @ directions.T)[keep]) for one, keep in zip(directions, others, strict=True)])
    assert known.strange_above == pytest.approx(nearest.mean() + 2 * nearest.std(), rel=1e-4)


def test_equal_photos_still_leave_room_for_those_that_are_nearly_the_same() -> None:
    known = known_photos(np.ones((4, 3)), np.array([0, 0, 1, 1]), np.arange(4))
    assert known is not None
    assert known.strange_above == pytest.approx(1e-3)


def test_the_most_similar_known_photo_is_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    features, truth = clusters(3, 20)
    known = known_photos(features[0], truth, np.arange(20))
    assert known is not None
    whole = most_similar(features[0][:11] + 0.5, known)
    monkeypatch.setattr(module, "_CHUNK", 3)
    np.testing.assert_allclose(most_similar(features[0][:11] + 0.5, known), whole, rtol=1e-5)
    rows = features[0][:11] + 0.5
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(whole, (rows @ known.features.numpy().T).max(1), rtol=1e-5)


def test_the_error_on_independent_photos_counts_groups_by_their_sizes() -> None:
    """Photos of one group are one photo; of groups of 4, 1 and 1, the six photos tell as much as two."""
    found = answered([0] * 6 + [1] * 3, [0, 0, 0, 0, 1, 0, 1, 1, 0], groups=np.array([7, 7, 7, 7, 3, 1, 4, 5, 6]))
    result = error_estimate(found, np.array([0.25, 0.75]))
    error = 0.25 / 6 + 0.75 / 3
    n = 1 / (0.25**2 / (36 / 18) + 0.75**2 / 3) / (1 + 5 / 4)
    interval = error_interval(error * n, n)
    assert result.error == pytest.approx(error)
    assert (result.low, result.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert (result.n, result.wrong, result.frequencies) == (9, 2, (0.25, 0.75))
    assert result.per_class == (pytest.approx(1 / 6), pytest.approx(1 / 3))


def test_a_temperature_makes_the_tested_labels_most_probable_and_the_probabilities_have_it() -> None:
    features, truth = clusters(3, 60, spread=1.5)
    found = cross_validated(features, truth, 3, groups=np.arange(60), seed=0)

    def cost(temperature: float) -> float:
        logits = found.logits.astype(np.float64) / temperature
        return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(60), truth]).mean())

    assert cost(found.temperature) <= min(cost(found.temperature * factor) for factor in (0.8, 1.25)) + 1e-6
    scaled = np.exp(found.logits / found.temperature)
    np.testing.assert_allclose(found.probabilities, scaled / scaled.sum(1, keepdims=True), rtol=1e-4)
    assert found.wrong.tolist() == (found.logits.argmax(1) != truth).tolist()
