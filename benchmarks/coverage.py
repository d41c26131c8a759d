"""How often the 95 % interval of the estimate contains the truth, over hundreds of simulated folders.

    python -m benchmarks.coverage FEATURES.npz OUT.json

FEATURES.npz has `features` [N, D] of real photos and their `labels` [N]. Each simulated folder is drawn anew from them:
labelled photos, unlabelled ones and new ones that tell the true error of the head on the folder's mix of classes. The
folders are balanced, have a long tail, consist of bursts, or have few labels. The head is logistic regression, which is
fast enough for hundreds of folders; the estimate is that of a fit.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.estimate import cross_validated, error_estimate
from meanteacher.photos.fitting.heads import Head, class_mix, logistic_regression

_TAIL = 20.0
"""How many times as frequent as the rarest class the most frequent one is."""
_SHOTS, _NOISE = 6, 0.05
"""Photos of a burst, and their distance from each other in lengths of a photo's features."""


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
    features: NDArray[np.float32], truth: NDArray[np.int64], seed: int, *, n_labels: int, tail: bool, bursts: bool
) -> Photos:
    """A folder with so many labels of each class; with `bursts`, each label is one of six shots of one thing."""
    draws, n_classes = np.random.default_rng(seed), int(truth.max()) + 1
    mix = _TAIL ** (-np.arange(n_classes) / (n_classes - 1)) if tail else np.ones(n_classes)
    mix = draws.permutation(mix) / mix.sum()
    per_class = [draws.permutation(np.flatnonzero(truth == k)) for k in range(n_classes)]
    n_things = max(2, n_labels // _SHOTS) if bursts else n_labels
    labelled = np.concatenate([rows[:n_things] for rows in per_class])
    rest = [rows[n_things:] for rows in per_class]
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


def labels_alone(features: NDArray[Any], labels: NDArray[np.int64], n_classes: int, *, seed: int) -> Head:
    known = labels != UNLABELLED
    return logistic_regression(features[0][known], labels[known], n_classes)


def estimated(photos: Photos, seed: int) -> dict[str, float]:
    """The estimate for a folder, and the truth."""
    n_classes, known = len(photos.mix), photos.labels != UNLABELLED
    views = photos.features[None]
    head = labels_alone(views, photos.labels, n_classes, seed=seed)
    tested = cross_validated(views, photos.labels, n_classes, groups=photos.groups, seed=seed, fit=labels_alone)
    n_labels = np.array([len(np.unique(photos.groups[photos.labels == k])) for k in range(n_classes)])
    mix = class_mix(head.probabilities(photos.features[~known]), n_labels)
    found = error_estimate(tested, mix)
    wrong = head.logits(photos.new).argmax(1) != photos.new_labels
    truth = sum(share * wrong[photos.new_labels == k].mean() for k, share in enumerate(photos.mix))
    plain = float(tested.wrong.mean())
    return {"truth": float(truth), "error": found.error or 0.0, "low": found.low, "high": found.high, "plain": plain}


FOLDERS: dict[str, dict[str, Any]] = {
    "balanced": {"n_labels": 10, "tail": False, "bursts": False},
    "long tail": {"n_labels": 10, "tail": True, "bursts": False},
    "bursts": {"n_labels": 30, "tail": False, "bursts": True},
    "few labels": {"n_labels": 3, "tail": False, "bursts": False},
}


def summary(found: list[dict[str, float]]) -> dict[str, float]:
    """Coverage of the interval, and the means of what was estimated."""
    covered = [each["low"] <= each["truth"] <= each["high"] for each in found]
    means = {key: round(float(np.mean([each[key] for each in found])), 4) for key in found[0]}
    return {"folders": len(found), "coverage": round(float(np.mean(covered)), 4), **means}


def run(features: NDArray[np.float32], truth: NDArray[np.int64], n: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Simulate n folders of each kind."""
    record = {}
    for name, kind in FOLDERS.items():
        record[name] = summary([estimated(draw(features, truth, seed, **kind), seed) for seed in range(n)])
        say(f"{name}: {json.dumps(record[name])}")
    return record


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folders", type=int, default=150, help="folders of each kind")
    given = parser.parse_args()
    content = np.load(given.features, allow_pickle=False)
    measured = run(content["features"].astype(np.float32), content["labels"], given.folders, print)
    given.out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
