"""Which labelled images judge the models: kept apart from training, in every class alike."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from meanteacher.core import UNLABELLED
from meanteacher.seeding import derive_seed

_HOLD_OUT_FROM = 100
"""Labels in all from which a part of them can be spared; with fewer, each must both teach and judge."""
_SHARE = 0.25
MOST_JUDGES = 1000
"""Held-out labels beyond which the interval hardly shrinks, but the model would."""


@dataclass(frozen=True, slots=True, eq=False)
class Judging:
    """One part for each round of training: whoever is in it judges that round and does not teach it."""

    how: Literal["held-out", "folds"]
    parts: tuple[np.ndarray, ...]
    """Positions of labelled images, disjoint."""

    @property
    def judged(self) -> np.ndarray:
        return np.concatenate(self.parts)


def choose_judging(
    labels: np.ndarray, groups: np.ndarray, *, seed: int, folds: bool = False, hurried: bool = False
) -> Judging:
    """A held-out quarter where there are labels enough, else folds that take turns.

    With folds every label judges one model, and the shipped model is trained on all of them; its error is
    then estimated by models that had fewer labels, so the estimate errs on the safe side.

    Images that look the same stay on the same side: a copy of a training image proves nothing.

    Args:
        labels: [N], `UNLABELLED` where unknown
        groups: [N], equal for images that look the same
        seed: of the draw
        folds: whatever the number of labels
        hurried: hold a part out of few labels too, where every class has some to spare: folds take too many runs
    """
    known = np.flatnonzero(labels != UNLABELLED)
    fewest = int(np.unique(labels[known], return_counts=True)[1].min())
    enough = fewest >= 3 if hurried else fewest >= 4 and len(known) >= _HOLD_OUT_FROM
    if enough and not folds:
        n_parts = max(round(1 / _SHARE), -(-len(known) // MOST_JUDGES))
        return Judging("held-out", _dealt(known, labels, groups, n_parts, seed)[:1])
    return Judging("folds", _dealt(known, labels, groups, 3 if fewest >= 3 else 2, seed))


def _dealt(
    known: np.ndarray, labels: np.ndarray, groups: np.ndarray, n_parts: int, seed: int
) -> tuple[np.ndarray, ...]:
    """Deal the labelled images of each class to the parts in turn, all copies of one image to the same part."""
    draws = np.random.default_rng(derive_seed(seed, "judging"))
    part_of_group: dict[int, int] = {}
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for label in np.unique(labels[known]):
        members = draws.permutation(known[labels[known] == label])
        counts = [0] * n_parts
        for index in members:
            group = int(groups[index])
            part = part_of_group.setdefault(group, int(np.argmin(counts)))
            counts[part] += 1
            parts[part].append(int(index))
    return tuple(np.array(sorted(part), dtype=np.int64) for part in parts)
