"""What the runs of a fit stand on: a network from scratch, or the last layers of a pretrained one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, MissingBackboneError, Problem
from meanteacher.costs import Confident
from meanteacher.data import Dataset, Fixed, Split, TrainTest
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import TrainingSpec, step_seconds
from meanteacher.models import FastNetSpec, ModelSpec
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.photos.features.extraction import Features
from meanteacher.photos.fitting.plan import ROWS
from meanteacher.photos.fitting.split import FitData
from meanteacher.photos.fitting.spreading import (
    Floats,
    NeighbourSpace,
    SpreadLabels,
    certain_labels,
    linear_classifier,
    spread_labels,
)
from meanteacher.photos.fitting.tail import HEAD_ROWS, Tail, TailSpec, save_start, start_digest, tail_training
from meanteacher.photos.fitting.warm_start import Continued, EarlierFit
from meanteacher.recipes.fast import fast_methods, fast_optim, fast_views, weak_labelled_view
from meanteacher.records import FIT_METHODS, BackboneSummary, Plan
from meanteacher.views import PerChannel
from meanteacher.views.normalise import ToFloat, per_channel

_LABELLED_ROWS = 96
"""Labelled rows in a batch of `ROWS`. They limit the first half of a short run: with a quarter of the rows labelled it
ends no better than without unlabelled rows."""
_COST = Confident(threshold=0.8, temperature=0.1)
_TRIAL_STEPS = 4
_DEFAULT = "lite0"


class Stand(ABC):
    """What the runs of a fit stand on: a network from scratch, or the last layers of a pretrained one."""

    data: FitData
    plan: Plan
    title: str
    """Title of the network."""
    pooled: Floats | None = None
    """[N, n_features] of all photos, if there is a pretrained network."""

    @abstractmethod
    def training(self, method: str, held_out: np.ndarray, folder: Path, *, continued: bool) -> TrainingSpec:
        """How a run in `folder` trains without the held-out photos; `continued` if it starts from an earlier model."""

    @abstractmethod
    def train_test(self, held_out: np.ndarray) -> tuple[TrainTest, Split]:
        """What a run trains on, and the held-out photos as its test set; without any, the labelled ones."""

    @abstractmethod
    def inputs(self, positions: np.ndarray) -> Tensor:
        """What a trained network takes for these photos."""

    @abstractmethod
    def whole(self, network: nn.Module, normalise: nn.Module) -> tuple[nn.Module, nn.Module, ModelSpec]:
        """From pixels to logits: the network, its normalisation and its description."""

    def start(self, training: TrainingSpec) -> nn.Module | None:
        """The network before its first step, if it is a classifier of its own."""
        return None

    def baselines(self, held_out: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of other methods for the held-out photos, [n, n_classes]; higher is more probable."""
        return {}

    def backbone_described(self) -> BackboneSummary | None:
        """The pretrained network as fit.json describes it."""
        return None


def choose_backbone(
    wanted: str, earlier: EarlierFit | None, plan: Plan | None, say: Callable[[str], None]
) -> Backbone | None:
    """The pretrained network that a fit stands on; None to train from scratch.

    A model to continue or the plan of a resumed fit decides it, else the `wanted` name, "none" or "auto".
    """
    if begun := plan or earlier:
        wanted = begun.backbone or "none"
    if wanted == "none":
        return None
    if wanted != "auto":
        return find_backbone(wanted)
    try:
        return find_backbone(_DEFAULT)
    except MissingBackboneError as error:
        say(
            "No pretrained network is there, so a small one is trained from scratch; on photos the pretrained one "
            f"makes less than half as many errors. {error}"
        )
        return None


def photo_training(plan: Plan, method: str, *, model: ModelSpec | None = None) -> TrainingSpec:
    """How a method trains on photos from scratch. Both methods see the same number of labelled images per step."""
    rows = _LABELLED_ROWS if method == "supervised" else ROWS
    return TrainingSpec(
        model=model or FastNetSpec(width=plan.width),
        method=fast_methods(plan.steps, cost=_COST)[method],
        normalise=PerChannel(),
        views=fast_views(plan.size, flip=plan.flip),
        labelled_view=weak_labelled_view(plan.size, flip=plan.flip) if plan.weak_labelled_view else None,
        batch=Fixed(size=rows, labelled=_LABELLED_ROWS, unlabelled_pool="all"),
        optim=fast_optim(plan.steps),
        steps=plan.steps,
        evaluate_every=max(1, plan.steps // 5),
    )


@dataclass(eq=False, kw_only=True)
class FromScratch(Stand):
    """A network of random first weights, trained on the pixels."""

    data: FitData
    plan: Plan
    earlier: Continued | None
    """An earlier model to continue."""
    title: str = "FastNet"

    def training(self, method: str, held_out: np.ndarray, folder: Path, *, continued: bool) -> TrainingSpec:
        return photo_training(self.plan, method, model=self.earlier if continued else None)

    def train_test(self, held_out: np.ndarray) -> tuple[TrainTest, Split]:
        return self.data.train_test(held_out)

    def inputs(self, positions: np.ndarray) -> Tensor:
        return self.data.dataset.images[torch.from_numpy(positions)]

    def whole(self, network: nn.Module, normalise: nn.Module) -> tuple[nn.Module, nn.Module, ModelSpec]:
        return network, normalise, self.earlier.network if self.earlier else FastNetSpec(width=self.plan.width)


def half_labelled(images: Tensor, test: Tensor, n_classes: int) -> tuple[TrainTest, Split]:
    """Random images or features for timing steps, the first half of them labelled, and one as the test set."""
    n = len(images)
    labels, names = torch.arange(n) % n_classes, tuple(str(k) for k in range(n_classes))
    split = Split(torch.arange(n // 2), torch.arange(n // 2, n), torch.empty(0, dtype=torch.int64))
    return TrainTest(Dataset(images, labels, names), Dataset(test, labels[:1], names)), split


def trial_seconds(
    backbone: Backbone, cut: int, shape: tuple[int, ...], n_classes: int, *, seconds: float, device: str
) -> dict[str, float]:
    """method -> how long a step takes behind the cut, measured on random features for so many seconds each."""
    features = torch.rand(2 * HEAD_ROWS, 2, *shape, generator=torch.Generator().manual_seed(0)).half()
    data, split = half_labelled(features, features[:1, 0], n_classes)
    found = {}
    with TemporaryDirectory() as folder:
        start = Path(folder, "start.safetensors")
        head = {"head.weight": torch.zeros(n_classes, backbone.n_features), "head.bias": torch.zeros(n_classes)}
        save_start(start, head)
        model = TailSpec(backbone=backbone, cut=cut, sha256="", feature_length=1.0, start=str(start))
        for method in FIT_METHODS:
            training = tail_training(method, model=model, steps=100_000, n_views=2, n_weak=1)
            times = step_seconds(training, data=data, split=split, seconds=seconds, most=_TRIAL_STEPS, device=device)
            found[method] = fmean(times[1:] or times)  # without the first step, which allocates
    return found


@dataclass(eq=False, kw_only=True)
class OnBackbone(Stand):
    """The last layers of a pretrained network, trained on stored features."""

    data: FitData
    plan: Plan
    backbone: Backbone
    features: Features
    earlier: Mapping[str, Tensor] | None
    """The weights of an earlier model to continue."""
    title: str = field(init=False)
    pooled: Floats = field(init=False)
    dataset: Dataset = field(init=False)

    def __post_init__(self) -> None:
        self.title = self.backbone.title
        behind = self.backbone.network()[self.plan.cut :]
        plain = self.features.values[:, 0]
        self.pooled = predict_logits(behind, plain, normalise=ToFloat()).numpy()
        values, labels, names = self.features.values, self.data.dataset.labels, self.data.photos.class_names
        self.dataset = Dataset(values, labels, names, on_disk=values.is_contiguous())

    def training(self, method: str, held_out: np.ndarray, folder: Path, *, continued: bool) -> TrainingSpec:
        start = folder.with_name(f"{folder.name}-start.safetensors")
        if not start.exists():  # computed once, so that a resumed run starts from the same bytes
            save_start(start, self.earlier if continued and self.earlier else self._head(method, held_out))
        length = float(np.linalg.norm(self.pooled[self.data.usable], axis=1).mean())
        model = TailSpec(
            backbone=self.backbone,
            cut=self.plan.cut,
            sha256=start_digest(start),
            # Rounded, as the last digits depend on the processor.
            feature_length=float(f"{length:.3g}") or 1.0,
            start=str(start),
        )
        views = self.features
        return tail_training(method, model=model, steps=self.plan.steps, n_views=views.n_views, n_weak=views.n_weak)

    def _head(self, method: str, held_out: np.ndarray) -> dict[str, Tensor]:
        """A linear classifier on the labels; for Mean Teacher, on labels that have spread to the unlabelled photos."""
        labelled, unlabelled = self.data.training_rows(held_out)
        rows, labels = labelled, self.data.labels[labelled]
        if method == "mean-teacher" and len(unlabelled):
            rows, labels, _, spread = self._spread(held_out)
            labels = certain_labels(spread, labels)
        found = linear_classifier(self.pooled[rows], labels, len(self.data.photos.class_names))
        return {"head.weight": torch.from_numpy(found.weight), "head.bias": torch.from_numpy(found.bias)}

    def _spread(self, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray, NeighbourSpace, SpreadLabels]:
        labelled, unlabelled = self.data.training_rows(held_out)
        rows = np.concatenate([labelled, unlabelled])
        labels = np.concatenate([self.data.labels[labelled], np.full(len(unlabelled), UNLABELLED)])
        space = NeighbourSpace(self.pooled[rows])
        spread = spread_labels(space(self.pooled[rows]), labels, len(self.data.photos.class_names))
        return rows, labels, space, spread

    def train_test(self, held_out: np.ndarray) -> tuple[TrainTest, Split]:
        labelled, unlabelled = self.data.training_rows(held_out)
        tested = held_out if len(held_out) else labelled
        # The held-out photos are the test set alone: as a part of the training set they would have several views.
        test = Dataset(self.inputs(tested), self.dataset.labels[tested], self.dataset.class_names)
        none = torch.empty(0, dtype=torch.int64)
        return TrainTest(self.dataset, test), Split(torch.from_numpy(labelled), torch.from_numpy(unlabelled), none)

    def inputs(self, positions: np.ndarray) -> Tensor:
        return self.features.values[torch.from_numpy(positions), 0]

    def start(self, training: TrainingSpec) -> nn.Module:
        network = training.model.build(Problem(len(self.data.photos.class_names), len(self.dataset), ()))
        return network.eval()

    def baselines(self, held_out: np.ndarray) -> dict[str, np.ndarray]:
        _, _, space, spread = self._spread(held_out)
        return {"label-spreading": spread.predict(space(self.pooled[held_out]))}

    def whole(self, network: nn.Module, normalise: nn.Module) -> tuple[nn.Module, nn.Module, ModelSpec]:
        assert isinstance(network, Tail)
        shape = (3, self.plan.size, self.plan.size)
        whole = self.backbone.spec.build(Problem(len(self.data.photos.class_names), len(self.dataset), shape))
        network.fill(whole, list(self.backbone.network())[: self.plan.cut])
        return whole.eval(), per_channel(self.backbone.mean, self.backbone.deviation), self.backbone.spec

    def backbone_described(self) -> BackboneSummary:
        return BackboneSummary(**{field.name: getattr(self.backbone, field.name) for field in fields(BackboneSummary)})
