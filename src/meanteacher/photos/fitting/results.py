"""What a fit leaves in its folder: the model, the tables, fit.json and the pages."""

import base64
import csv
import io
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
from PIL import Image

from meanteacher.core import UNLABELLED
from meanteacher.experiment.run import environment
from meanteacher.files import reporting_full_disk, write_atomic, write_json
from meanteacher.files.images import UnreadableError, decode
from meanteacher.files.typed import checked
from meanteacher.formats import escape_name
from meanteacher.photos.fitting.answer import answer, error_of, estimate
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.crossval import Comparison, CrossValidation, EvaluationResult
from meanteacher.photos.fitting.label_next import Suggestion, label_next
from meanteacher.photos.fitting.split import EvaluationSplit, FitData
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.model.bundle import Classifier, Seen, seen_by
from meanteacher.photos.model.predict import cell, prediction_rows
from meanteacher.photos.pages import write_fit_pages
from meanteacher.records import (
    FIT_METHODS,
    Calibration,
    ClassResult,
    Finding,
    Fit,
    FitPhotos,
    Picture,
    TrainingChecks,
    Trial,
)
from meanteacher.stats import calibration, confusion
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
    trial: Trial | None,
    earlier: Seen,
) -> Fit:
    """Predict every image with the better model, write all files to `config.out`, and return what fit.json holds."""
    stand, split, out = validation.stand, validation.split, config.out
    data, plan = stand.data, stand.plan
    photos, usable, model = data.photos, data.usable, comparison.model
    better = comparison.results[comparison.better]
    truth = photos.labels[split.positions]
    calibrated = checked(calibration(better.logits, truth), Calibration)
    errors, gain = estimate(split.how, *(comparison.results[m].wrong for m in ("mean-teacher", "supervised")))
    labelled = data.labels != UNLABELLED
    n_unlabelled = len(usable) - int(labelled.sum())
    labels_file = config.labels and config.labels.resolve()
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made_with = environment(next(model.network.parameters()).device)
    about = {
        "created": created,
        "method": comparison.better,
        "estimate": asdict(errors.errors[comparison.better]) | {"how": split.how, "n": errors.n},
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
        temperature=calibrated.temperature,
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
    positions = np.flatnonzero(labelled)
    candidates = np.setdiff1d(usable, positions)
    suggestions = label_next(
        probabilities, candidates, data.groups, photos.class_names, features=stand.pooled, labelled=positions
    )
    rows = prediction_rows(photos.names, probabilities, photos.class_names, data.decoded.unreadable)
    with reporting_full_disk(out):
        write_atomic(out / "predictions.csv", rows)
        write_atomic(out / "label-next.csv", _label_next_rows(photos, probabilities, suggestions))
    content = Fit(
        title=escape_name(config.photos.resolve().name),
        folder=str(out.resolve()),
        created=created,
        version=version("meanteacher"),
        answer=answer(
            errors, gain, shipped=comparison.better, n_unlabelled=n_unlabelled, on_backbone=backbone is not None
        ),
        data=FitPhotos(
            n_images=len(photos),
            n_labelled=int(labelled.sum()),
            n_unlabelled=n_unlabelled,
            n_unreadable=len(data.decoded.unreadable),
            class_names=photos.class_names,
            labelled_per_class=tuple(_counts(photos.labels[labelled], photos).tolist()),
            size=plan.size,
            source="npz" if photos.arrays is not None else "csv" if labels_file else "class folders",
            photos=str(photos.root.resolve()),
            labels_file=str(labels_file) if labels_file else None,
        ),
        backbone=backbone,
        estimate=errors,
        alternatives={name: error_of(wrong) for name, wrong in comparison.alternatives.items()},
        trial=trial,
        confusion=tuple(map(tuple, confusion(truth, better.logits.argmax(1), len(photos.class_names)).tolist())),
        per_class=_per_class(data, truth, better, probabilities, labelled),
        calibration=calibrated,
        curves={method: comparison.results[method].first.record.curve for method in FIT_METHODS},
        vitals={
            method: TrainingChecks(readings=result.first.record.vitals, alarms=result.first.record.alarms)
            for method, result in comparison.results.items()
        },
        findings=findings,
        gallery=_gallery(photos, probabilities, candidates, suggestions),
        held_out=tuple(photos.names[i] for i in split.positions) if split.how == "held-out" else (),
        plan=plan,
        network=stand.title,
        n_parameters=sum(p.numel() for p in network.parameters()),
        planned=" ".join(filter(None, (plan.sentence(), comparison.skipped))),
        timing=validation.timing.finish("predict"),
        environment=made_with,
    )
    with reporting_full_disk(out):
        write_json(out / "fit.json", asdict(content))
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


def _per_class(
    data: FitData, truth: np.ndarray, result: EvaluationResult, probabilities: np.ndarray, labelled: np.ndarray
) -> tuple[ClassResult, ...]:
    photos = data.photos
    n_labelled = _counts(photos.labels[labelled], photos)
    n_predicted = _counts(probabilities[data.usable].argmax(1), photos)
    return tuple(
        ClassResult(
            name=name,
            n_labelled=int(n_labelled[k]),
            n_judged=int((truth == k).sum()),
            error=float(result.wrong[truth == k].mean()) if (truth == k).any() else None,
            n_predicted=int(n_predicted[k]),
        )
        for k, name in enumerate(photos.class_names)
    )


def _gallery(
    photos: Photos, probabilities: np.ndarray, candidates: np.ndarray, suggestions: list[Suggestion]
) -> dict[str, tuple[Picture, ...]]:
    def shown(index: int, reason: str = "") -> Picture:
        p = probabilities[index]
        return Picture(
            name=escape_name(photos.names[index]),
            label=photos.class_names[int(p.argmax())],
            confidence=float(p.max()),
            thumb=_thumbnail(photos, index),
            reason=reason,
        )

    order = candidates[np.argsort(-probabilities[candidates].max(1), kind="stable")]
    return {
        "most_confident": tuple(shown(int(i)) for i in order[:_N_SHOWN]),
        "least_confident": tuple(shown(int(i)) for i in order[::-1][:_N_SHOWN]),
        "label_next": tuple(shown(s.index, s.reason) for s in suggestions),
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
