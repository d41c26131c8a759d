"""The error of a trained model on labelled images that it was not trained on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.devices import choose_device
from meanteacher.formats import count, escape_name, listed
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.photos.model.images import Images
from meanteacher.photos.model.predict import classify
from meanteacher.stats import CONFIDENCE, calibration_error, confusion, error_interval, reliability

if TYPE_CHECKING:
    from meanteacher.photos.model.bundle import Classifier

SCHEMA = 2
KINDS = ("new", "unlabelled", "training")
"""Kinds of images for a model: never seen, trained on without its label, trained on with its label."""


def evaluate(
    model: "Classifier", photos: Path, labels: Path | None, *, device: str, progress: Progress
) -> dict[str, Any]:
    """Errors, confusions and calibration on labelled images, see `Classifier.evaluate`."""
    chosen = choose_device(device)
    found = find_photos(photos, labels)
    truth = _labels_of_model(model, found)
    labelled = np.flatnonzero(truth != UNLABELLED).tolist()
    images = Images(found.names, found.picture)
    unreadable: dict[int, str] = {}
    parts = []
    digests: list[bytes] = []
    for chunk in classify(model, images, labelled, device=chosen, with_digests=model.seen is not None):
        unreadable |= {chunk.index[row]: reason for row, reason in chunk.unreadable.items()}
        parts.append(chunk.probabilities.numpy())
        digests += chunk.digests
        progress(sum(map(len, parts)), len(labelled))
    readable = np.array([k not in unreadable for k in labelled])
    if not readable.any():
        raise InputError(
            f"None of the {len(labelled)} labelled images of {photos} can be read, so there is nothing to evaluate. "
            "Give readable images."
        )
    probabilities, known = np.concatenate(parts)[readable], truth[labelled][readable]
    result = {
        "schema": SCHEMA,
        "n_unlabelled": len(found) - len(labelled),
        "unreadable": [{"name": escape_name(found.names[k]), "reason": why} for k, why in unreadable.items()],
    }
    if model.seen is None:
        return result | {"judged": "unknown", "seen": None, **_scores(model, probabilities, known)}
    kinds = model.seen.kinds(digests)[readable]
    kind = next(kind for kind in KINDS if (kinds == kind).any())
    counted = (kinds == kind) & (kind != "training")
    guesses = probabilities.argmax(1)
    by_kind = {
        one: _error(confusion(known[kinds == one], guesses[kinds == one], len(model.class_names))) for one in KINDS
    }
    return result | {"judged": kind, "seen": by_kind, **_scores(model, probabilities[counted], known[counted])}


def _labels_of_model(model: "Classifier", found: Photos) -> np.ndarray:
    """The labels as positions in the model's class names."""
    index = {name: k for k, name in enumerate(model.class_names)}
    used = [found.class_names[k] for k in np.unique(found.labels[found.labels != UNLABELLED])]
    if unknown := [name for name in used if name not in index]:
        raise InputError(
            f"The model does not know {count(len(unknown), 'class', 'classes')} of {found.root}: "
            f"{listed(unknown, most=10)}. It knows {listed(model.class_names, most=10)}. Rename or leave out these "
            "classes, or fit again with these labels."
        )
    # UNLABELLED is -1, so it selects the last entry.
    table = np.array([*(index.get(name, UNLABELLED) for name in found.class_names), UNLABELLED])
    return table[found.labels]


def _scores(model: "Classifier", probabilities: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    table = confusion(truth, probabilities.argmax(1), len(model.class_names))
    return {
        "confidence": CONFIDENCE,
        **_error(table),
        "per_class": [
            {"name": name, **_error(table, k), "n_predicted": int(table[:, k].sum())}
            for k, name in enumerate(model.class_names)
        ],
        "confusion": table.tolist(),
        "calibration": {
            "temperature": model.temperature,
            "error": calibration_error(probabilities, truth) if len(truth) else None,
            "bins": reliability(probabilities, truth),
        },
    }


def _error(table: np.ndarray, label: int | None = None) -> dict[str, Any]:
    """The error on the images of one class, or of all, from a confusion matrix."""
    rows = table if label is None else table[[label]]
    n = int(rows.sum())
    wrong = n - int(table.trace() if label is None else table[label, label])
    if not n:
        return {"n_judged": 0, "wrong": 0, "error": None, "low": None, "high": None}
    interval = error_interval(wrong, n)
    return {"n_judged": n, "wrong": wrong, "error": interval.value, "low": interval.low, "high": interval.high}
