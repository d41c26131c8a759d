"""Linear heads on the stored features of a pretrained network, taught by the labels and by the other photos.

Logistic regression on the labels is the start. Then Mean Teacher trains it on all photos, in memory and in seconds: the
teacher answers for every photo, its answers are corrected by the class frequencies of the folder and by the answers for
similar photos, and the student learns the certain ones from other views. The head is the mean of both
(docs/experiments/heads.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.decomposition import PCA

from meanteacher.core import UNLABELLED
from meanteacher.schedules import Cosine, LinearWarmUp, Product
from meanteacher.seeding import derive_seed
from meanteacher.teacher import warmed_up

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_STRENGTH = 10.0
"""Inverse of the regularisation of logistic regression, for features of unit length on average."""
_ITERATIONS = 200
_TEMPERATURE = 0.45
"""Divisor that calibrates the logits of logistic regression: 0.4 to 0.6 with 1 to 20 labels per class."""
_FEWEST, _MOST = 20, 10_000
"""Fewer unlabelled photos teach nothing, and more hardly anything further."""

_UNEQUAL = 3.0
"""Times as many labels as the median class from which the labels of the most frequent class are too many: regression
fits classes with few labels so roughly that their answers teach nothing (docs/experiments/heads.md)."""

_SHRINKING = 10.0
"""Divided by the squared number of labels per class, the weight of the labels' frequencies in each step of the estimate
of class frequencies."""
_FREQUENCY_STEPS = 100

_DIMENSIONS = 128
"""Dimensions of the space in which neighbours are found: as good as all of them, in a tenth of the time."""
_NEIGHBOURS, _PHOTOS_PER_NEIGHBOUR = (5, 10), 60
"""At least and at most; in between, one for so many photos of a class of mean size."""
_FROM_NEIGHBOURS = 0.5
"""Share of a photo's target that comes from its neighbours."""
_SPREADS = 5

_TEACHER_VIEWS = 3
"""First views of each photo, whose mean the teacher sees. The student sees the others, if there are any."""
_ROUNDS, _STEPS = 60, 10
"""The teacher answers anew in each round of so many steps."""
_LABELLED_ROWS, _ROWS = 32, 256
_DECAY = 0.99
_RATE = Product((LinearWarmUp(first=0.0, value=0.1, steps=20), Cosine(value=1.0, steps=_ROUNDS * _STEPS)))
_THRESHOLD, _SHARPENING = 0.7, 0.1
"""Probability from which a target is certain, and the divisor of the logits of targets."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A linear classifier of features: logits = features @ weight.T + bias."""

    weight: Floats
    """[n_classes, D]"""
    bias: Floats
    """[n_classes]"""
    temperature: float = 1.0
    """Divisor of the logits in `probabilities`."""

    def logits(self, features: NDArray[Any]) -> Floats:
        """[..., D] -> [..., n_classes]."""
        return np.asarray(features, np.float32) @ self.weight.T + self.bias

    def probabilities(self, features: NDArray[Any]) -> Floats:
        """[..., D] -> [..., n_classes]."""
        return softmax(self.logits(features) / self.temperature)


def fit_head(features: NDArray[Any], labels: Ints, n_classes: int, *, seed: int) -> Head:
    """The head that a fit ships: the mean of logistic regression on the labels and Mean Teacher on all photos.

    It stays with the regression if there is nothing to learn from, or if the labels are very unequal.

    Args:
        features: [n_views, N, D]; the first view is the photo itself
        labels: [N], `UNLABELLED` for photos without a label
        n_classes: number of classes. A class without a label is never predicted.
        seed: seed of all draws
    """
    known = labels != UNLABELLED
    start = logistic_regression(features[0][known], labels[known], n_classes)
    n_labels = np.bincount(labels[known])
    n_labels = n_labels[n_labels > 0]
    if (~known).sum() < _FEWEST or len(n_labels) < 2 or n_labels.max() > _UNEQUAL * np.median(n_labels):
        return start
    rows = some(labels, seed)
    return _mean_teacher(features[:, rows], labels[rows], start, seed)


def some(labels: Ints, seed: int) -> Ints:
    """Positions of all labelled photos, and of at most `_MOST` others."""
    unlabelled = np.flatnonzero(labels == UNLABELLED)
    drawn = np.random.default_rng(derive_seed(seed, "unlabelled photos")).permutation(unlabelled)[:_MOST]
    return np.sort(np.concatenate([np.flatnonzero(labels != UNLABELLED), drawn]))


def logistic_regression(features: NDArray[Any], labels: Ints, n_classes: int) -> Head:
    """Logistic regression on labelled photos [n, D], in which every class weighs the same."""
    from scipy.optimize import minimize

    length, d = _length(features), features.shape[1]
    x = np.asarray(features, np.float32) / length
    present, y = np.unique(labels, return_inverse=True)
    k, counts = len(present), np.bincount(y)
    weights = (len(y) / k / counts)[y].astype(np.float32)[:, None]
    aims = np.eye(k, dtype=np.float32)[y] * weights

    def cost(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weight, bias = flat[: k * d].reshape(k, d).astype(np.float32), flat[k * d :].astype(np.float32)
        logits = x @ weight.T + bias
        logits -= logits.max(1, keepdims=True)
        exponentials = np.exp(logits)
        total = exponentials.sum(1, keepdims=True)
        value = float((aims * (np.log(total) - logits)).sum(dtype=np.float64))
        penalty = float(np.square(weight, dtype=np.float64).sum()) / (2 * _STRENGTH)
        slope = exponentials * (weights / total) - aims
        gradient = np.concatenate([(slope.T @ x + weight / _STRENGTH).ravel(), slope.sum(0)])
        return value + penalty, gradient.astype(np.float64)

    found = minimize(cost, np.zeros(k * (d + 1)), jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS}).x
    weight, bias = np.zeros((n_classes, d), np.float32), np.full(n_classes, _NEVER, np.float32)
    weight[present], bias[present] = found[: k * d].reshape(k, d) / length, found[k * d :]
    return Head(weight, bias, _TEMPERATURE)


_NEVER = -1e4
"""Bias of a class without labels."""


def _mean_teacher(features: NDArray[Any], labels: Ints, start: Head, seed: int) -> Head:
    """Train the head on all photos. The student sees one view of each row, the teacher the mean of its own.

    Written with numpy: the gradient of a linear layer is short, and torch takes ten times as long for so small a one.
    """
    n_views, n, d = features.shape
    known, n_classes = labels != UNLABELLED, len(start.bias)
    length = _length(features[0][known])
    seen = np.asarray(features[:_TEACHER_VIEWS], np.float32).mean(0) / length
    fewest, most = _NEIGHBOURS
    neighbours = neighbour_weights(seen, min(most, max(fewest, round(n / n_classes / _PHOTOS_PER_NEIGHBOUR))))
    # The last column is the bias.
    first = np.column_stack([start.weight * length, start.bias]) / start.temperature
    student = teacher = np.asarray(first, np.float32)
    n_labels = np.bincount(labels[known], minlength=n_classes)
    frequencies = class_mix(_answers(teacher, seen)[~known], n_labels)
    rows, views = _drawn(labels, n_views, np.random.default_rng(derive_seed(seed, "head")))
    given = np.eye(n_classes, dtype=np.float32)[labels]
    mean, square = np.zeros_like(student), np.zeros_like(student)
    shown = np.ones((rows.shape[1], d + 1), np.float32)
    for step in range(_ROUNDS * _STEPS):
        if step % _STEPS == 0:
            targets, certain = _targets(_answers(teacher, seen), labels, frequencies, neighbours)
        labelled, others = rows[step, :_LABELLED_ROWS], rows[step, _LABELLED_ROWS:]
        shown[:, :-1] = features[views[step], rows[step]]
        shown[:, :-1] /= length
        # Cross-entropy with the labels, and with the targets that are certain.
        slope = softmax(shown @ student.T)
        slope[:_LABELLED_ROWS] = (slope[:_LABELLED_ROWS] - given[labelled]) / _LABELLED_ROWS
        slope[_LABELLED_ROWS:] = (slope[_LABELLED_ROWS:] - targets[others]) * (certain[others, None] / _ROWS)
        gradient = slope.T @ shown
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        t = step + 1
        student = student - _RATE(step) * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        decay = warmed_up(_DECAY, step)
        teacher = np.asarray(decay * teacher + (1 - decay) * student, np.float32)
    # The mean of both: what the teacher has learned, held back where regression is sure of something else.
    found = (teacher + first) / 2
    return Head(np.asarray(found[:, :-1] / length, np.float32), np.asarray(found[:, -1], np.float32))


def _answers(head: Floats, seen: Floats) -> Floats:
    return softmax(seen @ head[:, :-1].T + head[:, -1])


def _drawn(labels: Ints, n_views: int, draws: np.random.Generator) -> tuple[Ints, Ints]:
    """The rows of all steps, labelled ones of each class alike and then any, and the view of each."""
    known, n_steps = np.flatnonzero(labels != UNLABELLED), _ROUNDS * _STEPS
    chances = 1 / np.bincount(labels[known])[labels[known]]
    labelled = draws.choice(known, (n_steps, _LABELLED_ROWS), p=chances / chances.sum())
    others = draws.integers(len(labels), size=(n_steps, _ROWS))
    first = _TEACHER_VIEWS if n_views > _TEACHER_VIEWS else 0
    views = [draws.integers(n_views, size=labelled.shape), draws.integers(first, n_views, size=others.shape)]
    return np.concatenate([labelled, others], 1), np.concatenate(views, 1)


def _targets(
    given: Floats, labels: Ints, frequencies: NDArray[np.float64], neighbours: sparse.csr_matrix
) -> tuple[Floats, NDArray[np.bool_]]:
    """The teacher's answers as sharpened targets [N, n_classes], and which are certain, [N].

    They are aligned to the class frequencies (Berthelot et al. 2020) and smoothed over the neighbours (Zhou et al.
    2004); labelled photos answer with their label.
    """
    known = labels != UNLABELLED
    own = given * (frequencies / given[~known].mean(0).clip(1e-6))
    own /= own.sum(1, keepdims=True)
    own[known] = np.eye(given.shape[1])[labels[known]]
    found = smoothed(own, known, neighbours, share=_FROM_NEIGHBOURS, times=_SPREADS)
    return softmax(np.log(found.clip(1e-12)) / _SHARPENING), found.max(1) >= _THRESHOLD


def smoothed(
    own: NDArray[Any], known: NDArray[np.bool_], neighbours: sparse.csr_matrix, *, share: float, times: int
) -> NDArray[Any]:
    """Answers [N, n_classes], of which a share comes from the neighbours; those of `known` photos stay."""
    found = own
    for _ in range(times):
        found = share * (neighbours @ found) + (1 - share) * own
        found[known] = own[known]
    return np.asarray(found / found.sum(1, keepdims=True))


def class_mix(probabilities: NDArray[Any], n_labels: NDArray[Any]) -> NDArray[np.float64]:
    """The class frequencies among unlabelled photos, [K], by expectation maximisation (Saerens et al. 2002).

    `probabilities` are [n, K] by a calibrated head that was fitted to `n_labels` [K] of each class. It expects the
    frequencies of its labels, although each class weighs the same: few labels give a class little room. The estimate
    is shrunk towards these frequencies, the more the fewer labels there are of a class: the posteriors of few labels
    are too rough to estimate anything from.
    """
    present = n_labels > 0
    shrinking = _SHRINKING * float(np.mean(1 / n_labels[present])) ** 2
    prior = n_labels / n_labels.sum()
    found = np.asarray(prior, np.float64)
    for _ in range(_FREQUENCY_STEPS):
        shifted = probabilities * (found / prior.clip(1e-12))
        shifted /= shifted.sum(1, keepdims=True).clip(1e-12)
        found = (shifted.mean(0) + shrinking * prior) / (1 + shrinking)
    return found


def neighbour_weights(features: Floats, k: int) -> sparse.csr_matrix:
    """Sparse [N, N]: the weights of the k nearest neighbours of each photo, which sum to 1."""
    # The root evens out the few large features, and the mean, which the principal components leave out, is what all
    # photos share: photos of one kind are then nearer to each other.
    rooted, n = unit_length(np.sign(features) * np.sqrt(np.abs(features))), len(features)
    space = PCA(min(_DIMENSIONS, *rooted.shape), svd_solver="randomized", iterated_power=2, random_state=0).fit(rooted)
    points, k = unit_length(space.transform(rooted)), min(k, n - 1)
    nearest, similarity = np.empty((n, k), np.int64), np.empty((n, k), np.float32)
    for first in range(0, n, 1024):
        rows = slice(first, min(first + 1024, n))
        cosines = points[rows] @ points.T
        cosines[np.arange(rows.stop - first), np.arange(first, rows.stop)] = -2  # a photo is no neighbour of itself
        nearest[rows] = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        similarity[rows] = np.take_along_axis(cosines, nearest[rows], 1)
    values = similarity.clip(0) ** 3
    one_way = sparse.csr_matrix((values.ravel(), (np.repeat(np.arange(n), k), nearest.ravel())), (n, n))
    both = one_way + one_way.T
    return sparse.csr_matrix(sparse.diags(1 / np.asarray(both.sum(1)).ravel().clip(1e-12)) @ both)


def unit_length(rows: NDArray[Any]) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12), dtype=np.float32)


def softmax(logits: NDArray[Any]) -> Floats:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True), np.float32)


def _length(features: NDArray[Any]) -> float:
    return float(np.linalg.norm(np.asarray(features, np.float32), axis=1).mean()) or 1.0
