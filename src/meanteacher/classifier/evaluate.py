"""How good a shipped model is on images whose labels are known, and which have not taught it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meanteacher.classifier.bundle import Bundle
from meanteacher.classifier.predict import classify
from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import choose_device
from meanteacher.photos.find import Photos, find_photos, printable
from meanteacher.stats import CONFIDENCE, calibration_error, error_interval, reliability

SCHEMA = 2
KINDS = ("new", "unlabelled", "training")
"""What an image can be to a model: never seen, learnt from without its label, learnt from with it."""


def evaluate(
    bundle: Bundle,
    photos: Path,
    labels: Path | None = None,
    *,
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Errors in all and of each class with 95 % intervals, the confusions, and whether the confidence can be believed.

    Images without a label are left out. So are those that cannot be read, which are named. So are those that taught the
    model, known again by their pixels: they say nothing about its error. Their own error is given beside, under
    "seen", which is None where the model does not say what it has seen. Where it has learnt from some of the images
    without their labels, and others are new to it, only the new ones are judged. "judged" says which were: "new",
    "unlabelled", "training" where no other is left, so that there is no error to be told, or "unknown".

    Raises:
        InputError: there are no labels, there is no such device, or the model does not know some of the classes.
    """
    chosen = choose_device(device)
    found = find_photos(photos, labels)
    truth = _known_to(bundle, found)
    judged = np.flatnonzero(truth != UNLABELLED).tolist()
    unreadable: dict[int, str] = {}
    parts = []
    digests: list[bytes] = []
    for chunk in classify(bundle, found, judged, device=chosen, with_digests=bundle.seen is not None):
        unreadable |= {chunk.index[row]: reason for row, reason in chunk.unreadable.items()}
        parts.append(chunk.probabilities.numpy())
        digests += chunk.digests
        progress(sum(map(len, parts)), len(judged))
    readable = np.array([k not in unreadable for k in judged])
    if not readable.any():
        raise InputError(
            f"None of the {len(judged)} labelled images of {photos} can be read, so nothing can be judged."
        )
    probabilities, known = np.concatenate(parts)[readable], truth[judged][readable]
    told = {
        "schema": SCHEMA,
        "n_unlabelled": len(found) - len(judged),
        "unreadable": [{"name": printable(found.names[k]), "reason": why} for k, why in unreadable.items()],
    }
    if bundle.seen is None:
        return told | {"judged": "unknown", "seen": None, **_scores(probabilities, known, bundle)}
    kinds = bundle.seen.kinds(digests)[readable]
    kind = next(kind for kind in KINDS if (kinds == kind).any())
    counted = (kinds == kind) & (kind != "training")
    each = {one: _error(_confusion(probabilities[kinds == one], known[kinds == one])) for one in KINDS}
    return told | {
        "judged": kind,
        "seen": {"complete": bundle.seen.complete, **each},
        **_scores(probabilities[counted], known[counted], bundle),
    }


def _known_to(bundle: Bundle, found: Photos) -> np.ndarray:
    """The labels as the model counts them."""
    index = {name: k for k, name in enumerate(bundle.class_names)}
    used = [found.class_names[k] for k in np.unique(found.labels[found.labels != UNLABELLED])]
    if unknown := [name for name in used if name not in index]:
        raise InputError(
            f"The model does not know the class{'es' * (len(unknown) > 1)} {_few(unknown)} of {found.root}; it knows "
            f"{_few(bundle.class_names)}. Rename or leave out what it cannot know, or fit again with these labels."
        )
    # The last is for UNLABELLED, which is -1.
    table = np.array([*(index.get(name, UNLABELLED) for name in found.class_names), UNLABELLED])
    return table[found.labels]


def _scores(probabilities: np.ndarray, truth: np.ndarray, bundle: Bundle) -> dict[str, Any]:
    confusion = _confusion(probabilities, truth)
    return {
        "confidence": CONFIDENCE,
        **_error(confusion),
        "per_class": [
            {"name": name, **_error(confusion, k), "n_predicted": int(confusion[:, k].sum())}
            for k, name in enumerate(bundle.class_names)
        ],
        # Rows are the true class, columns the predicted one.
        "confusion": confusion.tolist(),
        "calibration": {
            "temperature": bundle.temperature,
            "error": calibration_error(probabilities, truth) if len(truth) else None,
            "bins": reliability(probabilities, truth),
        },
    }


def _confusion(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    confusion = np.zeros((probabilities.shape[1],) * 2, np.int64)
    np.add.at(confusion, (truth, probabilities.argmax(1)), 1)
    return confusion


def _error(confusion: np.ndarray, label: int | None = None) -> dict[str, Any]:
    """Of one class, or of all."""
    rows = confusion if label is None else confusion[[label]]
    n = int(rows.sum())
    wrong = n - int(confusion.trace() if label is None else confusion[label, label])
    if not n:
        return {"n_judged": 0, "wrong": 0, "error": None, "low": None, "high": None}
    interval = error_interval(wrong, n)
    return {"n_judged": n, "wrong": wrong, "error": interval.value, "low": interval.low, "high": interval.high}


def _few(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
