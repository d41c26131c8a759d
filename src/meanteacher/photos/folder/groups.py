"""Photos that belong together: copies, bursts, series of one thing.

A model that has learned from one of them is not tested by another, so cross-validation keeps each group in one fold.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED, InputError
from meanteacher.photos.folder.duplicates import Pairs, joined
from meanteacher.photos.folder.find import Photos, class_of, column_of

Ints = NDArray[np.int64]

_BURST = 2.0
"""Seconds between two photos of one burst; nobody turns to another thing as fast."""
_SERIES = 60.0
"""Seconds between two photos that may show the same thing."""
_MOST_AT_ONCE = 30
"""More photos with the same second have a date that a program wrote."""
_ALIKE, _ALIKE_IN_SERIES = 0.5, 0.8
"""Two photos of a class show the same thing if their distance is less than this fraction of the distance to other
things: to the nearest photo of another class, or to most photos of their own class if that is less. The second one is
for photos that were taken, or numbered, one after the other.

They were chosen on flowers and CIFAR-10 with features of EfficientNet-Lite0 (docs/experiments/groups.md)."""
_MOST, _LEAST = 0.75, 0.6
"""The quantile of the distances to photos of the same class, and the smallest fraction of the distance to another class
that it counts as, because all photos of a class may show one thing."""
_MIN_FOLDERS = 3
"""Folders within each class from which on they are taken for the things that were photographed."""
_ROWS = 512
_NUMBER = re.compile(r"(\d+)(?=\D*$)")
_DATE = re.compile(r"(?<!\d)((?:19|20)\d{6})[-_ ]?(\d{6})")


def find_groups(
    photos: Photos,
    near: Ints,
    taken: NDArray[np.float64],
    features: NDArray[Any] | None = None,
    *,
    group_by: str | None = None,
) -> Ints:
    """The group of every photo, [N]: the position of its first photo.

    Args:
        photos: N photos with their labels
        near: [N], equal for copies, as `duplicates.find_duplicates` returns them; copies are always together
        taken: [N], the time of each shot by its header in seconds, NaN if unknown
        features: [N, D] of a pretrained network, which find bursts that neither their times nor their names show
        group_by: "folder", "time", or a column of the labels file, instead of what times, names and features show

    Raises:
        InputError: there is nothing to group by, or each class would be one group.
    """
    times = times_of(photos.names, taken)
    if group_by is None:
        return together(photos, near, times, features)
    if group_by == "folder":
        pairs = _equal([name.rpartition("/")[0] or None for name in photos.names])
    elif group_by == "time":
        if np.isnan(times).all():
            raise InputError(
                f"No photo of {photos.root} has the time of its shot in its EXIF data, so they cannot be grouped by "
                "time. Group them by folder, or by a column of the labels file."
            )
        pairs = _consecutive(times, _SERIES)
    else:
        pairs = _equal([value or None for value in column_of(photos, group_by)])
    groups = joined(len(photos), [_equal(near.tolist()), pairs])
    if not any(len(np.unique(groups[photos.labels == k])) > 1 for k in range(len(photos.class_names))):
        raise InputError(
            f"Grouped by {group_by}, all labelled photos of each class belong together, so none can be tested. Give "
            "each thing a group of its own, such as a folder within the folder of its class."
        )
    return groups


def together(photos: Photos, near: Ints, times: NDArray[np.float64], features: NDArray[Any] | None = None) -> Ints:
    """The groups of photos, [N], by what is known of them; `times` in seconds, NaN if unknown."""
    pairs = [_equal(near.tolist()), _consecutive(times, _BURST)]
    if _has_folders_of_things(photos):
        pairs.append(_equal([name.rpartition("/")[0] if name.count("/") > 1 else None for name in photos.names]))
    if features is not None:
        series = [_consecutive(times, _SERIES), _numbered(photos.names)]
        pairs += _alike(features, photos.labels, series)
    return joined(len(photos), pairs)


def times_of(names: Sequence[str], taken: NDArray[np.float64]) -> NDArray[np.float64]:
    """The time of each shot in seconds, [N], by its header (`taken`) or its name; NaN if unknown."""
    times = np.where(np.isnan(taken), [_time_in_name(name) for name in names], taken)
    _, which, counts = np.unique(np.floor(times), return_inverse=True, return_counts=True)
    times[counts[which] > _MOST_AT_ONCE] = np.nan
    return times


def _time_in_name(name: str) -> float:
    """The time that phones write into names, such as IMG_20240513_101112.jpg; NaN if there is none."""
    if found := _DATE.search(name.rpartition("/")[2]):
        try:
            return datetime.strptime("".join(found.groups()), "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
    return float("nan")


def _has_folders_of_things(photos: Photos) -> bool:
    """Whether the folder of each class has several folders with labelled photos in it, as of different things."""
    folders: defaultdict[int, set[str]] = defaultdict(set)
    for name, label in zip(photos.names, photos.labels.tolist(), strict=True):
        if label != UNLABELLED and name.count("/") > 1 and class_of(name) == photos.class_names[label]:
            folders[label].add(name.rpartition("/")[0])
    used = np.unique(photos.labels[photos.labels != UNLABELLED]).tolist()
    return bool(used) and all(len(folders[label]) >= _MIN_FOLDERS for label in used)


def _equal(values: Sequence[Any]) -> Pairs:
    """Pairs that connect the positions with equal values; None is equal to nothing."""
    first: dict[Any, int] = {}
    pairs = [(first.setdefault(value, k), k) for k, value in enumerate(values) if value is not None]
    return _pairs(pairs)


def _consecutive(times: NDArray[np.float64], gap: float) -> Pairs:
    """Pairs of photos between which no other was taken, and at most `gap` seconds passed."""
    order = np.argsort(times, kind="stable")[: int((~np.isnan(times)).sum())]
    close = np.flatnonzero(np.diff(times[order]) <= gap)
    return order[close], order[close + 1]


def _numbered(names: Sequence[str]) -> Pairs:
    """Pairs of photos in one folder whose names differ in the last number alone, by one."""
    numbers: dict[tuple[str, int], int] = {}
    for k, name in enumerate(names):
        stem = name.rpartition(".")[0]
        if found := _NUMBER.search(stem):
            rest = f"{stem[: found.start()]}\0{stem[found.end() :]}"
            numbers[rest, int(found[0][-18:])] = k
    return _pairs([(k, numbers[rest, n + 1]) for (rest, n), k in numbers.items() if (rest, n + 1) in numbers])


def _pairs(pairs: Iterable[tuple[int, int]]) -> Pairs:
    first, second = np.array([*pairs], np.int64).reshape(-1, 2).T
    return first, second


def _alike(features: NDArray[Any], labels: Ints, series: Sequence[Pairs]) -> list[Pairs]:
    """Pairs that show the same thing by their features; at least one of the two is labelled, and no labels differ.

    An unlabelled photo joins the nearest labelled one alone, or a dense crowd of them would connect all photos of a
    class.
    """
    points = _points(features)
    limits = _limits(points, labels)
    known, others = np.flatnonzero(labels != UNLABELLED), np.flatnonzero(labels == UNLABELLED)
    found: list[Pairs] = []
    for own in _by_class(labels):
        for rows in _blocks(own):
            distance = 1 - points[rows] @ points[own].T
            first, second = np.nonzero(distance < _ALIKE * np.minimum(limits[rows, None], limits[own]))
            found.append((rows[first], own[second]))
    for rows in _blocks(others if len(known) else known):
        distance = 1 - points[rows] @ points[known].T
        nearest = distance.argmin(axis=1)
        same = distance[np.arange(len(rows)), nearest] < _ALIKE * limits[known[nearest]]
        found.append((rows[same], known[nearest[same]]))
    for first, second in series:
        distance = 1 - np.einsum("nd,nd->n", points[first], points[second])
        limit = np.minimum(limits[first], limits[second])
        differs = (labels[first] != labels[second]) & (labels[first] != UNLABELLED) & (labels[second] != UNLABELLED)
        same = ~differs & np.isfinite(limit) & (distance < _ALIKE_IN_SERIES * limit)
        found.append((first[same], second[same]))
    return found


def _limits(points: NDArray[np.float32], labels: Ints) -> NDArray[np.float64]:
    """The distance of each labelled photo to other things, [N]; infinite for photos without a label."""
    limits = np.full(len(labels), np.inf)
    for own in _by_class(labels):
        others = np.flatnonzero((labels != UNLABELLED) & (labels != labels[own[0]]))
        for rows in _blocks(own):
            to_others = (1 - points[rows] @ points[others].T).min(axis=1, initial=1.0)
            to_own = np.quantile(1 - points[rows] @ points[own].T, _MOST, axis=1)
            limits[rows] = np.minimum(to_others, np.maximum(to_own, _LEAST * to_others))
    return limits


def _by_class(labels: Ints) -> list[Ints]:
    return [np.flatnonzero(labels == label) for label in np.unique(labels[labels != UNLABELLED])]


def _blocks(rows: Ints) -> list[Ints]:
    """The rows in parts, because a matrix of all pairs may not fit in memory."""
    return [rows[at : at + _ROWS] for at in range(0, len(rows), _ROWS)]


def _points(features: NDArray[Any]) -> NDArray[np.float32]:
    """The features at unit length, centred on the folder, and at unit length again; zeros stay zeros."""
    points = np.array(features, np.float32)
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    used = points.any(axis=1)
    points[used] -= points[used].mean(axis=0) if used.any() else 0
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    return points
