"""The files of runs, fits and models as types: record.json, run.json, fit.json, work.json and model.json.

The code that writes a file and the code that reads it share its type here. `files.typed.read_json` checks a file
against its type, because it may have been written by anyone. Nothing here imports torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from meanteacher.core import check_choice
from meanteacher.files import write_json
from meanteacher.files.typed import (
    AnyText,
    Count,
    FileName,
    Fraction,
    Number,
    Plain,
    Positive,
    RecordError,
    Text,
    read_json,
)

SCHEMA = 1
"""The format of record.json, fit.json and model.json."""

# --- record.json and run.json -----------------------------------------------------------------------------------------

FILE_NAME = "record.json"
WORK_FILE = "work.json"
FIT_FILES = ("fit.json", WORK_FILE)
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

    def __str__(self) -> str:
        """The error with as many digits as the paper reports: two."""
        spread = "" if self.spread is None else f" ± {self.spread:.2f}"
        return f"{self.error:.2f}{spread}{' (top-5)' if self.metric == TOP5 else ''}"


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
    """The record in a file. If it is not a record, the message of the error names the field."""
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
    return {name: value for name, value in asdict(record).items() if name != "file"}


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
    options: Mapping[str, Plain]
    """How it is executed: the kind of device, compilation, precision, parts of a batch."""


# --- fit.json and work.json -------------------------------------------------------------------------------------------

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""What is wrong and should be corrected; what may make the result worse; what is good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `meanteacher check`. No finding stops a fit."""

    kind: Text
    """A word for programs, for instance "duplicate"."""
    severity: Severity
    sentence: Text
    """The sentence is understandable alone and names what to do, if there is anything to do."""
    names: tuple[AnyText, ...] = ()
    """All images or classes that the sentence is about, printable."""
    about: Literal["image", "class"] = "image"
    """What they are names of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEstimate:
    """An estimated error and its interval."""

    error: Fraction
    low: Fraction
    high: Fraction
    wrong: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class FitEstimate:
    """The error on new photos whose classes are as frequent as those of the folder, by cross-validation."""

    error: Fraction | None
    """None if no class has two labels."""
    low: Fraction
    high: Fraction
    wrong: Count
    """How many of the tested photos were wrong, unweighted."""
    n: Count
    """How many labelled photos were tested."""
    confidence: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Helped:
    """Whether the unlabelled photos helped: percentage points fewer errors than with the labels alone."""

    verdict: Text
    """"yes", "no" or "unclear"."""
    sentence: Text
    points: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """The errors of the fit before and of this one, on the same photos, none of which taught the model that is tested.

    Photos that were labelled since because the earlier model was unsure about them do not count.
    """

    n: Count
    before: Count
    """How many were wrong before."""
    now: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sure:
    """The photos about which the model is at least so confident."""

    confidence: Fraction
    share: Fraction
    """Share of the unlabelled photos."""
    error: Fraction | None
    """How many of them are wrong, by the tested photos; None if none of these is as sure."""
    n: Count
    """How many of the tested photos are as sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPhotos:
    """The photos of a fit."""

    n_images: Count
    n_labelled: Count
    n_unlabelled: Count
    n_unreadable: Count
    size: Count
    """Width and height in pixels of the images that the network takes."""
    class_names: tuple[FileName, ...]
    labelled_per_class: tuple[Count, ...]
    source: Literal["class folders", "csv", "npz"]
    """Where the labels come from."""
    photos: FileName
    labels_file: FileName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSummary:
    """The pretrained network of a fit."""

    title: Text
    name: Text
    trained_on: Text
    licence: Text
    sha256: Text
    size: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of the trial that chose the network for small images."""

    chosen: Literal["pretrained", "scratch"]
    n: Count
    pretrained: ErrorEstimate | None
    """None if no class has two labels."""
    scratch: ErrorEstimate | None
    """None if the pretrained network was hardly better than a guess, or nothing could be tested."""
    sentence: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """One class: its labels, its error, and how frequent it is."""

    name: FileName
    n_labelled: Count
    n_tested: Count
    error: Fraction | None
    """None if no photo of the class was tested."""
    n_predicted: Count
    """How many unlabelled photos the model assigns to it."""
    share: Fraction
    """Its estimated share of the folder."""

    @property
    def n_wrong(self) -> int:
        """Number of tested photos that were predicted wrongly."""
        return round((self.error or 0.0) * self.n_tested)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """Test images of similar confidence, and the share of them that the model gets right, with its interval."""

    low: Fraction
    high: Fraction
    n: Annotated[int, Meta(ge=1)]
    confidence: Fraction
    accuracy: Fraction
    accuracy_low: Fraction
    accuracy_high: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The temperature, and the calibration error before and after it."""

    temperature: Positive
    before: Positive
    after: Positive
    bins: tuple[CalibrationBin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image of the gallery."""

    name: Text
    label: FileName
    """The model's answer."""
    confidence: Fraction
    thumb: AnyText
    """A data: address; empty if the image can no longer be read."""
    reason: AnyText = ""
    """Why a label for it would help, or what is doubtful about the given one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecord:
    """work.json: what a fit has done so far, and what must be unchanged to resume it."""

    fingerprint: Text
    """The fingerprint of photos and labels."""
    device: Text
    minutes: Positive
    flip: bool
    backbones: tuple[Text, ...]
    """Names of the pretrained networks; none from scratch."""
    trial: Trial | None = None
    spent: Positive = 0.0
    """Seconds so far."""
    pieces: Mapping[str, Positive] = field(default_factory=dict)
    """The pieces of work that are done -> seconds."""
    width: Positive = 0.0
    """The width of a network that is trained from scratch."""
    steps: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Steps of each of its runs."""
    n_tested: Annotated[int, Meta(ge=0, le=100)] = 0
    """Folds of labelled images that such networks test."""
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """fit.json: everything that the pages of a fit show."""

    schema: Literal[1] = 1
    title: Text
    folder: FileName
    created: Text
    version: Text
    headline: Text
    """How often the model is right, its weakest class, and what to do next."""
    estimate: FitEstimate
    helped: Helped | None
    """None if there were no unlabelled photos, or nothing to compare with."""
    since: Since | None
    """What an earlier fit in the same folder got wrong; None if there was none."""
    data: FitPhotos
    backbones: tuple[BackboneSummary, ...]
    trial: Trial | None
    confusion: tuple[tuple[Count, ...], ...]
    """A row per true class, a column per prediction."""
    per_class: tuple[ClassResult, ...]
    calibration: Calibration
    sure: tuple[Sure, ...]
    findings: tuple[Finding, ...]
    gallery: Mapping[str, tuple[Picture, ...]]
    minutes: Positive
    flip: bool
    network: Text
    n_parameters: Count
    n_views: Count
    pieces: Mapping[str, Positive]
    """The pieces of work -> seconds."""
    seconds: Positive
    environment: Environment

    def __post_init__(self) -> None:
        n_classes = len(self.data.class_names)
        if {len(self.confusion), *map(len, self.confusion)} != {n_classes}:
            raise ValueError(f"Expected a confusion matrix of {n_classes} rows and columns")


def read_fit(folder: str | Path) -> Fit:
    """The content of fit.json in a folder.

    Raises:
        RecordError: there is none, or it is not one that this version wrote.
    """
    try:
        return read_json(Path(folder) / "fit.json", Fit, "", schema=SCHEMA)
    except RecordError as error:
        raise RecordError(f"{folder} holds no finished fit ({error}). Give the folder of one, or fit again.") from error


# --- model.json -------------------------------------------------------------------------------------------------------

_Number = Annotated[int, Meta(ge=-1000, le=1000)] | Annotated[float, Meta(ge=-1000, le=1000)] | bool
"""A field of a network. No network of this package has a thousand layers, or is a thousand times as wide."""
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:/-]{1,100}\Z")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A network or a normaliser: its kind, which is looked up in a table, and its fields."""

    kind: Text
    fields: Mapping[str, _Number | _Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSummary:
    """The images that a model has learnt from; their digests are in seen.bin."""

    n_labelled: Annotated[int, Meta(ge=0, le=1 << 27)]
    n_unlabelled: Annotated[int, Meta(ge=0, le=1 << 27)]
    sha256: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSummary:
    """The labelled photos that a model compares others with."""

    n: Annotated[int, Meta(ge=1, le=10_000)]
    strange_above: Annotated[float, Meta(gt=0, le=2)]
    """1 - cosine to the most similar of them from which a photo may be of none of the classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """model.json: the description of a trained model."""

    format: Literal["meanteacher-model"] = "meanteacher-model"
    schema: Literal[1] = 1
    network: Described
    normalise: Described
    class_names: Annotated[tuple[FileName, ...], Meta(min_length=2)]
    size: Annotated[int, Meta(ge=8, le=1024)]
    """Width and height in pixels of the images that the network takes."""
    temperature: Annotated[float, Meta(ge=1e-6, le=1e6)]
    sha256: Text
    """The digest of weights.safetensors."""
    about: dict[str, Any]
    """Free JSON: versions, error estimate, date, commit."""
    seen: SeenSummary | None
    """None if it is unknown what the model has learnt from."""
    known: KnownSummary | None = None
    """None if the model cannot tell photos of none of its classes."""

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("Expected class names that differ")
