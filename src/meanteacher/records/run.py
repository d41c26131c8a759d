"""record.json, the record of a complete run, and run.json, the identity of a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from meanteacher.core import check_choice
from meanteacher.files import write_json
from meanteacher.files.typed import Count, FileName, Fraction, Plain, Positive, RecordError, Text, read_json

SCHEMA = 1
FILE_NAME = "record.json"
FIT_FILES = ("fit.json", "plan.json")
"""One of them is in the folder of a fit. Its own runs are reported with the fit, not as an experiment."""

Part = Literal["test", "validation"]
"""The images that an error is measured on."""

Metric = Literal["error", "top-5 error"]
TOP5: Metric = "top-5 error"

Environment = dict[str, Plain]
"""Versions, commit and machine: what may explain why the same recipe gives another result elsewhere."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something is wrong that the values of the costs do not show."""

    step: Count
    kind: Text
    sentence: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One health check during training."""

    step: Count
    gradients: Mapping[str, Positive]
    """cost -> the norm of its gradient on the student."""
    distance: Positive | None
    """The distance between the weights of student and teacher; None if there is no teacher."""
    labelled_share: Fraction
    """The share of labelled rows so far."""
    largest_class_share: Fraction
    """The share of the most frequent class among the predictions for a batch."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One point of the learning curve: the errors of both models."""

    step: Count
    part: Part
    """The images on which the errors were measured."""
    student: Fraction
    teacher: Fraction
    student_cost: Positive | None = None
    """The classification cost on the labelled training images, without noise; None in runs that do not record it."""
    teacher_cost: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelErrors:
    """The errors of one model; None for images that were not evaluated."""

    test: Fraction
    validation: Fraction | None = None
    test_top5: Fraction | None = None
    """The share of test images whose label is not among the five most probable classes."""

    def on(self, part: Part) -> float | None:
        return self.test if part == "test" else self.validation


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalErrors:
    """The errors of both models after one step. Without a teacher, the student's are recorded twice."""

    step: Count
    student: ModelErrors
    teacher: ModelErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class RunErrors:
    """The errors after the last step, and after the step with the lowest validation error."""

    last: FinalErrors
    best_validation: FinalErrors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The error that the paper reports for a recipe, in per cent."""

    error: Positive
    spread: Positive | None
    """The standard deviation over its runs."""
    where: Text
    metric: Metric = "error"
    """"top-5 error" is the share of test images whose label is not among the five most probable classes."""

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, get_args(Metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRecipe:
    """A recipe as its record has it."""

    name: Text
    fingerprint: Text
    fields: Mapping[str, Any]
    """The description of the recipe, without what stands beside it here."""
    claim: Claim | None = None
    deviations: tuple[Text, ...] = ()
    """How the recipe deviates from the paper, in sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Images of one part that could not be used."""

    n: Count
    first: tuple[Text, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The data of a run."""

    fingerprint: Text
    n_train: Count
    n_labelled: Count
    n_validation: Count
    n_test: Count
    class_names: tuple[FileName, ...]
    official: bool | None = None
    """Whether the files were compared with the official ones; None for a source without a known sha256."""
    broken: Mapping[str, LeftOut] = field(default_factory=dict, hash=False)
    """"train" or "test" -> images of that part that were left out."""

    def n_images(self, part: Part) -> int:
        return self.n_test if part == "test" else self.n_validation


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The number of processes that trained a run, from one step on."""

    from_step: Count
    n: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """record.json: a complete run."""

    schema: Literal[1] = 1
    recipe: RecordedRecipe
    method: Text
    seed: Count
    data: RunData
    split_fingerprint: Text
    environment: Environment
    n_parameters: Count
    memory_bytes: Count | None
    """The size of what the method keeps beside the student; None if it was not measured."""
    processes: tuple[Processes, ...]
    steps: Count
    skipped_steps: Count
    """Steps of the schedule that were left out to finish in time."""
    seconds: Positive
    cpu_seconds: Positive | None
    """Processor time, which does not depend on other load; None if it was not measured."""
    images_per_second: Positive
    curve: tuple[Evaluation, ...]
    errors: RunErrors
    vitals: tuple[Reading, ...]
    alarms: tuple[Alarm, ...]
    file: str = field(default="", compare=False)
    """The path that the record was read from. It is not part of the file."""

    def error(self, part: Part) -> float:
        """The teacher's error after the last step. No step is chosen by looking at the errors.

        Raises:
            RecordError: the run has no such images.
        """
        error = self.errors.last.teacher.on(part)
        if error is None:
            raise RecordError(
                f"{self.file}: errors.last holds no {part} error. Report the other part, "
                f"or run the recipe with {part} images."
            )
        return error


def load_record(path: str | Path) -> Record:
    """The record in a file.

    Raises:
        RecordError: the file is not a record; the message names the field.
    """
    return replace(read_json(Path(path), Record, schema=SCHEMA), file=str(path))


def load_records(folder: str | Path) -> list[Record]:
    """Every record below a folder, in the order of their paths, without those inside a fit.

    Raises:
        RecordError: there is none, or one of them is damaged.
    """
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


def to_json(record: Record) -> dict[str, Any]:
    """The content of record.json."""
    content = asdict(record)
    del content["file"]
    return content


def write_record(path: Path, record: Record) -> None:
    """Write a record, the whole file or nothing."""
    write_json(path, to_json(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """run.json: the identity of a run, and everything that it keeps if it is resumed."""

    identity: Mapping[str, Text]
    """"recipe", "data", "split", "seed" -> fingerprint."""
    recipe: Mapping[str, Any]
    """The description of the recipe."""
    threads: Annotated[int, Meta(ge=1, le=1024)]
    processes: Annotated[int, Meta(ge=1, le=1 << 20)]
    device: Text
    speed: Mapping[str, Plain] | None = None
    """How the steps are computed, once that is chosen."""
