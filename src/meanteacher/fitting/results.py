"""An image small enough to stand inside a page."""

import base64
import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.special import softmax

from meanteacher.classifier.bundle import Bundle, Seen, save_bundle, seen_by
from meanteacher.classifier.predict import cell, prediction_rows
from meanteacher.core import UNLABELLED, InputError
from meanteacher.evaluate import predict_logits
from meanteacher.experiment.folder import environment
from meanteacher.files import write_atomic, write_json
from meanteacher.fitting.answer import answer, estimate
from meanteacher.fitting.crossval import Judged, Judging, Trained, learnt_from
from meanteacher.fitting.label_next import Suggestion, label_next
from meanteacher.fitting.plan import METHODS, Plan
from meanteacher.photos.cache import Decoded
from meanteacher.photos.decode import UnreadableError, decode, squeeze
from meanteacher.photos.find import Photos, printable
from meanteacher.photos.findings import Finding
from meanteacher.report.fit_page import fit_page
from meanteacher.report.model_card import model_card
from meanteacher.stats import calibration
from meanteacher.views import PerChannel

_SIDE = 96


def thumbnail(photos: Photos, index: int) -> str:
    """As a data: address; empty where the image can no longer be read."""
    try:
        image = _image(photos, index)
    except UnreadableError:
        return ""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _image(photos: Photos, index: int) -> Image.Image:
    if photos.arrays is None:
        return Image.fromarray(decode(photos.path(index), _SIDE))
    return squeeze(Image.fromarray(photos.arrays[index]), _SIDE)


SCHEMA = 1
_CHUNK = 1000
_N_SHOWN = 12
"""Images in each row of the page's gallery."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Everything that the fit found out, before it is written down."""

    title: str
    labels_file: Path | None
    """Where the labels come from, if not from folders; `label` adds to it."""
    photos: Photos
    decoded: Decoded
    findings: tuple[Finding, ...]
    groups: np.ndarray
    usable: np.ndarray
    plan: Plan
    judging: Judging
    judged: dict[str, Judged]
    shipped: Trained
    method: str
    shortage: str
    """That runs left steps out, in a sentence; empty where none did."""
    earlier: Seen
    """What the model had learnt from before, where this fit went on from one."""


def write_results(
    fitted: Fitted,
    out: Path,
    *,
    created: str,
    seconds: Callable[[], dict[str, Any]],
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Predict every image with the shipped model and write all files. Returns what fit.json holds.

    Args:
        fitted: what was found out
        out: the folder
        created: date and time
        seconds: how long each part took, asked for when all but the page is done
        progress: told how many images are predicted
    """
    photos, usable, shipped = fitted.photos, fitted.usable, fitted.shipped
    best = fitted.judged[fitted.method]
    truth = photos.labels[fitted.judging.judged]
    calibrated = calibration(best.logits, truth)
    temperature = float(calibrated["temperature"])
    probabilities = _probabilities(fitted, temperature, progress)
    judged, gain = estimate(fitted.judging.how, fitted.judged["mean-teacher"].wrong, fitted.judged["supervised"].wrong)
    labelled = np.isin(np.arange(len(photos)), usable) & (photos.labels != UNLABELLED)
    n_unlabelled = len(usable) - int(labelled.sum())
    said = answer(judged, gain, n_unlabelled=n_unlabelled)
    made_with = environment(next(shipped.network.parameters()).device)
    about = {
        "created": created,
        "method": fitted.method,
        "estimate": judged[fitted.method] | {"how": fitted.judging.how, "n": judged["n"]},
        "environment": made_with,
    }
    bundle = Bundle(
        shipped.network, shipped.normalise, photos.class_names, fitted.plan.size, temperature, about, _seen(fitted)
    )
    save_bundle(bundle, shipped.spec, PerChannel(), out / "model", overwrite=True)
    candidates = np.setdiff1d(usable, np.flatnonzero(labelled))
    suggestions = label_next(probabilities, candidates, fitted.groups, photos.class_names)
    rows = prediction_rows(photos.names, probabilities, photos.class_names, fitted.decoded.unreadable)
    write_atomic(out / "predictions.csv", rows)
    write_atomic(out / "label-next.csv", _label_next_rows(photos, probabilities, suggestions))
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "title": printable(fitted.title),
        "folder": str(out.resolve()),
        "created": created,
        "version": version("meanteacher"),
        "answer": said,
        "data": {
            "n_images": len(photos),
            "n_labelled": int(labelled.sum()),
            "n_unlabelled": n_unlabelled,
            "n_unreadable": len(fitted.decoded.unreadable),
            "class_names": list(photos.class_names),
            "labelled_per_class": _counts(photos.labels[labelled], photos).tolist(),
            "size": fitted.plan.size,
            "source": "npz" if photos.arrays is not None else "csv" if fitted.labels_file else "class folders",
            "photos": str(photos.root.resolve()),
            "labels_file": str(fitted.labels_file) if fitted.labels_file else None,
        },
        "estimate": judged,
        "confusion": _confusion(truth, best.logits.argmax(1), len(photos.class_names)),
        "per_class": _per_class(fitted, truth, best, probabilities, labelled),
        "calibration": calibrated,
        "curves": {name: _curve(fitted.judged[name]) for name in METHODS},
        "vitals": {
            name: {"readings": run.first.record["vitals"], "alarms": run.first.record["alarms"]}
            for name, run in fitted.judged.items()
        },
        "findings": [asdict(finding) for finding in fitted.findings],
        "gallery": _gallery(photos, probabilities, candidates, suggestions),
        "held_out": [photos.names[i] for i in fitted.judging.judged] if fitted.judging.how == "held-out" else [],
        "plan": fitted.plan.to_json()
        | {
            "network": "FastNet",
            "n_parameters": shipped.record["n_parameters"],
            "sentence": " ".join(filter(None, (fitted.plan.sentence(), fitted.shortage))),
        },
        "timing": seconds(),
        "environment": made_with,
    }
    write_json(out / "fit.json", content)
    write_pages(content, out)
    return content


def write_pages(content: dict[str, Any], out: Path) -> None:
    """The report and the model card of what fit.json holds."""
    write_atomic(out / "MODEL_CARD.md", model_card(content))
    write_atomic(out / "report.html", fit_page(content))


def read_fit(folder: Path) -> dict[str, Any]:
    """What fit.json in a folder holds.

    Raises:
        InputError: there is none, or it is not one that this version wrote.
    """
    path = folder / "fit.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema = content["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} holds no complete fit ({error}). Give the --out of one.") from error
    if schema != SCHEMA:
        raise InputError(f"{path} has the schema {schema}, this version reads {SCHEMA}. Fit again.")
    assert isinstance(content, dict)
    return content


def _seen(fitted: Fitted) -> Seen:
    """The images that taught the shipped model: not those that were held out, but those of folds, which it had all."""
    part = fitted.judging.judged if fitted.judging.how == "held-out" else np.empty(0, dtype=np.int64)
    labelled, unlabelled = learnt_from(fitted.photos.labels, fitted.groups, fitted.usable, part)
    if fitted.method == "supervised":
        unlabelled = unlabelled[:0]
    return seen_by(fitted.decoded.images, labelled=labelled, unlabelled=unlabelled, earlier=fitted.earlier)


def _probabilities(fitted: Fitted, temperature: float, progress: Callable[[int, int], None]) -> np.ndarray:
    """[N, n_classes] for all images; rows of unreadable ones are never looked at."""
    images, shipped = torch.from_numpy(fitted.decoded.images), fitted.shipped
    pieces = []
    for start in range(0, len(images), _CHUNK):
        logits = predict_logits(shipped.network, images[start : start + _CHUNK], normalise=shipped.normalise)
        pieces.append(softmax(logits.double().numpy() / temperature, axis=1))
        progress(min(start + _CHUNK, len(images)), len(images))
    return np.concatenate(pieces)


def _label_next_rows(photos: Photos, probabilities: np.ndarray, suggestions: list[Suggestion]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["path", "guess", "confidence", "reason"])
    for suggestion in suggestions:
        p = probabilities[suggestion.index]
        guess = photos.class_names[int(p.argmax())]
        writer.writerow([cell(photos.names[suggestion.index]), cell(guess), f"{p.max():.4f}", cell(suggestion.reason)])
    return file.getvalue()


def _counts(labels: np.ndarray, photos: Photos) -> np.ndarray:
    return np.bincount(labels, minlength=len(photos.class_names))


def _confusion(truth: np.ndarray, guess: np.ndarray, n_classes: int) -> list[list[int]]:
    """Rows are the true class, columns the predicted one."""
    table = np.zeros((n_classes, n_classes), dtype=int)
    np.add.at(table, (truth, guess), 1)
    return [[int(value) for value in row] for row in table]


def _per_class(
    fitted: Fitted, truth: np.ndarray, best: Judged, probabilities: np.ndarray, labelled: np.ndarray
) -> list[dict[str, Any]]:
    photos = fitted.photos
    taught, predicted = (
        _counts(photos.labels[labelled], photos),
        _counts(probabilities[fitted.usable].argmax(1), photos),
    )
    return [
        {
            "name": name,
            "n_labelled": int(taught[k]),
            "n_judged": int((truth == k).sum()),
            "error": float(best.wrong[truth == k].mean()) if (truth == k).any() else None,
            "n_predicted": int(predicted[k]),
        }
        for k, name in enumerate(photos.class_names)
    ]


def _curve(judged: Judged) -> list[dict[str, float]]:
    return [
        {"step": point["step"], "student": point["student"], "teacher": point["teacher"]}
        for point in judged.first.record["curve"]
    ]


def _gallery(
    photos: Photos, probabilities: np.ndarray, candidates: np.ndarray, suggestions: list[Suggestion]
) -> dict[str, list[dict[str, Any]]]:
    def shown(index: int, reason: str | None = None) -> dict[str, Any]:
        p = probabilities[index]
        entry = {
            "name": printable(photos.names[index]),
            "label": photos.class_names[int(p.argmax())],
            "confidence": float(p.max()),
            "thumb": thumbnail(photos, index),
        }
        return entry if reason is None else entry | {"reason": reason}

    order = candidates[np.argsort(-probabilities[candidates].max(1), kind="stable")]
    return {
        "most_confident": [shown(int(i)) for i in order[:_N_SHOWN]],
        "least_confident": [shown(int(i)) for i in order[::-1][:_N_SHOWN]],
        "label_next": [shown(s.index, s.reason) for s in suggestions],
    }
