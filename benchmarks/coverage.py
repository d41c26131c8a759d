"""How often the 95 % interval of a fit's estimate contains the truth, over hundreds of simulated folders.

    python -m benchmarks.coverage flowers-test docs/records/coverage.json --name flowers
    python -m benchmarks.coverage cifar10-images/test docs/records/coverage.json --name CIFAR-10 --size 160
    python -m benchmarks.coverage --page docs/records/coverage.json docs/experiments/coverage.md

The photos are in a folder for each class, of which 400 at most are used. Each simulated folder is drawn anew from them:
labelled photos, unlabelled ones, and new ones that tell the true error on the folder's mix of classes. The folders are
balanced, have a long tail, consist of bursts, have few labels, or labels that follow a long tail. Head, tests and
estimate are those of a fit; the features are reduced to 64 principal components, so that a folder takes a second. The
record grows by one folder of each kind at a time, and a second call continues.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.estimate import class_frequencies, cross_validated, error_estimate
from meanteacher.photos.fitting.heads import fit_head, softmax

_TAIL = 20.0
"""How many times as frequent as the rarest class the most frequent one is."""
_SHOTS, _NOISE = 6, 0.05
"""Photos of a burst, and their distance from each other in lengths of a photo's features."""
_DIMENSIONS = 64
_PHOTOS, _PHOTOS_SEED = 400, 7
"""At most so many of each class, drawn with this seed."""
_FIRST_SEED = 13
"""Folders with smaller seeds, of flowers, chose the variance of the interval."""


@dataclass(frozen=True)
class Photos:
    """Photos of a simulated folder, and new photos of every class with the mix that they are weighted by."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64]
    new: NDArray[np.float32]
    new_labels: NDArray[np.int64]
    mix: NDArray[np.float64]


def draw(
    features: NDArray[np.float32],
    truth: NDArray[np.int64],
    seed: int,
    *,
    n_labels: int,
    tail: bool = False,
    bursts: bool = False,
    follow: bool = False,
) -> Photos:
    """A folder with so many labels of each class.

    With `bursts`, each label is one of six shots of one thing; with `follow`, labels have the mix of the folder.
    """
    draws, n_classes = np.random.default_rng(seed), int(truth.max()) + 1
    mix = _TAIL ** (-np.arange(n_classes) / (n_classes - 1)) if tail else np.ones(n_classes)
    mix = draws.permutation(mix) / mix.sum()
    per_class = [draws.permutation(np.flatnonzero(truth == k)) for k in range(n_classes)]
    counts = np.full(n_classes, max(2, n_labels // _SHOTS) if bursts else n_labels)
    if follow:
        counts = np.maximum(1, draws.multinomial(n_classes * n_labels, mix))
    labelled = np.concatenate([rows[:n] for rows, n in zip(per_class, counts, strict=True)])
    rest = [rows[n:] for rows, n in zip(per_class, counts, strict=True)]
    most = min(len(rows) // 2 / share for rows, share in zip(rest, mix, strict=True))
    unlabelled = np.concatenate([rows[: int(most * share)] for rows, share in zip(rest, mix, strict=True)])
    new = np.concatenate([rows[len(rows) // 2 :] for rows in rest])
    things = np.repeat(labelled, _SHOTS if bursts else 1)
    shots = features[things]
    if bursts:
        length = np.linalg.norm(shots, axis=1, keepdims=True) / np.sqrt(shots.shape[1])
        shots = shots + _NOISE * length * draws.normal(size=shots.shape)
    return Photos(
        np.concatenate([shots, features[unlabelled]]).astype(np.float32),
        np.concatenate([truth[things], np.full(len(unlabelled), UNLABELLED)]),
        np.concatenate([things, len(truth) + np.arange(len(unlabelled))]),
        features[new],
        truth[new],
        mix,
    )


def estimated(photos: Photos, seed: int) -> dict[str, float]:
    """The estimate for a folder as a fit makes it, and the truth."""
    n_classes, known = len(photos.mix), photos.labels != UNLABELLED
    views = photos.features[None]
    head = fit_head(views, photos.labels, n_classes, seed=seed)
    tested = cross_validated(views, photos.labels, n_classes, groups=photos.groups, seed=seed)
    answers = softmax(head.logits(photos.features[~known]) / tested.temperature)
    found = error_estimate(tested, class_frequencies(answers))
    wrong = head.logits(photos.new).argmax(1) != photos.new_labels
    truth = sum(share * wrong[photos.new_labels == k].mean() for k, share in enumerate(photos.mix))
    values = {"truth": truth, "error": found.error or 0.0, "low": found.low, "high": found.high}
    return {key: round(float(value), 4) for key, value in values.items()}


FOLDERS: dict[str, dict[str, Any]] = {
    "balanced": {"n_labels": 10},
    "long tail": {"n_labels": 10, "tail": True},
    "bursts": {"n_labels": 30, "bursts": True},
    "few labels": {"n_labels": 3},
    "labels follow a long tail": {"n_labels": 10, "tail": True, "follow": True},
}


def run(photos: Path, record: Path, *, name: str, size: int, n: int) -> None:
    """Simulate folders of these photos until the record has n of each kind."""
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    found = known.setdefault(name, {kind: [] for kind in FOLDERS})
    features, truth = _read(photos, size)
    reduced = PCA(_DIMENSIONS, random_state=0).fit_transform(features).astype(np.float32)
    for k in range(n):
        for kind, options in FOLDERS.items():
            if len(found[kind]) == k:
                seed = _FIRST_SEED + k
                found[kind].append(estimated(draw(reduced, truth, seed, **options), seed))
        record.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _read(photos: Path, size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from benchmarks.photos import features_of

    draws, files = np.random.default_rng(_PHOTOS_SEED), []
    for k, folder in enumerate(sorted(photos.iterdir())):
        every = sorted(folder.iterdir())
        files += [(every[i], k) for i in draws.permutation(len(every))[:_PHOTOS]]
    return features_of([path for path, _ in files], size), np.array([k for _, k in files])


def page(record: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """The record as a page: coverage, the mean estimate and truth, and the mean length of the interval."""
    rows = []
    for photos, kinds in record.items():
        for kind, found in kinds.items():
            inside = [each["low"] <= each["truth"] <= each["high"] for each in found]
            above = sum(each["truth"] > each["high"] for each in found)
            truth, error = (100 * float(np.mean([each[key] for each in found])) for key in ("truth", "error"))
            length = 100 * float(np.mean([each["high"] - each["low"] for each in found]))
            rows.append(
                f"| {photos} | {kind} | {len(found)} | {100 * float(np.mean(inside)):.0f} % | {above} | {truth:.1f} | "
                f"{error:.1f} | {length:.0f} |"
            )
    return "\n".join([*_PAGE.split("\n"), *rows, ""])


_PAGE = """# How far the estimate can be believed

A fit says how often it is wrong, with a 95 % interval. This page counts how often the interval contains the truth, in
simulated folders: real photos, drawn anew for each, with new photos that tell the true error on the mix of the folder.
`python -m benchmarks.coverage --page` writes it from docs/records/coverage.json; its source describes the folders.

The photos are the test photos of the flowers and of CIFAR-10, which have their own labels. Head, cross-validation,
class frequencies and interval are those of a fit, on the photo itself by EfficientNet-Lite0, reduced to 64 principal
components. Nothing was chosen on these folders: the variance of the interval was chosen on other draws of the flowers.
Errors are in %, means over the folders; "covered" is the share of the intervals that contain the truth, "above" counts
folders whose true error is above the interval, and "length" is that of the interval in points.

| photos | kind of folder | folders | covered | above | true error | estimate | length |
|---|---|---|---|---|---|---|---|"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", help="what the page calls the photos")
    parser.add_argument("--size", type=int, default=224, help="pixels per side that photos are resized to")
    parser.add_argument("--folders", type=int, default=100, help="folders of each kind")
    parser.add_argument("--page", action="store_true", help="write the page of a record")
    given = parser.parse_args()
    if given.page:
        given.out.write_text(page(json.loads(given.given.read_text(encoding="utf-8"))), encoding="utf-8")
    else:
        run(given.given, given.out, name=given.name or given.given.name, size=given.size, n=given.folders)
