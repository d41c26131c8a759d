"""Which images to label next: those the model hesitates about, no two for the same reason before each had its turn."""

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

    The margin between the two most probable classes says where the model hesitates. The most hesitant images are
    often all of one kind, so each pair of classes has its turn before any has a second one; of images that
    look the same only one is taken.

    Args:
        probabilities: [N, C], calibrated
        candidates: positions that have no label
        groups: [N], equal for images that look the same
        class_names: for the reasons
        n: how many to suggest
    """
    by_pair: dict[tuple[int, int], list[int]] = defaultdict(list)
    top = np.argsort(-probabilities[candidates], axis=1, kind="stable")[:, :2]
    margin = _margin(probabilities[candidates])
    seen: set[int] = set()
    for position in np.argsort(margin, kind="stable"):
        index = int(candidates[position])
        if int(groups[index]) in seen:
            continue
        seen.add(int(groups[index]))
        first, second = sorted(int(k) for k in top[position])
        by_pair[first, second].append(index)
    chosen: list[int] = []
    turn = 0
    while len(chosen) < n and any(len(queue) > turn for queue in by_pair.values()):
        # Pairs were met in the order of their most hesitant image, and a dict keeps that order.
        chosen += [queue[turn] for queue in by_pair.values() if len(queue) > turn]
        turn += 1
    return [Suggestion(index, _reason(probabilities[index], class_names)) for index in chosen[:n]]


def _margin(probabilities: np.ndarray) -> np.ndarray:
    highest = np.partition(probabilities, -2, axis=1)[:, -2:]
    margin: np.ndarray = highest[:, 1] - highest[:, 0]
    return margin


def _reason(p: np.ndarray, class_names: Sequence[str]) -> str:
    first, second, *others = (int(k) for k in np.argsort(-p, kind="stable"))
    if others and p[others[0]] > p[first] / 2:
        return f"unlike what it has learnt: no class is more probable than {percent(p[first])}"
    guess, other = (f"{class_names[k]} ({percent(p[k])})" for k in (first, second))
    if p[first] < _SURE:
        return f"hesitates between {guess} and {other}"
    return f"less sure here than elsewhere: {guess} or {other}"
