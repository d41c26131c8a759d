"""What the processes of the tests do. Every function returns what can be written as JSON."""

import dataclasses
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.data import Fixed
from meanteacher.distributed import join
from meanteacher.experiment import Recipe
from meanteacher.experiment.prepared import Prepared
from meanteacher.train import Intervals, TrainState, Vitals, train
from meanteacher.train.compile import Speed
from support import BATCHES, METHODS, N_CLASSES, SHAPE, recipe


class Plain(nn.Module):
    """Neither batch normalisation nor dropout: what is computed for a row depends on no other row."""

    def __init__(self, outputs: int = 1, extra: tuple[nn.Module, ...] = ()) -> None:
        super().__init__()
        n = SHAPE[1] * SHAPE[2]
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(n, 8), *extra, nn.Tanh())
        self.last = nn.ModuleList(nn.Linear(8, N_CLASSES) for _ in range(outputs))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.features(x.double())
        first, *second = (layer(features) for layer in self.last)
        return (first, second[0]) if second else first


@dataclasses.dataclass(frozen=True)
class PlainSpec:
    outputs: int = 1
    extra: str = ""

    def build(self, problem: Problem) -> nn.Module:
        extra = {"": (), "batch norm": (nn.BatchNorm1d(8),), "dropout": (nn.Dropout(0.5),)}[self.extra]
        return Plain(self.outputs, extra)


BATCHES["divisible by nothing"] = Fixed(size=11, labelled=1, unlabelled_pool="all")
VARIANTS: dict[str, Recipe] = {
    **{name: recipe(name, model=PlainSpec(), steps=50) for name in METHODS},
    "varying labels": recipe(batch="mixed", model=PlainSpec(), steps=50),
    "two outputs": dataclasses.replace(
        recipe(model=PlainSpec(outputs=2), steps=50),
        method=dataclasses.replace(METHODS["mean-teacher"], logit_distance=0.1, consistency_on="unlabelled"),
    ),
    "one label": recipe(batch="divisible by nothing", model=PlainSpec(), steps=20),
    "batch norm": recipe(model=PlainSpec(extra="batch norm"), steps=20),
    "dropout": recipe("vat", model=PlainSpec(extra="dropout"), steps=20),
}


def trained(name: str, **changes: Any) -> tuple[TrainState, Prepared, Vitals]:
    """A run of the whole training loop, in float64: sums in another order then differ by 1e-15, not by 1e-7."""
    torch.set_default_dtype(torch.float64)
    whole = VARIANTS[name]
    ranks = join()
    prepared = Prepared(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    state, vitals = prepared.start(), Vitals(prepared.declared)
    train(
        state,
        whole.method,
        whole.optim,
        prepared.stream,
        steps=whole.steps,
        seed=3,
        vitals=vitals,
        evaluate=prepared.evaluate,
        every=Intervals(evaluate=whole.evaluate_every),
        ranks=ranks,
        speed=Speed(**changes),
    )
    return state, prepared, vitals


def tensors(state: TrainState) -> dict[str, Tensor]:
    modules = {"student": state.student, "memory": state.memory}
    return {f"{part}.{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}


def digest(values: dict[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in values.values())).hexdigest()


def weights(names: list[str], folder: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Train each, save the weights to files of the folder, and return a digest of each and what the vitals found."""
    found = {}
    for name in names:
        state, prepared, vitals = trained(name, **changes)
        if prepared.ranks.is_first:
            torch.save(tensors(state), Path(folder) / f"{name}.pt")
        found[name] = {
            "digest": digest(tensors(state)),
            "curve": [[point.student, point.teacher] for point in state.curve],
            "alarms": [alarm.kind for alarm in vitals.alarms],
            "rows": prepared.stream[0].index[prepared.ranks.rows].tolist(),
        }
    return found


def smoke() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return weights(["mean-teacher"], folder, {})["mean-teacher"]["digest"]
