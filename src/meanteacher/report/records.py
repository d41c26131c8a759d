"""The record of a run, read from its JSON file and checked field by field."""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meanteacher.files.fields import Field, RecordError, read_json

SCHEMA = 1
FILE_NAME = "record.json"
FIT_FILES = ("fit.json", "plan.json")
"""One of them is in the folder of a fit, whose own runs are no experiment: they are reported with the fit."""

TOP5 = "top-5 error"
"""The metric of a claim that is not about the ordinary error."""

Part = Literal["test", "validation"]
"""The images an error is measured on."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Fractions of images misclassified; None where a network or a part was not measured."""

    student: float | None
    teacher: float | None

    @property
    def shipped(self) -> float | None:
        """The error of the network a run hands over: the teacher's where there is one."""
        return self.student if self.teacher is None else self.teacher


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation during training."""

    step: int
    part: str
    errors: Errors
    costs: Errors
    """The classification costs on the labelled training images; None where a run did not record them."""


@dataclass(frozen=True, slots=True)
class Vital:
    """One health check during training."""

    step: int
    gradients: Mapping[str, float]
    """cost -> the norm of its gradient on the student."""
    distance: float | None
    """Between the weights of student and teacher."""
    largest_class_share: float | None
    """Of a batch's predictions, the share of the class predicted most."""


@dataclass(frozen=True, slots=True)
class Alarm:
    step: int
    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Data:
    fingerprint: str
    n_train: int
    n_labelled: int
    n_validation: int
    n_test: int
    class_names: tuple[str, ...]

    def n_images(self, part: Part) -> int:
        return self.n_test if part == "test" else self.n_validation


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper reports for a recipe, in percent."""

    error: float
    spread: float | None
    where: str
    metric: str = "error"
    """"error" or "top-5 error"."""


@dataclass(frozen=True, slots=True)
class Record:
    """What tables, figures and pages need to know about one run."""

    file: str
    recipe: str
    recipe_fingerprint: str
    recipe_fields: Mapping[str, object]
    method: str
    seed: int
    status: str
    data: Data
    split_fingerprint: str
    environment: Mapping[str, str]
    n_parameters: int
    steps: int
    seconds: float
    images_per_second: float
    curve: tuple[Point, ...]
    last: Mapping[str, Errors] | None
    """part -> the errors after the last step; None only for a run that did not finish."""
    vitals: tuple[Vital, ...]
    alarms: tuple[Alarm, ...]
    claim: Claim | None = None
    """None where the paper reports nothing, as for a changed recipe."""
    top5: Errors | None = None
    """The top-5 errors on the test images after the last step; None where they were not measured."""

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @property
    def deviations(self) -> tuple[str, ...]:
        """How the recipe deviates from the paper, in sentences."""
        told = self.recipe_fields.get("deviations")
        return tuple(map(str, told)) if isinstance(told, list) else ()

    def errors(self, part: Part) -> Errors:
        """The errors after the last step: no step is chosen by looking at them."""
        if self.last is None:
            raise RecordError(f"{self.file}: the run is {self.status}, not complete. Resume it first.")
        return self.last[part]

    def error(self, part: Part) -> float:
        """The error of the network the run hands over."""
        shipped = self.errors(part).shipped
        if shipped is None:
            raise RecordError(
                f"{self.file}: errors.last holds no {part} error. Report the other part, "
                f"or run the recipe with {part} images."
            )
        return shipped


def load_record(path: str | Path) -> Record:
    """Read one record; anything unexpected in it is a `RecordError` that names the field."""
    return _record(read_json(Path(path)))


def load_records(folder: str | Path) -> list[Record]:
    """Every `record.json` below a folder, in the order of their paths; those inside a fit are left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder}: is not a folder. Give the folder that holds the runs.")
    fits = {path.parent for name in FIT_FILES for path in folder.rglob(name)}
    if folder in fits:
        raise RecordError(f"{folder}: holds a fit that is not complete. Finish it with: meanteacher fit ... --resume")
    paths = [path for path in folder.rglob(FILE_NAME) if fits.isdisjoint(path.parents)]
    if not paths:
        raise RecordError(f"{folder}: no {FILE_NAME} below it. {_instead(folder, fits)}")
    return [load_record(path) for path in sorted(paths, key=lambda path: path.relative_to(folder).parts)]


def _instead(folder: Path, fits: set[Path]) -> str:
    """What to do about a folder without a record."""
    if fits:
        return f"There is a fit in {min(fits)}: give that folder."
    started = sorted(path.parent for path in folder.rglob("run.json"))
    if started:
        return f"No run there is complete. Finish one: meanteacher run RECIPE --out {started[0]} --resume"
    return "Run a recipe into this folder first."


def complete_runs(records: Iterable[Record]) -> list[Record]:
    """The runs that finished; it is an error if none did."""
    records = list(records)
    complete = [record for record in records if record.complete]
    if not complete:
        raise RecordError(f"None of {len(records)} runs is complete: there is nothing to report. Finish one first.")
    return complete


def _record(field: Field) -> Record:
    schema = field["schema"].value
    if schema != SCHEMA:
        raise RecordError(
            f"{field.file}: schema is {reprlib.repr(schema)}, this version reads {SCHEMA}. "
            "Use the version of meanteacher that wrote it, or run the recipe again."
        )
    status = field["status"].text()
    last = field["errors"]["last"]
    return Record(
        file=field.file,
        recipe=field["recipe"]["name"].text(),
        recipe_fingerprint=field["recipe"]["fingerprint"].text(),
        recipe_fields=field["recipe"]["fields"].mapping(),
        method=field["method"].text(),
        seed=field["seed"].count(),
        status=status,
        data=data_of(field["data"]),
        split_fingerprint=field["split"]["fingerprint"].text(),
        environment={name: _plain(value) for name, value in field["environment"].fields().items()},
        n_parameters=field["n_parameters"].count(),
        steps=field["steps"].count(),
        seconds=field["seconds"].positive(),
        images_per_second=field["images_per_second"].positive(),
        curve=tuple(_point(point) for point in field["curve"].elements()),
        last=_last(last) if status == "complete" else last.optional(_last),
        vitals=tuple(_vital(vital) for vital in field["vitals"].elements()),
        alarms=tuple(alarm_of(alarm) for alarm in field["alarms"].elements()),
        claim=_claim(field["recipe"]["fields"]),
        top5=last.optional(_top5),
    )


def _claim(fields: Field) -> Claim | None:
    if fields.mapping().get("claim") is None:
        return None
    claim = fields["claim"]
    return Claim(
        error=claim["error"].positive(),
        spread=claim["spread"].optional(Field.positive),
        where=claim["where"].text(),
        # Left out where it is the ordinary error, as in records from before there was a choice.
        metric=claim["metric"].choice("error", TOP5) if "metric" in claim.mapping() else "error",
    )


def data_of(field: Field) -> Data:
    return Data(
        fingerprint=field["fingerprint"].text(),
        n_train=field["n_train"].count(),
        n_labelled=field["n_labelled"].count(),
        n_validation=field["n_validation"].count(),
        n_test=field["n_test"].count(),
        class_names=tuple(name.text() for name in field["class_names"].elements()),
    )


def _last(field: Field) -> Mapping[str, Errors]:
    return {part: _errors(field["student"][part], field["teacher"][part]) for part in ("test", "validation")}


def _top5(field: Field) -> Errors | None:
    student, teacher = field["student"], field["teacher"]
    if "test_top5" not in student.mapping():
        return None
    return _errors(student["test_top5"], teacher["test_top5"])


def _point(field: Field) -> Point:
    part = field["part"].choice("test", "validation")
    # Runs of earlier versions have no costs.
    student, teacher = (
        field[name].optional(Field.positive) if name in field.mapping() else None
        for name in ("student_cost", "teacher_cost")
    )
    return Point(
        field["step"].count(), part, _errors(field["student"], field["teacher"]), costs=Errors(student, teacher)
    )


def _errors(student: Field, teacher: Field) -> Errors:
    return Errors(student.optional(Field.fraction), teacher.optional(Field.fraction))


def _vital(field: Field) -> Vital:
    return Vital(
        step=field["step"].count(),
        gradients={name: norm.positive() for name, norm in field["gradients"].fields().items()},
        distance=field["distance"].optional(Field.positive),
        largest_class_share=field["largest_class_share"].optional(Field.fraction),
    )


def alarm_of(field: Field) -> Alarm:
    return Alarm(step=field["step"].count(), kind=field["kind"].text(), sentence=field["sentence"].text())


def _plain(field: Field) -> str:
    """A version, a count or a name as text; the page says so where it is unknown."""
    if not isinstance(field.value, str | int | float | None):
        field.wrong("a text, a number or null")
    return "not recorded" if field.value is None else str(field.value)
