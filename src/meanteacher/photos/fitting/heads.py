"""Linear heads on the stored features of a pretrained network, taught by the labels and by the other photos.

Logistic regression on the labels is the start. Then Mean Teacher trains it on all photos, in memory and in seconds: the
teacher answers for every photo, its answers are corrected by the class frequencies of the folder and by the answers for
similar photos, and the student learns the certain ones from other views. The head is the mean of both
(docs/experiments/heads.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.decomposition import PCA
from torch import Tensor, nn

from meanteacher.core import UNLABELLED
from meanteacher.costs import Confident, classification_cost
from meanteacher.schedules import Cosine, LinearWarmUp, Product
from meanteacher.seeding import derive_seed, generator
from meanteacher.teacher import Teacher, warmed_up

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
_COST = Confident(threshold=0.7, temperature=0.1)


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
    """Train the head on all photos. The student sees one view of each row, the teacher the mean of its own."""
    n_views, n, _ = features.shape
    known, n_classes = labels != UNLABELLED, len(start.bias)
    length = _length(features[0][known])
    seen = np.asarray(features[:_TEACHER_VIEWS], np.float32).mean(0) / length
    fewest, most = _NEIGHBOURS
    neighbours = neighbour_weights(seen, min(most, max(fewest, round(n / n_classes / _PHOTOS_PER_NEIGHBOUR))))
    student = nn.Linear(features.shape[2], n_classes)
    with torch.no_grad():
        student.weight.copy_(torch.from_numpy(start.weight * (length / start.temperature)))
        student.bias.copy_(torch.from_numpy(start.bias / start.temperature))
    teacher = Teacher(student)
    n_labels = np.bincount(labels[known], minlength=n_classes)
    frequencies = class_mix(softmax(teacher(torch.from_numpy(seen)).numpy())[~known], n_labels)
    draws = generator(seed, "head")
    rows = _drawn_rows(labels, draws)
    first = _TEACHER_VIEWS if n_views > _TEACHER_VIEWS else 0
    of_labelled = torch.randint(n_views, rows[0].shape, generator=draws)
    of_others = torch.randint(first, n_views, rows[1].shape, generator=draws)
    views, answers = torch.from_numpy(features), torch.from_numpy(labels)
    optimiser = torch.optim.Adam(student.parameters())
    for step in range(_ROUNDS * _STEPS):
        if step % _STEPS == 0:
            given = softmax(teacher(torch.from_numpy(seen)).numpy())
            targets = torch.from_numpy(_targets(given, labels, frequencies, neighbours))
        labelled, others = rows[0][step], rows[1][step]
        shown = torch.cat([views[of_labelled[step], labelled], views[of_others[step], others]]).float() / length
        logits = student(shown)
        cost = classification_cost(logits[:_LABELLED_ROWS], answers[labelled])
        cost = cost + _COST(logits[_LABELLED_ROWS:], targets[others])
        for group in optimiser.param_groups:
            group["lr"] = _RATE(step)
        optimiser.zero_grad()
        cost.backward()
        optimiser.step()
        teacher.update(student, decay=warmed_up(_DECAY, step))
    # The mean of both: what the teacher has learned, held back where regression is sure of something else.
    weight, bias = (parameter.numpy() for parameter in teacher.network.parameters())
    weight = (weight / length + start.weight / start.temperature) / 2
    return Head(np.asarray(weight, np.float32), np.asarray((bias + start.bias / start.temperature) / 2, np.float32))


def _drawn_rows(labels: Ints, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """The rows of all steps: labelled ones, of each class alike, and any."""
    known = torch.from_numpy(np.flatnonzero(labels != UNLABELLED))
    of_class = torch.from_numpy(labels)[known]
    n_steps = _ROUNDS * _STEPS
    chances = 1 / torch.bincount(of_class)[of_class].float()
    labelled = torch.multinomial(chances, n_steps * _LABELLED_ROWS, replacement=True, generator=draws)
    others = torch.randint(len(labels), (n_steps, _ROWS), generator=draws)
    return known[labelled].view(n_steps, _LABELLED_ROWS), others


def _targets(given: Floats, labels: Ints, frequencies: NDArray[np.float64], neighbours: sparse.csr_matrix) -> Floats:
    """The teacher's answers as logits of targets [N, n_classes].

    They are aligned to the class frequencies (Berthelot et al. 2020) and smoothed over the neighbours (Zhou et al.
    2004); labelled photos answer with their label.
    """
    known = labels != UNLABELLED
    own = given * (frequencies / given[~known].mean(0).clip(1e-6))
    own /= own.sum(1, keepdims=True)
    own[known] = np.eye(given.shape[1])[labels[known]]
    found = smoothed(own, known, neighbours, share=_FROM_NEIGHBOURS, times=_SPREADS)
    return np.asarray(np.log(found.clip(1e-12)), np.float32)


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
    points, n = NeighbourSpace(features)(features), len(features)
    k = min(k, n - 1)
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


class NeighbourSpace:
    """Where photos of one kind are nearer to each other than in the features themselves.

    The root evens out the few large features, and the mean is what all photos share. `features` are those of the photos
    that are learned from, [n, D].
    """

    def __init__(self, features: Floats) -> None:
        rooted = self._rooted(features)
        self._pca = PCA(min(_DIMENSIONS, *rooted.shape), svd_solver="randomized", iterated_power=2, random_state=0)
        self._pca.fit(rooted)

    def __call__(self, features: Floats) -> Floats:
        """[n, D] -> [n, at most 128], each of unit length."""
        return unit_length(self._pca.transform(self._rooted(features)))

    @staticmethod
    def _rooted(features: Floats) -> Floats:
        return unit_length(np.sign(features) * np.sqrt(np.abs(features)))


def unit_length(rows: NDArray[Any]) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12), dtype=np.float32)


def softmax(logits: NDArray[Any]) -> Floats:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True), np.float32)


def _length(features: NDArray[Any]) -> float:
    return float(np.linalg.norm(np.asarray(features, np.float32), axis=1).mean()) or 1.0
