"""Which images to label next: those the model is least sure about, spread over the pairs of classes it confuses."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meanteacher.formats import percent

_SURE = 0.8


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An image whose label would help."""

    index: int
    reason: str


def label_next(
    probabilities: np.ndarray, candidates: np.ndarray, groups: np.ndarray, class_names: Sequence[str], *, n: int = 20
) -> list[Suggestion]:
    """The n most useful candidates.

    They are ordered by the margin between the two most probable classes, the smallest first. The images with the
    smallest margins are often all of one kind, so each pair of classes gets one image before any gets a second. Of
    images that show the same picture only one is suggested.

    `probabilities` are calibrated, [N, C]; `candidates` are positions without a label; `groups` are equal for images
    that show the same picture.
    """
    by_pair: dict[tuple[int, int], list[int]] = defaultdict(list)
    top = np.argsort(-probabilities[candidates], axis=1, kind="stable")[:, :2]
    best, second_best = np.take_along_axis(probabilities[candidates], top, axis=1).T
    seen: set[int] = set()
    for position in np.argsort(best - second_best, kind="stable"):
        index = int(candidates[position])
        if int(groups[index]) in seen:
            continue
        seen.add(int(groups[index]))
        first, second = sorted(int(k) for k in top[position])
        by_pair[first, second].append(index)
    chosen: list[int] = []
    turn = 0
    while len(chosen) < n and any(len(queue) > turn for queue in by_pair.values()):
        # Pairs were added in the order of their smallest margin, and a dict keeps that order.
        chosen += [queue[turn] for queue in by_pair.values() if len(queue) > turn]
        turn += 1
    return [Suggestion(index, _reason(probabilities[index], class_names)) for index in chosen[:n]]


def _reason(p: np.ndarray, class_names: Sequence[str]) -> str:
    first, second, *others = (int(k) for k in np.argsort(-p, kind="stable"))
    if others and p[others[0]] > p[first] / 2:
        return f"no class fits well: the most probable has {percent(p[first])}"
    guess, other = (f"{class_names[k]} ({percent(p[k])})" for k in (first, second))
    if p[first] < _SURE:
        return f"hesitates between {guess} and {other}"
    return f"less sure here than elsewhere: {guess} or {other}"
