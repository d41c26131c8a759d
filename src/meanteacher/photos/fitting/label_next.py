"""Which images to label next: those the model is unsure about, and no two of the same kind."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from meanteacher.formats import count, percent
from meanteacher.photos.fitting.heads import unit_length

_SURE = 0.8
_N_SUGGESTIBLE, _N_COVERED = 500, 10_000
"""The least sure images: so many may be suggested, and so many count as covered by a suggestion. Bounds the memory."""
_UNLIKE = 0.25
"""The share of the images farthest from any labelled one that is called unlike all of them."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An image whose label would help."""

    index: int
    reason: str


def label_next(
    probabilities: np.ndarray,
    candidates: np.ndarray,
    groups: np.ndarray,
    class_names: Sequence[str],
    *,
    n: int = 20,
    features: np.ndarray | None = None,
    labelled: Sequence[int] | np.ndarray = (),
) -> list[Suggestion]:
    """The n most useful candidates, the most useful first. Of images that show the same picture only one is suggested.

    With features, the images are chosen that together represent the unsure ones best (`_representative`). Without, they
    are ordered by the margin between the two most probable classes, the smallest first, and each pair of classes gets
    one image before any gets a second: the images with the smallest margins are often all of one kind.

    The calibrated probabilities are [N, C], features [N, D] of any length. `candidates` and `labelled` are positions.
    """
    if not len(candidates):
        return []
    top = np.argsort(-probabilities[candidates], axis=1, kind="stable")[:, :2]
    best, second_best = np.take_along_axis(probabilities[candidates], top, axis=1).T
    order = np.argsort(best - second_best, kind="stable")
    # The least sure of those that show the same picture.
    _, firsts = np.unique(groups[candidates[order]], return_index=True)
    order = order[np.sort(firsts)]
    if features is None:
        by_pair: dict[tuple[int, int], list[int]] = defaultdict(list)
        for position in order:
            first, second = sorted(int(k) for k in top[position])
            by_pair[first, second].append(int(candidates[position]))
        in_turn = [index for turn in zip_longest(*by_pair.values()) for index in turn if index is not None]
        return [Suggestion(index, _reason(probabilities[index], class_names)) for index in in_turn[:n]]
    unsure = candidates[order[:_N_COVERED]]
    doubt = 1 - (best - second_best)[order[:_N_COVERED]]
    return [
        Suggestion(int(unsure[k]), _reason(probabilities[unsure[k]], class_names, likeness))
        for k, likeness in _representative(features, unsure, doubt, labelled, n).items()
    ]


def most_diverse(
    features: np.ndarray, candidates: np.ndarray, *, labelled: Sequence[int] | np.ndarray = (), n: int = 20
) -> list[Suggestion]:
    """The n candidates that represent all of them best beside the labelled images, the best first.

    Of more than 500 candidates the first 500 are suggested, so their order should be random. Features are [N, D].
    """
    if not len(candidates):
        return []
    covered = candidates[:_N_COVERED]
    chosen = _representative(features, covered, np.ones(len(covered), np.float32), labelled, n)
    return [Suggestion(int(covered[k]), likeness) for k, likeness in chosen.items()]


def _representative(
    features: np.ndarray, unsure: np.ndarray, doubt: np.ndarray, labelled: Sequence[int] | np.ndarray, n: int
) -> dict[int, str]:
    """Which of the unsure images (the least sure first) to choose, and what they resemble.

    Greedily, the image is chosen that adds most to the sum over all images of doubt times the cosine similarity to the
    nearest image that is labelled or chosen. That leaves out images that resemble a labelled one or each other, and
    outliers that resemble nothing, which the farthest images often are.
    """
    points = unit_length(features[unsure])
    # Features of one network have much in common. Without that, similarities differ more.
    centre = points.mean(0)
    points = unit_length(points - centre)
    nearest = np.full(len(points), -1.0, dtype=np.float32)
    known = unit_length(unit_length(features[np.asarray(labelled, dtype=np.int64)]) - centre)
    for start in range(0, len(known), _N_SUGGESTIBLE):
        nearest = np.maximum(nearest, (points @ known[start : start + _N_SUGGESTIBLE].T).max(1))
    unlike = nearest <= np.quantile(nearest, _UNLIKE)
    similarity = points @ points[:_N_SUGGESTIBLE].T
    chosen: list[int] = []
    owner = np.full(len(points), -1)
    for _ in range(min(n, similarity.shape[1])):
        gain = doubt @ np.maximum(similarity - nearest[:, None], 0)
        gain[chosen] = -1
        k = int(gain.argmax())
        chosen.append(k)
        owner[similarity[:, k] > nearest] = k
        nearest = np.maximum(nearest, similarity[:, k])
    return {
        k: "; ".join(
            ["unlike any labelled photo so far"] * bool(unlike[k])
            + [f"like {count(n_like, 'other unlabelled photo')}"] * bool(n_like)
        )
        for k in chosen
        for n_like in [int((np.delete(owner, k) == k).sum())]
    }


def _reason(p: np.ndarray, class_names: Sequence[str], likeness: str = "") -> str:
    first, second, *others = (int(k) for k in np.argsort(-p, kind="stable"))
    guess, other = (f"{class_names[k]} ({percent(p[k])})" for k in (first, second))
    if others and p[others[0]] > p[first] / 2:
        doubt = f"no class fits well: the most probable has {percent(p[first])}"
    elif p[first] < _SURE:
        doubt = f"hesitates between {guess} and {other}"
    elif not likeness:
        doubt = f"less sure here than elsewhere: {guess} or {other}"
    else:
        doubt = f"probably {guess}"
    return f"{doubt}; {likeness}" if likeness else doubt
