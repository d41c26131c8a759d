"""fit.json, everything that the pages of a fit show, and plan.json, the plan of a fit that can be resumed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta

from meanteacher.files.typed import AnyText, Count, FileName, Fraction, Number, Positive, RecordError, Text, read_json
from meanteacher.formats import count
from meanteacher.records.run import Alarm, Environment, Evaluation, Reading

SCHEMA = 1

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
class PointsDifference:
    """How many percentage points fewer errors Mean Teacher makes, with the interval."""

    points: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The errors of both methods on labelled images that they did not learn from."""

    how: Literal["held-out", "folds"]
    n: Count
    confidence: Fraction
    n_needed: Count | None
    """Test images that it takes to show a difference of this size; None if there is hardly any."""
    errors: Mapping[str, ErrorEstimate]
    """method -> its error."""
    difference: PointsDifference


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether the unlabelled images helped."""

    helped: Text
    """"yes", "no" or "unclear"."""
    sentence: Text
    shipped: Text
    """The method whose model is kept."""


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
    pretrained: ErrorEstimate
    scratch: ErrorEstimate | None
    """None if the pretrained network was hardly better than a guess."""
    sentence: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """One class: its labels, its error, and how often it is predicted."""

    name: FileName
    n_labelled: Count
    n_judged: Count
    error: Fraction | None
    """None if no image of the class was tested."""
    n_predicted: Count


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
class TrainingChecks:
    """The health checks of one training run, and the alarms that they raised."""

    readings: tuple[Reading, ...]
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image of the gallery."""

    name: Text
    label: FileName
    confidence: Fraction
    thumb: AnyText
    """A data: address; empty if the image can no longer be read."""
    reason: AnyText = ""
    """Why a label for it would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about the training runs of a fit that the time decides."""

    minutes: Positive
    size: Annotated[int, Meta(ge=1, le=1 << 12)]
    steps: Annotated[int, Meta(ge=1, le=1 << 40)]
    flip: bool
    width: Positive = 0.0
    """The width of a network that is trained from scratch."""
    backbone: AnyText = ""
    """The name of the pretrained network whose last layers are trained; empty from scratch."""
    cut: Annotated[int, Meta(ge=0, le=1 << 12)] = 0
    """The number of its first layers that are frozen."""
    n_views: Annotated[int, Meta(ge=0, le=64)] = 0
    """Views of each photo for which the frozen layers are computed."""
    weak_labelled_view: bool = False
    """Whether labelled rows get no RandAugment."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    seconds_per_step: Mapping[str, Positive] = field(default_factory=dict)
    """method -> seconds."""
    seconds: Positive = 0.0
    """The expected time of all runs."""
    seconds_per_image: Positive = 0.0
    """The time of a prediction at the end."""
    n_rounds: Annotated[int, Meta(ge=1, le=1 << 10)] = 1
    """1 with a held-out part; with folds, one per fold and a last one on all labels."""

    def runs(self) -> list[str]:
        return runs_of(self.n_rounds)

    def sentence(self) -> str:
        what = f"FastNet at width {self.width:g}"
        if self.backbone:
            copies = count(self.n_views, "copy", "copies")
            what = f"the last layers of the pretrained network {self.backbone}, {copies} of each image"
        return (
            f"Training {len(self.runs())} networks for {self.steps:,} steps each ({what}, images of "
            f"{self.size}x{self.size} pixels, {count(self.threads, 'thread')}): about "
            f"{max(1, round(self.seconds / 60))} min."
        )


FIT_METHODS = ("supervised", "mean-teacher")


def runs_of(n_rounds: int) -> list[str]:
    """The method of each run of a fit, in order. The last run, on all labels, counts as the more expensive method."""
    if n_rounds == 1:
        return list(FIT_METHODS)
    return [method for method in FIT_METHODS for _ in range(n_rounds - 1)] + [FIT_METHODS[-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """plan.json: the plan of a fit, the seconds used so far, and what must be unchanged to resume."""

    fingerprint: Text
    """The fingerprint of photos and labels."""
    spent: Positive
    device: Text
    trial: Trial | None
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """The time of a fit, and of its parts in their order."""

    total_seconds: Positive
    parts: Mapping[str, Positive]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """fit.json: everything that the pages of a fit show."""

    schema: Literal[1] = 1
    title: Text
    folder: FileName
    created: Text
    version: Text
    answer: Answer
    data: FitPhotos
    backbone: BackboneSummary | None
    estimate: Estimate
    alternatives: Mapping[str, ErrorEstimate]
    """What else was tested on the same images -> its error."""
    trial: Trial | None
    confusion: tuple[tuple[Count, ...], ...]
    """A row per true class, a column per prediction."""
    per_class: tuple[ClassResult, ...]
    calibration: Calibration
    curves: Mapping[str, tuple[Evaluation, ...]]
    """method -> its learning curve."""
    vitals: Mapping[str, TrainingChecks]
    """method -> its health checks."""
    findings: tuple[Finding, ...]
    gallery: Mapping[str, tuple[Picture, ...]]
    held_out: tuple[FileName, ...]
    """Names of the labelled images that no model learned from; empty with folds."""
    plan: Plan
    network: Text
    n_parameters: Count
    planned: AnyText
    """The plan in a sentence or two."""
    timing: TimeSpent
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
