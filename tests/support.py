"""What many tests need: data made up in a moment, small networks, one instance of every method."""

import builtins
import dataclasses
import errno
import hashlib
import io
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import meanteacher
from meanteacher.core import Augment, Batch, Method, Problem
from meanteacher.data import Dataset, EncodedDataset, Fixed, ImageStream, Mixed, TrainTest, make_split
from meanteacher.data.download import Progress
from meanteacher.evaluate import error_rates
from meanteacher.experiment import DataSpec, Prepared, Recipe, TrainingSpec
from meanteacher.methods import (
    FixMatch,
    FreeMatch,
    GammaModel,
    ImprovedGan,
    MeanTeacher,
    MeanTeacherVat,
    PiModel,
    PseudoEnsemble,
    PseudoLabel,
    Supervised,
    TemporalEnsembling,
    Vat,
    VatEntMin,
)
from meanteacher.schedules import Constant
from meanteacher.testing import PROBLEM, SmallNet
from meanteacher.train import AdamSpec
from meanteacher.train.checkpoint import trained_parameters
from meanteacher.views import Noise, PerChannel

N_CLASSES, SHAPE = PROBLEM.n_classes, PROBLEM.input_shape
DECAY = 0.9
PATIENCE = 600
"""Seconds to wait for another process or a server: whoever waits as long waits for something that hangs."""


def child_environment(**more: str) -> dict[str, str]:
    """For a Python process that imports the tests and the very package under test, installed or not."""
    folders = (Path(meanteacher.__file__).parents[1], Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **more}


@contextmanager
def held_by_another_process(lock: Path) -> Iterator[None]:
    """A second process has this lock for a `with` block, and is killed at its end: it cannot tidy up."""
    script = "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(flush=True); input()"
    command = [sys.executable, "-c", script, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == os.linesep.encode(), "the other process did not get the lock"
            yield
        finally:
            child.kill()


@contextmanager
def at_most(n_bytes: int) -> Iterator[None]:
    """Fails where Python and numpy allocate more memory at a time within a `with` block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= n_bytes, f"{peak:,} bytes were allocated"


def forbid(patch: pytest.MonkeyPatch, name: str) -> None:
    """Nobody may open files of this name. The permissions of a file would not keep root from it."""

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, *rest: Any, **more: Any) -> Any:
            if not isinstance(file, int) and Path(os.fsdecode(file)).resolve().name == name:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
            return real(file, *rest, **more)

        return opened

    for module in (os, io, builtins):
        patch.setattr(module, "open", refusing(module.open))


@dataclasses.dataclass(frozen=True)
class SmallGenerator:
    """From noise to made-up images."""

    n_noise: int = 4

    def build(self, problem: Problem) -> nn.Module:
        return nn.Sequential(nn.Linear(self.n_noise, 36), nn.Unflatten(1, SHAPE))


_BASE: dict[str, Any] = {"decay": Constant(DECAY), "buffers": "average"}
_WEIGHTED: dict[str, Any] = {**_BASE, "weight": Constant(2.0)}
METHODS: dict[str, Method] = {
    "supervised": Supervised(**_BASE),
    "pseudo-label": PseudoLabel(**_WEIGHTED),
    "pseudo-ensemble": PseudoEnsemble(**_WEIGHTED),
    "gamma-model": GammaModel(**_WEIGHTED),
    "pi-model": PiModel(**_WEIGHTED),
    "temporal-ensembling": TemporalEnsembling(**_WEIGHTED, epoch_steps=2),
    "improved-gan": ImprovedGan(**_WEIGHTED, generator=SmallGenerator()),
    "vat": Vat(**_WEIGHTED, epsilon=1.0),
    "vat-entmin": VatEntMin(**_WEIGHTED, epsilon=1.0),
    "mean-teacher": MeanTeacher(**{**_WEIGHTED, "buffers": "own"}),
    "mean-teacher-vat": MeanTeacherVat(**{**_WEIGHTED, "buffers": "own"}, epsilon=1.0),
    "fixmatch": FixMatch(**_WEIGHTED, threshold=0.4),
    "freematch": FreeMatch(**_WEIGHTED, momentum=0.9),
}
VIEWS: dict[str, Augment] = {role: Noise(0.3) for role in ("student", "teacher", "strong")}
BATCHES = {
    "mixed": Mixed(size=12),
    "fixed": Fixed(size=12, labelled=3, unlabelled_pool="all"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeUp:
    """Three classes of noisy stripes: learnable, tiny, and a source like any other."""

    n_train: int = 60
    n_test: int = 30

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        return TrainTest(train=made_up(self.n_train, seed=0), test=made_up(self.n_test, seed=1))


def error_rate(
    network: nn.Module, data: Dataset | EncodedDataset, index: Tensor | None = None, **options: Any
) -> float:
    """The error of one network."""
    return error_rates({"": network}, data, index, **options)[""]


def made_up(n: int, seed: int) -> Dataset:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % N_CLASSES
    images = 60 * torch.rand(n, *SHAPE, generator=draws)
    for label in range(N_CLASSES):
        images[labels == label, :, :, 2 * label : 2 * label + 2] += 120
    return Dataset(images.to(torch.uint8), labels, ("left", "middle", "right"))


@dataclasses.dataclass(frozen=True)
class Small:
    """The spec of `SmallNet`."""

    def build(self, problem: Problem) -> nn.Module:
        return SmallNet()


def recipe(method: str = "mean-teacher", batch: str = "fixed", **changes: object) -> Recipe:
    whole = Recipe(
        name=f"made-up/{method}",
        data=DataSpec(source=MadeUp(), n_labelled=9, validation=0.1),
        training=TrainingSpec(
            model=Small(),
            method=METHODS[method],
            normalise=PerChannel(),
            views=VIEWS,
            batch=BATCHES[batch],
            optim=AdamSpec(learning_rate=Constant(0.01), beta1=Constant(0.9), beta2=Constant(0.99)),
            steps=20,
            evaluate_every=5,
        ),
        seeds=(0,),
    )
    return whole.varied(**changes)


def prepared_of(recipe: Recipe, *, seed: int, data: TrainTest, **more: Any) -> Prepared:
    """A recipe's training on the split that the seed draws."""
    return Prepared(recipe.training, data=data, split=recipe.data.split(data.train, seed), seed=seed, **more)


def stream(batch: str = "fixed", *, n_labelled: int = 9, seed: int = 0) -> ImageStream:
    data = made_up(60, seed=0)
    split = make_split(data.labels, n_classes=N_CLASSES, n_labelled=n_labelled, seed=seed)
    return ImageStream(
        data,
        BATCHES[batch].sampler(split, seed),
        views=VIEWS,
        normalise=PerChannel().fit(data.images),
        seed=seed,
    )


def parameters_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in module.parameters()])


def train_steps(
    method: Method,
    student: nn.Module,
    memory: nn.Module,
    *,
    steps: int,
    batches: Callable[[int], Batch] | None = None,
    each: Callable[[int], None] = lambda step: None,
) -> None:
    """A user's own loop in five lines: the methods must not need ours."""
    batches = batches or stream().__getitem__
    optimizer = torch.optim.SGD(trained_parameters(student, memory), lr=0.1)
    for step in range(steps):
        batch = batches(step)
        output = method.forward(student, memory, batch, step)
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)
        each(step)


class HashPasses:
    """Counts how often sha256 is computed over all pixels of a data set.

    Args:
        n_bytes: of the images, which have to be few enough to be hashed as one piece
    """

    def __init__(self, n_bytes: int) -> None:
        self.n = 0
        passes, real = self, hashlib.sha256

        class Counting:
            def __init__(self, data: bytes = b"", **options: bool) -> None:
                self._digest = real(**options)
                self.update(data)

            def update(self, data: bytes) -> None:
                passes.n += len(data) == n_bytes
                self._digest.update(data)

            def digest(self) -> bytes:
                return self._digest.digest()

            def hexdigest(self) -> str:
                return self._digest.hexdigest()

        self.sha256 = Counting


@contextmanager
def in_double() -> Iterator[None]:
    """Sums in another order then differ by 1e-15, not by 1e-7."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
