"""What a fit leaves in its folder: the model, the tables, fit.json and the pages."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.experiment.run import environment
from meanteacher.files import reporting_full_disk, write_atomic, write_json
from meanteacher.files.typed import RecordError, checked
from meanteacher.formats import escape_name
from meanteacher.photos.fitting.data import FitData, Learned
from meanteacher.photos.fitting.estimate import (
    Estimate,
    OutOfFold,
    class_frequencies,
    error_estimate,
    most_similar,
)
from meanteacher.photos.fitting.heads import softmax
from meanteacher.photos.fitting.label_next import Suggestion, label_next
from meanteacher.photos.fitting.work import Work
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.tables import SUSPICIOUS
from meanteacher.photos.model.bundle import Classifier, seen_by
from meanteacher.photos.model.predict import BOM, GUESSES, cell, guesses, number
from meanteacher.photos.pages import write_fit_pages
from meanteacher.photos.pages.contact_sheet import thumbnail
from meanteacher.photos.pages.sentences import headline, helped
from meanteacher.records import (
    BackboneSummary,
    Calibration,
    ClassResult,
    Finding,
    Fit,
    FitEstimate,
    FitPhotos,
    Picture,
    Since,
    Sure,
    WorkRecord,
    read_fit,
)
from meanteacher.stats import calibration, confusion
from meanteacher.views import PerChannel

RESULTS = ("fit.json", "model", "predictions.csv", "label-next.csv", "report.html", "MODEL_CARD.md")
"""Files of a complete fit."""
PREDICTIONS, BEFORE = "predictions.csv", "predictions-before.csv"
"""The answers of this fit, and of the one that it replaced."""
_N_SHOWN = 12
"""Images in each row of the gallery."""
_STRANGE = "perhaps of none of the classes"
_CONFIDENCES = (0.5, 0.8, 0.9, 0.95)


_Record = TypeVar("_Record", FitEstimate, BackboneSummary)


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """One answer for every photo, by a model that has not learned from its label."""

    probabilities: NDArray[np.float32]
    """[N, n_classes], calibrated; NaN if there is no answer."""
    why_none: dict[int, str]
    """position -> why there is no answer"""
    strangeness: NDArray[np.float32]
    """[N], above 1 if the photo may be of none of the classes; NaN for labelled photos and if it is unknown."""
    doubts: NDArray[np.float64]
    """[N], by how much another class is more probable than the label; NaN if it is not tested."""
    unlabelled: NDArray[np.int64]
    """Positions of the photos without a label that have an answer."""

    @property
    def guesses(self) -> NDArray[np.int64]:
        """[N], the most probable class, or `UNLABELLED` without an answer."""
        known = ~np.isnan(self.probabilities[:, 0])
        return np.where(known, np.nan_to_num(self.probabilities).argmax(1), UNLABELLED)


def answers_of(learned: Learned, labels: NDArray[np.int64]) -> Answers:
    """The model's answers for unlabelled photos, and the answers of cross-validation for labelled ones."""
    tested = learned.out_of_fold
    probabilities = softmax(learned.logits / tested.temperature)
    labelled = np.flatnonzero(labels != UNLABELLED)
    probabilities[labelled] = np.nan
    probabilities[tested.positions] = tested.probabilities
    reason = "all photos with this label were learned from, so none could be tested"
    why_none = learned.missing | dict.fromkeys(np.setdiff1d(labelled, tested.positions).tolist(), reason)
    unlabelled = np.setdiff1d(np.arange(len(labels)), [*why_none, *labelled.tolist()])
    strangeness, doubts = np.full(len(labels), np.nan, np.float32), learned.doubts
    if learned.known is not None and learned.features is not None:
        strangeness[unlabelled] = learned.known.strangeness(most_similar(learned.features[unlabelled], learned.known))
    if doubts is None:
        doubts, own = np.full(len(labels), np.nan), tested.probabilities
        doubts[tested.positions] = own.max(1) - own[np.arange(len(own)), tested.labels]
    return Answers(probabilities, why_none, strangeness, doubts, unlabelled)


def write_results(root: Path, data: FitData, learned: Learned, findings: tuple[Finding, ...], work: Work) -> None:
    """Write all files of a fit of the photos in `root`."""
    out, photos, tested = work.folder, data.photos, learned.out_of_fold
    answers = answers_of(learned, data.labels)
    unlabelled, n_labels = answers.unlabelled, np.bincount(data.labels[data.labelled])
    # The unlabelled photos show the class frequencies of the folder; without any, its labels do.
    frequencies = class_frequencies(answers.probabilities[unlabelled]) if len(unlabelled) else n_labels / n_labels.sum()
    estimate = error_estimate(tested, frequencies)
    suggestions = [
        replace(each, reason=f"{each.reason}; {_STRANGE}") if answers.strangeness[each.index] > 1 else each
        for each in label_next(
            answers.probabilities, unlabelled, data.duplicates.near, photos.class_names, features=learned.features,
            labelled=data.labelled,
        )
    ]  # fmt: skip
    created, made_with = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), environment(work.device)
    measured = _part(FitEstimate, estimate)
    per_class = _per_class(data, answers, tested, estimate)
    Classifier(
        network=learned.network,
        normalise=learned.normalise,
        class_names=photos.class_names,
        size=data.size,
        temperature=tested.temperature,
        about={"created": created, "estimate": asdict(measured), "environment": made_with},
        seen=seen_by(data.duplicates.digests, labelled=data.labelled, unlabelled=unlabelled),
        spec=learned.spec,
        normaliser=PerChannel(),
        known=learned.known,
    ).save(out / "model", overwrite=True)
    content = Fit(
        title=escape_name(root.resolve().name),
        folder=str(out.resolve()),
        created=created,
        version=version("meanteacher"),
        headline=headline(measured, per_class, n_next=len(suggestions)),
        estimate=measured,
        helped=None
        if learned.baseline is None or not len(unlabelled) or not len(tested.wrong)
        else helped(tested.wrong, learned.baseline.wrong, n_unlabelled=len(unlabelled)),
        since=_since(out, data, answers),
        data=_described(data, n_labels),
        backbones=tuple(_part(BackboneSummary, backbone) for backbone in learned.backbones),
        trial=work.record.trial,
        confusion=tuple(
            map(tuple, confusion(tested.labels, tested.logits.argmax(1), len(photos.class_names)).tolist())
        ),
        per_class=per_class,
        calibration=checked(calibration(tested.logits, tested.labels), Calibration)
        if len(tested.labels)
        else Calibration(temperature=1.0, before=0.0, after=0.0),
        sure=_sure(answers.probabilities[unlabelled], tested, estimate),
        findings=findings,
        gallery=_gallery(data, answers, suggestions),
        minutes=work.record.minutes,
        flip=work.record.flip,
        network=learned.title,
        n_parameters=sum(p.numel() for p in learned.network.parameters()),
        n_views=learned.n_views,
        pieces=work.record.pieces,
        seconds=round(work.spent(), 1),
        environment=made_with,
    )
    with reporting_full_disk(out):
        write_atomic(out / PREDICTIONS, _prediction_rows(data, answers))
        write_atomic(out / "label-next.csv", _label_next_rows(photos, answers, suggestions))
        write_json(out / "fit.json", asdict(content))
        write_fit_pages(content, out)


def _part(kind: type[_Record], whole: object) -> _Record:
    """The record of this kind with the attributes of `whole`."""
    return kind(**{field.name: getattr(whole, field.name) for field in fields(kind)})


def is_complete(out: Path, record: WorkRecord) -> bool:
    """Whether the fit is finished and no file of it is missing; otherwise results are written again."""
    try:
        return record.finished and all((out / name).exists() for name in RESULTS) and bool(read_fit(out))
    except RecordError:
        return False


def _described(data: FitData, n_labels: NDArray[np.int64]) -> FitPhotos:
    photos = data.photos
    labels_file = photos.labels_file and photos.labels_file.resolve()
    return FitPhotos(
        n_images=len(photos),
        n_labelled=len(data.labelled),
        n_unlabelled=len(data.usable) - len(data.labelled),
        n_unreadable=len(data.left_out.keys() - photos.none_of_these),
        class_names=photos.class_names,
        labelled_per_class=tuple(n_labels.tolist()),
        size=data.size,
        source="npz" if photos.arrays is not None else "csv" if labels_file else "class folders",
        photos=str(photos.root.resolve()),
        labels_file=str(labels_file) if labels_file else None,
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _prediction_rows(data: FitData, answers: Answers) -> str:
    """The given label and the model's answers, which are never about a photo that it learned from with its label."""
    rows, classes = [], [cell(name) for name in data.photos.class_names]
    for k, (name, p) in enumerate(zip(data.photos.names, answers.probabilities, strict=True)):
        given = classes[data.photos.labels[k]] if data.photos.labels[k] != UNLABELLED else ""
        answer = guesses(classes, None if k in answers.why_none else p)
        unlike = [number(answers.strangeness[k]), number(answers.doubts[k])]
        rows.append([cell(name), given, *answer, *unlike, cell(answers.why_none.get(k, ""))])
    return _table(("path", "given", *GUESSES, "strangeness", "doubt", "problem"), rows)


def _label_next_rows(photos: Photos, answers: Answers, suggestions: list[Suggestion]) -> str:
    def row(suggestion: Suggestion) -> Sequence[str]:
        p = answers.probabilities[suggestion.index]
        guess = photos.class_names[int(p.argmax())]
        return [cell(photos.names[suggestion.index]), cell(guess), f"{p.max():.4f}", cell(suggestion.reason)]

    return _table(("path", "guess", "confidence", "reason"), map(row, suggestions))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return BOM + file.getvalue()


def keep_earlier_answers(out: Path) -> None:
    """Keep the answers of the fit that is replaced, for the comparison with the new one."""
    if (out / PREDICTIONS).is_file():
        (out / PREDICTIONS).replace(out / BEFORE)


def _since(out: Path, data: FitData, answers: Answers) -> Since | None:
    """Compare with the answers of the replaced fit, on photos that were labelled then or chosen at random since."""
    try:
        rows = list(csv.DictReader((out / BEFORE).read_text(encoding="utf-8-sig").splitlines()))
    except OSError:
        return None
    before = {row.get("path"): row for row in rows}
    n = n_before = n_now = 0
    for k in data.labelled.tolist():
        earlier, label = before.get(cell(data.photos.names[k])), data.photos.class_names[data.labels[k]]
        if earlier is None or not earlier.get("guess") or answers.guesses[k] == UNLABELLED:
            continue
        if not earlier.get("given") and k not in data.photos.random:
            continue
        n += 1
        n_before += earlier["guess"] != cell(label)
        n_now += bool(answers.guesses[k] != data.labels[k])
    return Since(n=n, before=n_before, now=n_now) if n else None


# --- parts of fit.json ------------------------------------------------------------------------------------------------


def _per_class(data: FitData, answers: Answers, tested: OutOfFold, estimate: Estimate) -> tuple[ClassResult, ...]:
    names = data.photos.class_names
    counts = [
        np.bincount(rows, minlength=len(names)).tolist()
        for rows in (data.labels[data.labelled], tested.labels, answers.guesses[answers.unlabelled])
    ]
    return tuple(
        ClassResult(
            name=name, n_labelled=n_labelled, n_tested=n_tested, error=error, n_predicted=n_predicted, share=share
        )
        for name, n_labelled, n_tested, n_predicted, error, share in zip(
            names, *counts, estimate.per_class, estimate.frequencies, strict=True
        )
    )


def _sure(unlabelled: NDArray[np.float32], tested: OutOfFold, estimate: Estimate) -> tuple[Sure, ...]:
    """How many photos the model is sure about, and how many of them are wrong in the mix of the folder."""
    own = tested.probabilities
    confidence = own.max(1)
    weights = np.array(estimate.frequencies)[tested.labels] / np.bincount(tested.labels)[tested.labels]
    shown = (unlabelled if len(unlabelled) else own).max(1)
    found = []
    for limit in _CONFIDENCES:
        sure = confidence >= limit
        total = float(weights[sure].sum())
        found.append(
            Sure(
                confidence=limit,
                share=float((shown >= limit).mean()) if len(shown) else 0.0,
                error=min(1.0, float(weights[sure & tested.wrong].sum()) / total) if total else None,
                n=int(sure.sum()),
            )
        )
    return tuple(found)


def _gallery(data: FitData, answers: Answers, suggestions: list[Suggestion]) -> dict[str, tuple[Picture, ...]]:
    """Labels that may be wrong, photos that may be of no class, those to label next, and the most certain ones."""
    names, rows = data.photos.class_names, answers.unlabelled

    def looks_like(k: int) -> str:
        """What a model that did not learn from the label takes the photo for."""
        others = np.where(np.arange(len(names)) == data.labels[k], -1, answers.probabilities[k])
        return f"labelled {names[data.labels[k]]}, looks like {names[int(others.argmax())]}"

    doubtful, strange = np.flatnonzero(answers.doubts >= SUSPICIOUS), np.flatnonzero(answers.strangeness > 1)
    shown = {
        "disagreements": [(k, looks_like(k)) for k in _most(doubtful, answers.doubts[doubtful])],
        "strangers": [(k, _STRANGE) for k in _most(strange, answers.strangeness[strange])],
        "label_next": [(each.index, each.reason) for each in suggestions],
        "most_confident": [(k, "") for k in _most(rows, answers.probabilities[rows].max(1))],
    }
    return {key: tuple(_picture(data.photos, answers, *each) for each in group) for key, group in shown.items()}


def _most(rows: NDArray[np.int64], values: NDArray[Any]) -> list[int]:
    """The rows with the highest values, as many as are shown."""
    found: list[int] = rows[np.argsort(-values, kind="stable")][:_N_SHOWN].tolist()
    return found


def _picture(photos: Photos, answers: Answers, index: int, reason: str) -> Picture:
    p = answers.probabilities[index]
    return Picture(
        name=escape_name(photos.names[index]),
        label=photos.class_names[int(p.argmax())],
        confidence=float(p.max()),
        thumb=thumbnail(photos.picture(index)),
        reason=reason,
    )
