"""Arrays as a network takes them, how to train on them, and the run; tables, small images and images."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from meanteacher import methods
from meanteacher.core import UNLABELLED, Augment, Batch, Cost, InputError, Method, Problem, StepOutput, check_choice
from meanteacher.costs import Confident, classification_cost
from meanteacher.data import Dataset, Fixed, TrainTest, make_split
from meanteacher.experiment.prepared import Prepared
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.formats import percent
from meanteacher.models import FastNetSpec, MirroredSpec, MlpSpec, ModelSpec, PointGeneratorSpec
from meanteacher.passes import copied
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.recipes.fast import fast_optim, fast_views
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec, Alarm, Callback, Evaluation, LogEntry, OptimSpec, Pace, TrainState
from meanteacher.views import Chain, FeatureDropout, Noise, PerChannel, Translate
from meanteacher.views.normalise import per_channel, to_float

if TYPE_CHECKING:
    from meanteacher.estimator.classifier import SemiSupervisedClassifier

_SMALLEST = 16  # pixels of the shorter side that FastNet takes
_WEIGHTS = {
    "pseudo-label": 1.0,
    "pseudo-ensemble": 10.0,
    "gamma-model": 10.0,
    "pi-model": 5.0,
    "temporal-ensembling": 10.0,
    "improved-gan": 1.0,
    "vat": 1.0,
    "vat-entmin": 2.0,
    "mean-teacher": 3.0,
    "mean-teacher-vat": 5.0,
    "fixmatch": 1.0,
    "freematch": 1.0,
}
"""For tables, whose views are stronger than those of the moons; Mean Teacher has another cost than there."""
_EPSILON = 0.2  # length of VAT's perturbation over the root of the number of features
_COST = Confident(threshold=0.9, temperature=0.1)
_PICTURE_NOISE = 0.5  # of small images, in deviations
_WIDE = 20  # features from which on some may be dropped
_NEIGHBOURS = 2000  # rows at most, whose nearest neighbours tell the scale of the noise
_PART = 32  # images whose features are computed at a time
_EVALUATED = 1000  # labelled rows at most, whose error the progress shows
_IMBALANCED = 0.9  # share of one class among the labels, from which on it may also have almost all predictions
_PROMPT = 1e-6  # seconds per step, before any is measured


def as_images(array: NDArray[Any]) -> Tensor:
    """[N, C, H, W], bytes or float32, of [N, H, W], [N, H, W, C] or [N, C, H, W].

    >>> as_images(np.zeros((5, 8, 8))).shape, as_images(np.zeros((5, 8, 8, 3))).shape
    (torch.Size([5, 1, 8, 8]), torch.Size([5, 3, 8, 8]))
    """
    kind = np.uint8 if array.dtype == np.uint8 else np.float32
    images = torch.from_numpy(np.require(array, kind, ["C", "W"]))  # torch takes no array that is read-only
    if images.ndim == 3:
        return images[:, None]
    last, first = (images.ndim == 4 and images.shape[axis] in (1, 3) for axis in (3, 1))
    if last == first:
        raise InputError(
            f"X has the shape {array.shape}. Give a table [N, n_features], or images [N, H, W], [N, H, W, C] or "
            "[N, C, H, W] with C = 1 or 3 channels."
        )
    return images.permute(0, 3, 1, 2).contiguous() if last else images


def features(images: Tensor, backbone: Backbone) -> NDArray[np.float32]:
    """[N, n_features], what the pretrained network finds in images [N, C, H, W] of any size."""
    if images.is_floating_point() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise InputError(
            f"A pretrained network takes bytes (uint8), or values from 0 to 1; got {float(images.min()):g} to "
            f"{float(images.max()):g}. Scale the images."
        )
    whole = nn.Sequential(per_channel(backbone.mean, backbone.deviation), *backbone.network()).eval()
    compute = computing(whole, (3, backbone.size, backbone.size), np.float32)

    def of(part: Tensor) -> NDArray[np.float32]:
        size = (backbone.size, backbone.size)
        resized = F.interpolate(to_float(part), size, mode="bilinear", antialias=True).clamp(0, 1)
        return compute(resized.expand(-1, 3, -1, -1).contiguous().numpy())

    with one_network_per_thread() as (pool, _):
        return np.concatenate(list(pool.map(of, images.split(_PART))))


def takes_mlp(shape: tuple[int, ...]) -> bool:
    """Whether rows of this shape are trained with an MLP: those of a table, and small images [C, H, W]."""
    return len(shape) == 1 or min(shape[1:]) < _SMALLEST


def array_training(
    given: "SemiSupervisedClassifier",
    shape: tuple[int, ...],
    *,
    n_examples: int,
    n_labelled: int,
    noise: float,
    class_weights: tuple[float, ...] | None = None,
    endless: bool = False,
) -> TrainingSpec:
    """How to train on rows of this shape ([n_features], or [C, H, W]) with the parameters of an estimator.

    A parameter of None stands for a default that depends on the data, such as `noise`, which `local_scale` measures. An
    endless training has no last step: the learning rate stays, for rows that keep arriving.
    """
    if isinstance(given.method, str):
        check_choice("method", given.method, tuple(methods.METHODS))
    if given.steps < 1:
        raise InputError(f"steps is at least 1, got {given.steps}.")
    if not 0 <= given.ramp_up <= 1:
        raise InputError(f"ramp_up is a share of the steps from 0 to 1, got {given.ramp_up}.")
    if given.decay is not None and not 0 <= given.decay < 1:
        raise InputError(f"decay lies from 0 to below 1, got {given.decay}.")
    batch = _batch(given, shape, n_examples, n_labelled)
    method = _method(given, shape, -(-n_examples // batch.size), endless)
    views = _views(given, method, shape, noise)
    if type(method) is methods.Supervised:  # it learns nothing from the other rows
        batch = Fixed(size=batch.labelled, labelled=batch.labelled, unlabelled_pool="all")
    if class_weights is not None:
        method = cast(Method, ClassWeighted(method, class_weights))  # its roles are those of the method inside
    return TrainingSpec(
        model=_network(given, shape),
        method=method,
        normalise=None if len(shape) == 1 else PerChannel(),
        views=views,
        batch=batch,
        optim=_optim(given, shape, endless),
        steps=given.steps,
        evaluate_every=given.steps,
    )


def _batch(given: "SemiSupervisedClassifier", shape: tuple[int, ...], n_examples: int, n_labelled: int) -> Fixed:
    """All labelled rows of a table, if they fill less than half of a batch; images are seen anew in every view."""
    table = takes_mlp(shape)
    size = given.batch_size or (200 if table else 160)
    labelled = max(1, min(n_labelled, size // 2) if table else round(0.6 * size))
    return Fixed(size=min(size, labelled + n_examples), labelled=labelled, unlabelled_pool="all")


@dataclass(frozen=True)
class GivenModule:
    """A copy of the user's network, with the weights that it has."""

    module: nn.Module

    def build(self, problem: Problem) -> nn.Module:
        return copied(self.module).train()


def _network(given: "SemiSupervisedClassifier", shape: tuple[int, ...]) -> ModelSpec:
    if given.module is not None:
        return GivenModule(given.module) if isinstance(given.module, nn.Module) else given.module
    if takes_mlp(shape):
        return MlpSpec(hidden=tuple(np.atleast_1d(given.hidden).tolist()))
    return MirroredSpec(FastNetSpec()) if given.flip else FastNetSpec()


def _optim(given: "SemiSupervisedClassifier", shape: tuple[int, ...], endless: bool) -> OptimSpec:
    steps, rate = given.steps, given.learning_rate
    if not takes_mlp(shape) and not endless and rate is None and given.module is None:
        return fast_optim(steps)
    if rate is None:
        rate = 0.01 if takes_mlp(shape) else 0.003
    rise = SigmoidRampUp(value=rate, steps=10 if endless else max(1, steps // 10))
    fall = SigmoidRampDown(value=1.0, steps=max(1, steps // 4), total=steps)
    return AdamSpec(learning_rate=rise if endless else Product((rise, fall)), beta1=Constant(0.9), beta2=Constant(0.99))


def _method(given: "SemiSupervisedClassifier", shape: tuple[int, ...], epoch_steps: int, endless: bool) -> Method:
    """The method of that name with the parameters that it has."""
    if not isinstance(given.method, str):
        return given.method
    kind: Any = methods.METHODS[given.method]
    # By default the teacher averages over about a twentieth of the run.
    average = 0.95 if endless else max(0.9, 1 - 20 / given.steps)
    usual = _WEIGHTS.get(given.method, 0.0) if takes_mlp(shape) or given.method != "mean-teacher" else 1.0
    weight = usual if given.weight is None else given.weight
    settings: dict[str, Any] = {
        "decay": Constant(average if given.decay is None else given.decay),
        "buffers": "average",
        "weight": SigmoidRampUp(value=weight, steps=max(1, round(given.ramp_up * given.steps))),
        "epsilon": _EPSILON * math.sqrt(math.prod(shape)),
        "epoch_steps": epoch_steps,
        "generator": PointGeneratorSpec(),
    }
    if kind is methods.MeanTeacher:
        settings["cost"] = _COST
    built: Method = kind(**{field.name: settings[field.name] for field in fields(kind) if field.name in settings})
    return built


@dataclass(frozen=True)
class ClassWeighted:
    """A method that learns the odds of the classes times their weights (logit adjustment, Menon et al. 2021).

    The classification cost sees the logits less the logarithm of the weight. A weighted cost would change little: the
    network soon fits its few labels, whatever their weights are.
    """

    method: Method
    weights: tuple[float, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        return self.method.roles

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return self.method.init(student, problem)

    def forward(self, student: nn.Module, memory: Any, batch: Batch, step: int) -> StepOutput:
        output = self.method.forward(student, memory, batch, step)
        adjusted = output.logits - output.logits.new_tensor(self.weights).log()
        cost = Cost(classification_cost(adjusted, batch.labels, class_axis=1))
        return StepOutput({**output.costs, "classification": cost}, output.logits)

    def after_step(self, student: nn.Module, memory: Any, batch: Batch, output: StepOutput, step: int) -> None:
        self.method.after_step(student, memory, batch, output, step)

    def predictor(self, student: nn.Module, memory: Any) -> nn.Module:
        return self.method.predictor(student, memory)


def local_scale(rows: Tensor) -> float:
    """The deviation of a feature between a row and its nearest neighbour, over rows [N, n_features] of a table.

    Half of the rows are closer to their neighbour. Noise of this size moves a row about as far as the next one, which
    most often is of the same class, whatever the number of features and however they are correlated.

    >>> round(local_scale(torch.tensor([[0.0], [1.0], [3.0], [10.0]])), 3)
    1.061
    """
    if rows.ndim != 2:
        return _PICTURE_NOISE
    some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), _NEIGHBOURS)).long()].numpy()
    if len(some) < 2:
        return 0.0
    distances, _ = NearestNeighbors(n_neighbors=1).fit(some).kneighbors()
    return float(np.median(distances)) / math.sqrt(2 * some.shape[1])


def _views(
    given: "SemiSupervisedClassifier", method: Method, shape: tuple[int, ...], noise: float
) -> Mapping[str, Augment]:
    weak, strong = _weak_and_strong(given, shape, noise)
    if isinstance(method, methods.FixMatch | methods.FreeMatch):
        return {"student": weak, "strong": strong}
    if isinstance(method, methods.PseudoEnsemble | methods.GammaModel):
        return {"student": strong, "teacher": Chain()}
    if isinstance(method, methods.Vat | methods.ImprovedGan):  # they make their own perturbations
        return {"student": weak, "teacher": weak}
    return {"student": strong, "teacher": weak, "strong": strong}


def _weak_and_strong(
    given: "SemiSupervisedClassifier", shape: tuple[int, ...], noise: float
) -> tuple[Augment, Augment]:
    if not takes_mlp(shape):
        views = fast_views(min(shape[1:]), flip=given.flip)
        return views["teacher"], views["student"]
    moved: tuple[Augment, ...] = (Translate(1),) if len(shape) == 3 and min(shape[1:]) > 1 else ()
    # With few features, each says too little about the others.
    usual = 0.3 if math.prod(shape) >= _WIDE else 0.0
    dropout = usual if given.feature_dropout is None else given.feature_dropout
    strong = Chain((*moved, FeatureDropout(dropout), Noise(noise)))
    return Chain((*moved, Noise(noise / 3))), strong


def run(
    training: TrainingSpec, dataset: Dataset, *, seed: int, device: torch.device, ends: float | None, verbose: bool
) -> TrainState:
    """Train on these rows, with all labels that they have, and write no file.

    When `ends`, a time of `time.perf_counter`, comes near, steps are left out.
    """
    known = (dataset.labels != UNLABELLED).nonzero().flatten()
    largest = int(torch.bincount(dataset.labels[known]).max()) / len(known)
    few = known[:_EVALUATED]
    shown = Dataset(dataset.images[few], dataset.labels[few], dataset.class_names)
    split = make_split(dataset.labels, n_classes=dataset.n_classes, n_labelled=None, seed=seed)
    prepared = Prepared(training, data=TrainTest(dataset, shown), split=split, seed=seed, device=device)
    state = prepared.start()
    prepared.train(
        state,
        callbacks=[_Progress(training.steps, verbose=verbose, imbalanced=largest > _IMBALANCED)],
        skip_to=None if ends is None else Pace(steps=training.steps, seconds_per_step=_PROMPT, ends=ends),
    )
    return state


class _Progress(Callback):
    """Alarms as warnings, and on request a line per tenth of the steps."""

    def __init__(self, steps: int, *, verbose: bool, imbalanced: bool) -> None:
        self._steps, self._verbose, self._imbalanced = steps, verbose, imbalanced
        self._told = 0

    def on_log(self, entry: LogEntry) -> None:
        tenth = 10 * entry.step // self._steps
        if self._verbose and tenth > self._told:
            self._told = tenth
            costs = ", ".join(f"{name} {cost:.4f}" for name, cost in entry.costs.items())
            print(f"step {entry.step:,} of {self._steps:,}: {costs}")  # noqa: T201

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if self._verbose:
            print(f"error on the labelled rows: {percent(evaluation.teacher)}")  # noqa: T201

    def on_alarm(self, alarm: Alarm) -> None:
        # Where almost all labels are of one class, so may the predictions be.
        if not (self._imbalanced and alarm.kind == "collapse"):
            warn(alarm)


def warn(alarm: Alarm) -> None:
    warnings.warn(f"Step {alarm.step:,}: {alarm.sentence}", ConvergenceWarning, stacklevel=2)
