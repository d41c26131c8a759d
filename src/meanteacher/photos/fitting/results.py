"""What a fit leaves in its folder: the model, the tables, fit.json and the pages."""

import base64
import csv
import io
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image

from meanteacher.core import UNLABELLED
from meanteacher.experiment.folder import environment
from meanteacher.files import reporting_full_disk, write_atomic, write_json
from meanteacher.files.images import UnreadableError, decode
from meanteacher.formats import escape_name
from meanteacher.photos.fitting.answer import answer, error_of, estimate
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.crossval import Comparison, CrossValidation, EvaluationResult
from meanteacher.photos.fitting.label_next import Suggestion, label_next
from meanteacher.photos.fitting.plan import METHODS
from meanteacher.photos.fitting.split import EvaluationSplit, FitData
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.findings import Finding
from meanteacher.photos.model.bundle import Classifier, Seen, seen_by
from meanteacher.photos.model.predict import cell, prediction_rows
from meanteacher.photos.pages import FIT_SCHEMA, write_fit_pages
from meanteacher.stats import calibration
from meanteacher.views import PerChannel

_N_SHOWN = 12
"""Images in each row of the gallery."""
_THUMBNAIL_SIDE = 96


def write_results(
    config: FitConfig,
    validation: CrossValidation,
    comparison: Comparison,
    findings: tuple[Finding, ...],
    *,
    trial: dict[str, Any] | None,
    earlier: Seen,
) -> dict[str, Any]:
    """Predict every image with the better model and write all files to `config.out`. Returns what fit.json holds.

    `trial` is what chose the network, if anything did; `earlier` is what the model was trained on before this fit.
    """
    stand, split, out = validation.stand, validation.split, config.out
    data, plan = stand.data, stand.plan
    photos, usable, model = data.photos, data.usable, comparison.model
    better = comparison.results[comparison.better]
    truth = photos.labels[split.positions]
    calibrated = calibration(better.logits, truth)
    temperature = float(calibrated["temperature"])
    errors, gain = estimate(split.how, *(comparison.results[m].wrong for m in ("mean-teacher", "supervised")))
    labelled = data.labels != UNLABELLED
    n_unlabelled = len(usable) - int(labelled.sum())
    labels_file = config.labels and config.labels.resolve()
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made_with = environment(next(model.network.parameters()).device)
    about = {
        "created": created,
        "method": comparison.better,
        "estimate": errors[comparison.better] | {"how": split.how, "n": errors["n"]},
        "environment": made_with,
    }
    seen = _seen(data, split, comparison.better, earlier)
    backbone = stand.backbone_described()
    network, normalise, spec = stand.whole(model.network, model.normalise)
    classifier = Classifier(
        network=network,
        normalise=normalise,
        class_names=photos.class_names,
        size=plan.size,
        temperature=temperature,
        about=about,
        seen=seen,
        spec=spec,
        normaliser=PerChannel(),
    )
    classifier.save(out / "model", overwrite=True)
    # Unreadable images are black here; their rows are never used.
    probabilities = classifier.predict_proba(
        data.decoded.images.transpose(0, 2, 3, 1),
        device=str(next(model.network.parameters()).device),
        progress=lambda done, total: validation.callback.on_progress("Predicting", done, total),
    )
    candidates = np.setdiff1d(usable, np.flatnonzero(labelled))
    suggestions = label_next(
        probabilities,
        candidates,
        data.groups,
        photos.class_names,
        features=stand.pooled,
        labelled=np.flatnonzero(labelled),
    )
    rows = prediction_rows(photos.names, probabilities, photos.class_names, data.decoded.unreadable)
    with reporting_full_disk(out):
        write_atomic(out / "predictions.csv", rows)
        write_atomic(out / "label-next.csv", _label_next_rows(photos, probabilities, suggestions))
    content: dict[str, Any] = {
        "schema": FIT_SCHEMA,
        "title": escape_name(config.photos.resolve().name),
        "folder": str(out.resolve()),
        "created": created,
        "version": version("meanteacher"),
        "answer": answer(
            errors, gain, shipped=comparison.better, n_unlabelled=n_unlabelled, on_backbone=backbone is not None
        ),
        "data": {
            "n_images": len(photos),
            "n_labelled": int(labelled.sum()),
            "n_unlabelled": n_unlabelled,
            "n_unreadable": len(data.decoded.unreadable),
            "class_names": list(photos.class_names),
            "labelled_per_class": _counts(photos.labels[labelled], photos).tolist(),
            "size": plan.size,
            "source": "npz" if photos.arrays is not None else "csv" if labels_file else "class folders",
            "photos": str(photos.root.resolve()),
            "labels_file": str(labels_file) if labels_file else None,
        },
        "backbone": backbone,
        "estimate": errors,
        "alternatives": [{"name": name, **error_of(wrong)} for name, wrong in comparison.alternatives.items()],
        "trial": trial,
        "confusion": _confusion(truth, better.logits.argmax(1), len(photos.class_names)),
        "per_class": _per_class(data, truth, better, probabilities, labelled),
        "calibration": calibrated,
        "curves": {method: _curve(comparison.results[method]) for method in METHODS},
        "vitals": {
            method: {"readings": result.first.record["vitals"], "alarms": result.first.record["alarms"]}
            for method, result in comparison.results.items()
        },
        "findings": [asdict(finding) for finding in findings],
        "gallery": _gallery(photos, probabilities, candidates, suggestions),
        "held_out": [photos.names[i] for i in split.positions] if split.how == "held-out" else [],
        "plan": plan.to_json()
        | {
            "network": stand.title,
            "n_parameters": sum(p.numel() for p in network.parameters()),
            "sentence": " ".join(filter(None, (plan.sentence(), comparison.skipped))),
        },
        "timing": validation.timing.finish("predict"),
        "environment": made_with,
    }
    with reporting_full_disk(out):
        write_json(out / "fit.json", content)
        write_fit_pages(content, out)
    return content


def _seen(data: FitData, split: EvaluationSplit, method: str, earlier: Seen) -> Seen:
    """The images that the kept model was trained on. With folds it is trained on every label."""
    held_out = split.positions if split.how == "held-out" else np.empty(0, dtype=np.int64)
    labelled, unlabelled = data.training_rows(held_out)
    if method == "supervised":
        unlabelled = unlabelled[:0]
    return seen_by(data.digests, labelled=labelled, unlabelled=unlabelled, earlier=earlier)


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
    data: FitData, truth: np.ndarray, result: EvaluationResult, probabilities: np.ndarray, labelled: np.ndarray
) -> list[dict[str, Any]]:
    photos = data.photos
    n_labelled = _counts(photos.labels[labelled], photos)
    n_predicted = _counts(probabilities[data.usable].argmax(1), photos)
    return [
        {
            "name": name,
            "n_labelled": int(n_labelled[k]),
            "n_judged": int((truth == k).sum()),
            "error": float(result.wrong[truth == k].mean()) if (truth == k).any() else None,
            "n_predicted": int(n_predicted[k]),
        }
        for k, name in enumerate(photos.class_names)
    ]


def _curve(result: EvaluationResult) -> list[dict[str, float]]:
    return [{key: point[key] for key in ("step", "student", "teacher")} for point in result.first.record["curve"]]


def _gallery(
    photos: Photos, probabilities: np.ndarray, candidates: np.ndarray, suggestions: list[Suggestion]
) -> dict[str, list[dict[str, Any]]]:
    def shown(index: int, reason: str | None = None) -> dict[str, Any]:
        p = probabilities[index]
        entry = {
            "name": escape_name(photos.names[index]),
            "label": photos.class_names[int(p.argmax())],
            "confidence": float(p.max()),
            "thumb": _thumbnail(photos, index),
        }
        return entry if reason is None else entry | {"reason": reason}

    order = candidates[np.argsort(-probabilities[candidates].max(1), kind="stable")]
    return {
        "most_confident": [shown(int(i)) for i in order[:_N_SHOWN]],
        "least_confident": [shown(int(i)) for i in order[::-1][:_N_SHOWN]],
        "label_next": [shown(s.index, s.reason) for s in suggestions],
    }


def _thumbnail(photos: Photos, index: int) -> str:
    """As a data: address; empty where the image can no longer be read."""
    try:
        image = Image.fromarray(decode(photos.picture(index), _THUMBNAIL_SIDE))
    except UnreadableError:
        return ""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
