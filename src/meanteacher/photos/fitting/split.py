"""The photos as the runs of a fit use them, and which of the labelled ones evaluate the models."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data import Dataset, Split, TrainTest
from meanteacher.data.dataset import in_parts
from meanteacher.photos.folder.cache import Decoded
from meanteacher.photos.folder.duplicates import Duplicates, find_duplicates
from meanteacher.photos.folder.find import Photos
from meanteacher.seeding import derive_seed

_HELD_OUT_SHARE = 0.25
_MIN_LABELS_TO_HOLD_OUT = 100
"""With fewer labels, each has to serve for training and for evaluation."""
MAX_HELD_OUT = 1000
"""More held-out labels hardly narrow the interval, and would be missed in training."""


@dataclass(frozen=True, slots=True, eq=False)
class FitData:
    """The photos as all runs of a fit use them."""

    photos: Photos
    decoded: Decoded
    dataset: Dataset
    """All photos, unreadable ones included, so that positions are those of `photos`."""
    usable: np.ndarray
    """Positions of the readable photos."""
    labels: np.ndarray
    """[N], `UNLABELLED` where unknown or unreadable."""
    groups: np.ndarray
    """[N], equal for photos that show the same picture."""
    digests: Sequence[bytes]
    """Digests of the pixels of each photo."""

    def fingerprint(self) -> str:
        """Fingerprint of the names, labels and pixels, which must be unchanged to resume."""
        names = (*self.photos.class_names, *self.photos.names)
        digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape"))
        digest.update(self.photos.labels.tobytes())
        for part in in_parts(self.dataset.images):
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()[:16]

    def training_rows(self, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The photos that are trained on, with their labels and without, while `held_out` evaluates.

        Neither a held-out photo nor a copy of one is trained on: a model that has seen the picture is not tested by
        it. Copies with a label are held out themselves.
        """
        is_labelled = self.labels[self.usable] != UNLABELLED
        is_copy = np.isin(self.groups[self.usable], self.groups[held_out])
        return np.setdiff1d(self.usable[is_labelled], held_out), self.usable[~is_labelled & ~is_copy]

    def train_test(self, held_out: np.ndarray) -> tuple[TrainTest, Split]:
        """What a run trains on, and the held-out photos as its test set; without any, the labelled ones."""
        labelled, unlabelled = self.training_rows(held_out)
        rows = torch.from_numpy(held_out if len(held_out) else labelled)
        test = Dataset(self.dataset.images[rows], self.dataset.labels[rows], self.dataset.class_names)
        split = Split(torch.from_numpy(labelled), torch.from_numpy(unlabelled), torch.from_numpy(held_out))
        return TrainTest(self.dataset, test), split


def prepare(photos: Photos, decoded: Decoded, duplicates: Duplicates) -> FitData:
    """Leave out the photos that cannot be read, and refuse a class of which no labelled photo can be read."""
    usable = np.setdiff1d(np.arange(len(photos)), np.array(sorted(decoded.unreadable), dtype=np.int64))
    labels = np.full(len(photos), UNLABELLED, dtype=np.int64)
    labels[usable] = photos.labels[usable]
    missing = [name for k, name in enumerate(photos.class_names) if not (labels == k).any()]
    if missing:
        raise InputError(
            f"No labelled image of {', '.join(missing)} can be read. Label another one, or leave the class out."
        )
    images = torch.from_numpy(decoded.images)
    dataset = Dataset(images, torch.from_numpy(photos.labels), photos.class_names, on_disk=True)
    return FitData(photos, decoded, dataset, usable, labels, duplicates.near, duplicates.digests)


def labelled_photos(photos: Photos, decoded: Decoded, most: int) -> FitData:
    """The labelled photos alone, or, if there are more than `most`, about as many drawn from each class alike."""
    unreadable = np.array(sorted(decoded.unreadable), dtype=np.int64)
    rows = np.setdiff1d(np.flatnonzero(photos.labels != UNLABELLED), unreadable)
    n_parts = -(-len(rows) // most)
    if n_parts > 1:
        rows = rows[_stratified_parts(photos.labels[rows], np.arange(len(rows)), n_parts, seed=0)[0]]
    some = replace(
        photos,
        names=tuple(photos.names[k] for k in rows),
        labels=photos.labels[rows],
        arrays=None if photos.arrays is None else photos.arrays[rows],
    )
    images = decoded.images[rows]
    return prepare(some, Decoded(images, {}), find_duplicates(images))


How = Literal["held-out", "folds"]


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationSplit:
    """The labelled photos that evaluate each run, which is not trained on them."""

    how: How
    parts: tuple[np.ndarray, ...]
    """For each run of a method, positions of labelled photos; disjoint."""

    @property
    def positions(self) -> np.ndarray:
        return np.concatenate(self.parts)

    @property
    def n_rounds(self) -> int:
        return 1 if self.how == "held-out" else len(self.parts) + 1


def choose_split(
    data: FitData, earlier_held_out: Collection[str] | None = None, *, prefer: How | None = None
) -> EvaluationSplit:
    """Draw the split; or, to continue an earlier model, take photos that it was not trained on.

    `earlier_held_out` are the names that evaluated that model and were not trained on; None without such a model.
    """
    if earlier_held_out:
        is_labelled = data.labels != UNLABELLED
        held = [k for k, name in enumerate(data.photos.names) if name in earlier_held_out and is_labelled[k]]
        if held:
            # Copies of them that were labelled since are held out, too.
            return EvaluationSplit("held-out", (np.flatnonzero(np.isin(data.groups, data.groups[held]) & is_labelled),))
    split = draw_split(data.labels, data.groups, seed=0, prefer=prefer)
    if earlier_held_out is not None and split.how == "held-out":
        # The earlier model was trained on every label, so a part held out now would not be new to it.
        return draw_split(data.labels, data.groups, seed=0, prefer="folds")
    return split


def is_held_out(labels: np.ndarray) -> bool:
    """Whether there are enough labels of every class to hold out a part of them: then there is one run per method."""
    known = labels[labels != UNLABELLED]
    return len(known) >= _MIN_LABELS_TO_HOLD_OUT and int(np.unique(known, return_counts=True)[1].min()) >= 4


def draw_split(labels: np.ndarray, groups: np.ndarray, *, seed: int, prefer: How | None = None) -> EvaluationSplit:
    """Hold out a quarter if there are enough labels, else use folds.

    With folds every labelled photo evaluates one model, and the final model is trained on all of them. Its error is
    estimated by models with fewer labels, so it is likely a little lower than the estimate. Photos of the same group
    show the same picture and stay together: a copy of a training image is no test.

    `prefer` "held-out", which takes fewer runs, needs only three labels of every class; "folds" always uses folds.
    """
    labelled = np.flatnonzero(labels != UNLABELLED)
    smallest_class = int(np.unique(labels[labelled], return_counts=True)[1].min())
    holds_out = smallest_class >= 3 if prefer == "held-out" else prefer is None and is_held_out(labels)
    if holds_out:
        n_parts = max(round(1 / _HELD_OUT_SHARE), -(-len(labelled) // MAX_HELD_OUT))
        return EvaluationSplit("held-out", _stratified_parts(labels, groups, n_parts, seed)[:1])
    n_folds = 3 if smallest_class >= 3 else 2
    folds = _stratified_parts(labels, groups, n_folds, seed)
    if not all(map(len, folds)):  # every class has fewer different pictures than there are folds
        folds = _stratified_parts(labels, groups, n_folds, seed, fill=True)
    return EvaluationSplit("folds", folds)


def _stratified_parts(
    labels: np.ndarray, groups: np.ndarray, n_parts: int, seed: int, *, fill: bool = False
) -> tuple[np.ndarray, ...]:
    """Deal the labelled photos of each class to the parts in turn, all copies of one picture to the same part.

    Each class begins with the first part, which then has a photo of every class; or, to `fill`, with the smallest part.

    scikit-learn's `StratifiedGroupKFold` gives as good folds, but takes minutes for 20,000 labels (decision 6).
    """
    draws = np.random.default_rng(derive_seed(seed, "judging"))
    part_of_group: dict[int, int] = {}
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for label in np.unique(labels[labels != UNLABELLED]):
        counts = [0] * n_parts
        for index in draws.permutation(np.flatnonzero(labels == label)):
            smallest = min(range(n_parts), key=lambda k: (counts[k], len(parts[k]) if fill else k))
            part = part_of_group.setdefault(int(groups[index]), smallest)
            counts[part] += 1
            parts[part].append(int(index))
    return tuple(np.array(sorted(part), dtype=np.int64) for part in parts)
