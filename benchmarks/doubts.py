"""How well a fit finds photos of none of its classes, and wrong labels.

    python -m benchmarks.doubts KNOWN.npz OTHER.npz docs/records/doubts.json

The files have `features` [N, D] of photos; KNOWN also has their `labels` [N], and may have `unlabelled` features.
Strangers are the photos of OTHER, among new photos of KNOWN. Wrong labels are eight of 150. No setting was chosen on
these draws.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from meanteacher.core import UNLABELLED
from meanteacher.photos.fitting.estimate import known_photos, label_doubts, most_similar
from meanteacher.photos.folder.tables import SUSPICIOUS

_N_LABELS, _N_WRONG = 150, 8


def drawn(labels: NDArray[np.int64], n: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Positions of n photos of each class."""
    return np.concatenate([draws.permutation(np.flatnonzero(labels == k))[:n] for k in np.unique(labels)])


def strangers(
    features: NDArray[Any], labels: NDArray[np.int64], other: NDArray[Any], n: int, seed: int
) -> dict[str, float]:
    """With n labels per class: the area under the ROC curve, and which share of new and of other photos is strange."""
    rows = drawn(labels, n, np.random.default_rng(seed))
    known = known_photos(features[rows], labels[rows], np.arange(len(rows)))
    assert known is not None
    new = np.delete(features, rows, axis=0)
    usual, strange = (known.strangeness(most_similar(some, known)) for some in (new, other))
    truth = np.repeat([0, 1], [len(usual), len(strange)])
    area = roc_auc_score(truth, np.concatenate([usual, strange]))
    found = {"labels": n, "area": area, "false": (usual > 1).mean(), "found": (strange > 1).mean()}
    return {key: round(float(value), 4) for key, value in found.items()}


def wrong_labels(
    features: NDArray[Any], labels: NDArray[np.int64], unlabelled: NDArray[Any], seed: int
) -> dict[str, int]:
    """How many of eight wrong labels among 150 are suspicious, and how many right ones."""
    draws, n_classes = np.random.default_rng(seed), int(labels.max()) + 1
    rows = draws.permutation(drawn(labels, _N_LABELS // n_classes, draws))
    given, wrong = labels[rows].copy(), draws.permutation(len(rows))[:_N_WRONG]
    given[wrong] = (given[wrong] + draws.integers(1, n_classes, _N_WRONG)) % n_classes
    seen = np.concatenate([features[rows], unlabelled])
    given = np.concatenate([given, np.full(len(unlabelled), UNLABELLED)])
    is_suspicious = label_doubts(seen, given, n_classes, groups=np.arange(len(seen)), seed=seed) >= SUSPICIOUS
    return {"found": int(is_suspicious[wrong].sum()), "false": int(is_suspicious.sum() - is_suspicious[wrong].sum())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("known", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    content, others = (np.load(file, allow_pickle=False) for file in (arguments.known, arguments.other))
    x, y = content["features"].astype(np.float32), content["labels"]
    none = x[:0] if "unlabelled" not in content else content["unlabelled"].astype(np.float32)
    record = {
        "strangers": [
            strangers(x, y, others["features"].astype(np.float32), n, seed)
            for n in (2, 5, 10)
            for seed in range(300, 304)
        ],
        "wrong labels": [wrong_labels(x, y, none, seed) for seed in range(300, 312)],
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
