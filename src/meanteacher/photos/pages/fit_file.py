"""fit.json, the content of a fit: its shape, checked where it is read."""

import reprlib
from pathlib import Path
from typing import Any

from meanteacher.files.fields import Field, RecordError, Shape, read_json
from meanteacher.photos.pages.fit_tables import SEVERITIES

FIT_SCHEMA = 1

_ERROR: dict[str, Shape] = {
    "error": Field.fraction,
    "low": Field.fraction,
    "high": Field.fraction,
    "wrong?": Field.count,
}
_PICTURE: Shape = {
    "name": Field.text,
    "label": Field.text,
    "confidence?": Field.fraction,
    "reason?": Field.any_text,
    "thumb?": Field.any_text,
}


def _square(field: Field) -> None:
    """A table of counts with a row and a column per class."""
    rows = field.check([[Field.count]])
    if any(len(row) != len(rows) for row in rows):
        field.wrong("a square table")


def _reading(field: Field) -> None:
    """A reading of the vitals, or several: numbers, and groups of numbers."""
    for reading in field.elements() if isinstance(field.value, list) else [field]:
        for name, value in reading.fields().items():
            if name.endswith("_share"):
                value.optional(Field.fraction)
            else:
                value.check({"*": _number}) if isinstance(value.value, dict) else _number(value)


def _bin(field: Field) -> None:
    """Images of like confidence; where there are any, how often they are right."""
    if field["n"].count():
        field.check({"confidence": Field.fraction, "accuracy": Field.fraction})
    if "accuracy_low" in field.mapping():
        field.check({"accuracy_low": _number, "accuracy_high": _number})


def _number(field: Field) -> None:
    field.optional(Field.number)


def _alarm(field: Field) -> None:
    field.text() if isinstance(field.value, str) else field.check({"sentence": Field.text, "step?": Field.count})


_FIT: Shape = {
    "title": Field.text,
    "answer": {"helped": Field.text, "sentence": Field.text, "shipped": Field.text},
    "data": {
        **dict.fromkeys(("n_images", "n_labelled", "n_unlabelled", "n_unreadable", "size"), Field.count),
        "class_names": [Field.text],
        "labelled_per_class?": [Field.count],
        "source?": Field.text,
        "photos?": Field.path,
        "labels_file?": Field.path,
    },
    "folder?": Field.path,
    "created?": Field.text,
    "version?": Field.text,
    "backbone?": dict.fromkeys(("title", "name", "trained_on", "licence", "sha256"), Field.text),
    "estimate?": {
        "how": Field.text,
        "n": Field.count,
        "confidence?": Field.fraction,
        "mean-teacher?": _ERROR,
        "supervised?": _ERROR,
        "difference?": {"points": Field.number, "low": Field.number, "high": Field.number},
    },
    "alternatives?": [{"name": Field.text, **_ERROR}],
    "trial?": {"chosen": Field.text, "sentence": Field.text},
    "confusion?": _square,
    "per_class?": [
        {
            "name": Field.text,
            "n_labelled": Field.count,
            "n_predicted?": Field.count,
            "n_judged?": Field.count,
            "error?": Field.fraction,
        }
    ],
    "calibration?": {
        "before": Field.positive,
        "after": Field.positive,
        "temperature": Field.positive,
        "bins?": [_bin],
    },
    "curves?": {"*": [{"step": Field.count, "*": _number}]},
    "vitals?": {"*": {"readings?": _reading, "alarms?": [_alarm]}},
    "findings?": [
        {
            "severity": lambda field: field.choice(*SEVERITIES),
            "sentence": Field.text,
            "names?": [Field.any_text],
            "kind?": Field.text,
            "about?": Field.text,
        }
    ],
    "gallery?": {"*": [_PICTURE]},
    "held_out?": [Field.path],
    "plan?": {"cut?": Field.count, "network?": Field.text, "n_parameters?": Field.count, "sentence?": Field.any_text},
    "timing?": {"total_seconds": Field.positive, "parts?": {"*": Field.positive}},
    "environment?": Field.mapping,
}
"""What fit.json holds. What may be missing was not measured, or is of a later version."""


def read_fit(folder: str | Path) -> dict[str, Any]:
    """What fit.json in a folder holds.

    Raises:
        RecordError: there is none, or it is not one that this version wrote.
    """
    path = Path(folder) / "fit.json"
    try:
        fit = read_json(path, "")
        schema = fit["schema"].value
        if schema == FIT_SCHEMA:
            content: dict[str, Any] = fit.check(_FIT)
            if len(content.get("confusion") or content["data"]["class_names"]) != len(content["data"]["class_names"]):
                fit["confusion"].wrong("a row per class")
            return content
    except RecordError as error:
        raise RecordError(
            f"{folder} holds no finished fit ({str(error).strip()}). Give the folder of one, or fit again."
        ) from error
    raise RecordError(f"{path} has the schema {reprlib.repr(schema)}, this version reads {FIT_SCHEMA}. Fit again.")
