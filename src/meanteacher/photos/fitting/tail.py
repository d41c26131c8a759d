"""Mean Teacher on the last layers of a pretrained network: the network, its views and its training."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from meanteacher.core import LOCATION, Augment, InputError, Problem
from meanteacher.costs import Confident
from meanteacher.data import Fixed
from meanteacher.experiment import TrainingSpec
from meanteacher.files import read_regular, write_atomic
from meanteacher.methods import MeanTeacher, Supervised
from meanteacher.photos.features.backbones import Backbone
from meanteacher.schedules import Constant, Cosine, LinearWarmUp, Product
from meanteacher.train import AdamSpec

_LABELLED_ROWS = 32
HEAD_ROWS, TAIL_ROWS = 288, 96
"""Rows of a batch: for the linear classifier alone, and with layers before it, which take far longer."""
_RATE = 1e-3
_HEAD_STEP = 0.1
"""How fast the linear classifier learns, relative to the length of its input."""
_MAX_BYTES = 1 << 32
_COST = Confident(threshold=0.7, temperature=0.1, alignment=1.0)


@dataclass(frozen=True)
class CachedView:
    """One of the stored views of each photo, drawn anew in every step: [B, n_views, ...] -> [B, ...]."""

    first: int
    last: int
    """Views from `first` up to, but not including, this one."""

    def __call__(self, views: Tensor, generator: torch.Generator) -> Tensor:
        rows = torch.arange(len(views), device=views.device)
        drawn = torch.randint(self.first, self.last, (len(views),), generator=generator, device=views.device)
        return views[rows, drawn]


@dataclass(frozen=True, kw_only=True)
class TailSpec:
    """The layers of a pretrained network behind the cut, and a linear classifier."""

    backbone: Backbone
    cut: int
    sha256: str
    """Digest of the file that it starts from."""
    feature_length: float
    """The mean length of a photo's pooled features: the classifier learns as fast for every backbone."""
    start: str = field(metadata=LOCATION)
    """A file of weights: those of the classifier, or of all layers where an earlier model is continued."""

    def build(self, problem: Problem) -> nn.Module:
        head = _ScaledLinear(self.backbone.n_features, problem.n_classes, _HEAD_STEP / _RATE / self.feature_length)
        # Where all layers are frozen, reading their weights would take longer than a short run.
        behind = list(self.backbone.network())[self.cut :] if self.cut < self.backbone.cuts[-1] else []
        tail = Tail([*behind, head])
        tail.load(Path(self.start))
        return tail


class Tail(nn.Sequential):
    """Batch normalisations keep the statistics that they were trained with: a few labels would not give better ones."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__(*layers)
        self.train()

    def train(self, mode: bool = True) -> "Tail":
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        return self

    @property
    def head(self) -> "_ScaledLinear":
        head = self[-1]
        assert isinstance(head, _ScaledLinear)
        return head

    def load(self, start: Path) -> None:
        """Set the weights that the file has; the other layers stay as they are."""
        try:
            tensors = safetensors.load(read_regular(start, _MAX_BYTES))
            weight, bias = tensors.pop("head.weight"), tensors.pop("head.bias")
            with torch.no_grad():
                self.head.weight.copy_(weight / self.head.scale)
                self.head.bias.copy_(bias)
            self.load_state_dict(tensors, strict=False)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise InputError(
                f"{start} does not hold the first weights of the run ({str(error).partition(chr(10))[0]}). Start again."
            ) from error

    def fill(self, whole: nn.Sequential, front: Iterable[nn.Module]) -> None:
        """Give `whole`, which ends with an ordinary linear classifier, the weights of `front` and of this tail."""
        for layer, trained in zip(list(whole)[:-1], [*front, *list(self)[:-1]], strict=True):
            layer.load_state_dict(trained.state_dict())
        last = whole[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.copy_(self.head.weight * self.head.scale)
            last.bias.copy_(self.head.bias)


class _ScaledLinear(nn.Module):
    """A linear layer of scaled inputs: Adam moves every weight alike, so the scale sets how fast it learns."""

    def __init__(self, n_in: int, n_out: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.zeros(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.weight, self.bias)


def start_digest(path: Path) -> str:
    """The sha256 of a file for `TailSpec.start`."""
    try:
        return hashlib.sha256(read_regular(path, _MAX_BYTES)).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Start the fit again.") from error


def save_start(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file for `TailSpec.start`: `head.weight`, `head.bias`, and those of other layers, if any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, safetensors.save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def tail_training(
    method: str, *, model: TailSpec, steps: int, n_views: int, n_weak: int, evaluate: int = 5
) -> TrainingSpec:
    """How a method trains on stored features. Both methods see the same number of labelled photos per step.

    The teacher sees the `n_weak` weak ones of the `n_views` views of each photo, and the student the others.
    """
    if not 1 <= n_weak <= n_views:
        raise InputError(f"n_weak is 1 to n_views={n_views}, got {n_weak}.")
    rows = HEAD_ROWS if model.cut == model.backbone.cuts[-1] else TAIL_ROWS
    if method == "supervised":
        rows = _LABELLED_ROWS
    decay = Constant(max(0.9, 1 - 10 / steps))
    strong: Augment = CachedView(n_weak if n_weak < n_views else 0, n_views)
    rate = Product((LinearWarmUp(first=0.0, value=_RATE, steps=max(1, steps // 10)), Cosine(value=1.0, steps=steps)))
    return TrainingSpec(
        model=model,
        # The statistics of the normalisations never change, so copying them is exact.
        method=Supervised(decay=decay, buffers="copy")
        if method == "supervised"
        else MeanTeacher(decay=decay, buffers="copy", weight=Constant(1.0), cost=_COST),
        normalise=None,  # the features are those of normalised images
        views={"student": strong, "teacher": CachedView(0, n_weak)},
        labelled_view=CachedView(0, n_views),
        batch=Fixed(size=rows, labelled=_LABELLED_ROWS, unlabelled_pool="all"),
        optim=AdamSpec(learning_rate=rate, beta1=Constant(0.9), beta2=Constant(0.999)),
        steps=steps,
        evaluate_every=max(1, steps // evaluate),
    )
