"""Heads on features whose classes are known."""

import numpy as np
import pytest
import torch
from scipy import sparse
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


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(40, 5), (90, 8), (180, 10)])
def test_there_is_a_neighbour_for_so_many_photos_of_a_class_of_mean_size_within_limits(
    n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_PHOTOS_PER_NEIGHBOUR", 4)
    asked = []
    monkeypatch.setattr(heads, "neighbour_weights", lambda x, k: asked.append(k) or neighbour_weights(x, k))
    features, truth = clusters(3, n)
    fit_head(features, shown(truth, 3), 3, seed=0)
    assert asked == [k]


def test_mean_teacher_is_that_of_torch_with_adam_and_the_mean_of_both_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_ROUNDS", 3)
    features, truth = clusters(3, 0, spread=0.8, n_views=5, counts=(40, 30, 20))
    features *= 7
    labels = shown(truth, 4)
    known = labels != UNLABELLED
    start = labels_alone(features, labels, 3)
    found = heads._mean_teacher(features, labels, start, 3)

    x = torch.from_numpy(features).double() / np.linalg.norm(features[0][known], axis=1).mean()
    length = float(np.linalg.norm(features[0][known], axis=1).mean())
    seen = x[:3].mean(0)
    neighbours = neighbour_weights(seen.float().numpy(), 5)
    first = torch.from_numpy(np.column_stack([start.weight * length, start.bias]) / 0.45).double()
    student = first.clone().requires_grad_(True)
    teacher = first.clone()

    def logits(head: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return rows @ head[:, :-1].T + head[:, -1]

    def answers() -> np.ndarray:
        return logits(teacher, seen).softmax(1).float().numpy()

    mix = heads.class_mix(answers()[~known], np.array([4, 4, 4]))
    rows, views = heads._drawn(labels, 5, np.random.default_rng(heads.derive_seed(3, "head")))
    adam = torch.optim.Adam([student], lr=1.0)
    for step in range(30):
        if step % 10 == 0:
            targets, certain = heads._targets(answers(), labels, mix, neighbours)
        shown_now = logits(student, x[views[step], rows[step]])
        taught, others = rows[step, :32], rows[step, 32:]
        given = torch.nn.functional.cross_entropy(shown_now[:32], torch.from_numpy(labels[taught]))
        aims = torch.from_numpy(targets[others] * certain[others, None]).double()
        cost = given - (aims * shown_now[32:].log_softmax(1)).sum() / 256
        adam.zero_grad()
        cost.backward()
        adam.param_groups[0]["lr"] = 0.1 * min(1, step / 20) * (1 + np.cos(np.pi * step / 600)) / 2
        adam.step()
        decay = min(1 - 1 / (step + 1), 0.99)
        teacher = decay * teacher + (1 - decay) * student.detach()
    expected = ((teacher + first) / 2).numpy()
    moved = np.abs(expected - first.numpy()).max()
    assert moved > 0.1
    np.testing.assert_allclose(found.weight * length, expected[:, :-1], atol=0.02 * moved)
    np.testing.assert_allclose(found.bias, expected[:, -1], atol=0.02 * moved)


def test_all_labelled_photos_are_learned_from_and_as_many_others_as_are_useful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_MOST", 5)
    labels = np.array([2, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1])
    found = heads.some(labels, 0)
    assert found.tolist() == sorted(found)
    assert {0, 2, 5, 8} < set(found.tolist())
    assert (len(found), len(set(found.tolist()))) == (9, 9)
    assert any(heads.some(labels, seed).tolist() != found.tolist() for seed in range(1, 5))
    assert heads.some(labels[:5], 0).tolist() == [0, 1, 2, 3, 4]


def test_twenty_unlabelled_photos_teach_and_labels_of_three_times_the_median_do_not_matter_yet() -> None:
    features, truth = clusters(3, 0, counts=(40, 30, 30))
    for n_labels, n_unlabelled, learns in [
        ((4, 4, 4), 20, True),
        ((4, 4, 4), 19, False),
        ((12, 4, 4), 30, True),
        ((13, 4, 4), 30, False),
        ((5, 0, 0), 30, False),
        ((5, 0, 9), 30, True),
    ]:
        labels = np.full(len(truth), UNLABELLED)
        for k, n in enumerate(n_labels):
            labels[np.flatnonzero(truth == k)[:n]] = k
        rows = np.concatenate([np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)[:n_unlabelled]])
        few, given = features[:, rows], labels[rows]
        same = np.array_equal(fit_head(few, given, 3, seed=0).weight, labels_alone(few, given, 3).weight)
        assert same != learns, (n_labels, n_unlabelled)


def test_targets_are_aligned_to_the_frequencies_and_sharpened_and_labels_stay() -> None:
    given = np.array([[0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [0.2, 0.8]], np.float32)
    labels = np.array([-1, 1, -1, -1])
    alone = sparse.csr_matrix((4, 4))
    targets, certain = heads._targets(given, labels, np.array([0.55, 0.45]), alone)
    # The unlabelled answers have the mean (11, 19) / 30.
    odds = np.array([0.6 / 0.4, 0, 0.3 / 0.7, 0.2 / 0.8]) * (0.55 / 0.45) * (19 / 11)
    expected = odds / (1 + odds)
    assert certain.tolist() == (np.maximum(expected, 1 - expected) >= 0.7).tolist() == [True, True, False, False]
    np.testing.assert_allclose(targets[:, 0], odds**10 / (1 + odds**10), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-5)


def test_answers_come_in_part_from_the_neighbours_and_known_ones_stay() -> None:
    own = np.array([[1.0, 0.0], [0.4, 0.6], [0.2, 0.8]])
    chain = sparse.csr_matrix(np.array([[0, 1.0, 0], [0.5, 0, 0.5], [0, 1.0, 0]]))
    found = heads.smoothed(own, np.array([True, False, False]), chain, share=0.25, times=2)
    first = [0.25 * (1 + 0.2) / 2 + 0.75 * 0.4, 0.25 * 0.4 + 0.75 * 0.2]
    second = [0.25 * (1 + first[1]) / 2 + 0.75 * 0.4, 0.25 * first[0] + 0.75 * 0.2]
    np.testing.assert_allclose(found[:, 0], [1, *second])
    np.testing.assert_allclose(found.sum(1), 1)


def test_neighbours_are_the_most_similar_photos_in_either_direction_by_the_cube_of_their_cosine() -> None:
    features = np.random.default_rng(1).normal(size=(30, 6)).astype(np.float32)
    rooted = np.sign(features) * np.sqrt(np.abs(features)).astype(np.float64)
    rooted /= np.linalg.norm(rooted, axis=1, keepdims=True)
    centred = rooted - rooted.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    cosines = centred @ centred.T
    np.fill_diagonal(cosines, -2)
    order = np.sort(-cosines, axis=1)
    assert (order[:, 4] - order[:, 3]).min() > 1e-4, "rounding decides which photos are neighbours"
    one_way = np.where(-cosines <= order[:, 3:4], cosines.clip(0) ** 3, 0)
    both = one_way + one_way.T
    np.testing.assert_allclose(neighbour_weights(features, 4).toarray(), both / both.sum(1, keepdims=True), atol=1e-4)


def test_neighbours_of_many_photos_are_found_in_parts() -> None:
    features, truth = clusters(3, 1100, spread=0.3)
    weights = neighbour_weights(features[0], 5)
    assert not weights.diagonal().any()
    np.testing.assert_allclose(np.asarray(weights.sum(1)).ravel(), 1, rtol=1e-5)
    rows, columns = weights.nonzero()
    assert (truth[rows] == truth[columns]).all()
    assert weights.getnnz(1).min() >= 5
    assert neighbour_weights(features[0][:3], 5).shape == (3, 3), "there are fewer photos than neighbours"


def test_features_without_a_direction_or_length_give_finite_answers() -> None:
    np.testing.assert_allclose(heads.unit_length(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    labels = np.array([0, 1, 1])
    head = logistic_regression(np.zeros((3, 4), np.float32), labels, 2)
    np.testing.assert_allclose(head.probabilities(np.zeros((1, 4))), [[0.5, 0.5]], atol=1e-3)


def test_probabilities_are_those_of_the_logits_over_the_temperature() -> None:
    head = Head(np.array([[2.0, 0], [0, 1]], np.float32), np.array([0.5, -0.5], np.float32), 0.25)
    features = np.array([[[0.5, 1.0]], [[0.0, 2.0]]])
    np.testing.assert_allclose(head.logits(features), [[[1.5, 0.5]], [[0.5, 1.5]]])
    odds = np.exp(4)
    np.testing.assert_allclose(head.probabilities(features)[:, 0, 0], [odds / (1 + odds), 1 / (1 + odds)], rtol=1e-5)
    big = heads.softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]]))
    np.testing.assert_allclose(big, [[1, 0], [0.5, 0.5]])
