"""What must hold of a run and its record, each number computed again from the checkpoint and the data."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from catalogue import temporary_folder
from safetensors.torch import load_file
from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.data import Dataset, Split, TrainTest
from meanteacher.experiment import Recipe, run_training
from meanteacher.experiment.describe import describe, recorded
from meanteacher.methods import Supervised
from meanteacher.records import to_json
from meanteacher.schedules import Constant, LinearWarmUp
from meanteacher.train import AdamSpec, Evaluation, StopWhen, TrainState, checkpoint
from support import N_CLASSES, SmallNet, made_up, recipe


def _run(
    whole: Recipe, folder: Path, data: TrainTest, *, split: Split | None = None, **options: Any
) -> dict[str, Any] | None:
    split = split or whole.data.split(data.train, 0)
    about = recorded(describe(whole))
    record = run_training(whole.training, recorded=about, seed=0, out=folder, data=data, split=split, **options).record
    return record and to_json(record)


def _checkpoint(folder: Path) -> Path:
    checkpoints = folder / "checkpoints"
    return checkpoints / (checkpoints / "last").read_text().strip()


class _Clock:
    """A second passes each time it is looked at, of the wall and of the processor alike."""

    def __init__(self) -> None:
        self.now = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def perf_counter(self) -> float:
        self.now += 1
        return self.now

    process_time = perf_counter


def the_time_of_a_run_counts_what_was_before_an_interruption() -> None:
    whole, steps = recipe(steps=8, evaluate_every=8), iter(range(6))
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "time", _Clock())
        data = whole.data.source.load(folder)
        _run(whole, folder / "run", data, callbacks=[StopWhen(lambda: next(steps, None) is None)])
        before = torch.load(_checkpoint(folder / "run") / "state.pt", weights_only=True)
        record = _run(whole, folder / "run", data, resume=True)
    assert record is not None
    for kind in ("seconds", "cpu_seconds"):
        assert before[kind] > 0, f"{kind}: nothing was counted, so this tells nothing"
        assert record[kind] > before[kind], f"{kind}: the time before the interruption is lost"
    expected = 8 * whole.training.batch.size / record["seconds"]
    assert abs(record["images_per_second"] - expected) < 0.06, "the speed is not that of the images"


def the_curve_of_a_resumed_run_is_whole() -> None:
    whole, steps = recipe(steps=8, evaluate_every=2), iter(range(5))
    with temporary_folder() as folder:
        data = whole.data.source.load(folder)
        _run(whole, folder / "run", data, callbacks=[StopWhen(lambda: next(steps, None) is None)])
        record = _run(whole, folder / "run", data, resume=True)
    assert record is not None
    assert [point["step"] for point in record["curve"]] == [2, 4, 6, 8], "points of the curve are lost"


def the_optimiser_follows_its_schedules() -> None:
    ramp = LinearWarmUp(first=0.001, value=0.01, steps=4)
    adam = AdamSpec(learning_rate=ramp, beta1=Constant(0.9), beta2=Constant(0.99))
    whole = recipe(steps=5, evaluate_every=1, optim=adam)
    with temporary_folder() as folder:
        _run(whole, folder / "run", whole.data.source.load(folder))
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rates = [entry["learning_rate"] for entry in map(json.loads, lines) if entry["event"] == "log"]
    known = [0.001 + 0.009 * min(step, 4) / 4 for step in range(5)]
    assert rates == pytest.approx(known), "the learning rate is another"


def the_best_is_chosen_by_the_teacher_and_never_on_test_images() -> None:
    points = [(1, "validation", 0.1, 0.4), (2, "validation", 0.3, 0.2), (3, "test", 0.0, 0.0)]
    state = TrainState(SmallNet(), SmallNet(), SmallNet(), torch.optim.SGD([torch.zeros(1)]))
    state.curve = [Evaluation(*point) for point in points]
    best = state.best()
    assert best is not None
    assert best.step == 2, "another checkpoint is called the best"
    state.curve = state.curve[2:]
    assert state.best() is None, "the best is chosen by the test error"


class _Says(nn.Module):
    """Says one class of every image."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(9.0 * F.one_hot(torch.tensor(label), N_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits + 0 * x.flatten(1).mean(1, keepdim=True)


@dataclasses.dataclass(frozen=True)
class _SaysZero:
    def build(self, problem: Problem) -> nn.Module:
        return _Says(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ShipsOne(Supervised):
    """A student that says 0, and a teacher that says 1."""

    def predictor(self, student: nn.Module, memory: nn.Module) -> nn.Module:
        return _Says(1)


def the_record_holds_the_errors_of_the_models_it_names() -> None:
    """Four errors that are known beforehand, and the normalisation of the images that taught."""
    train, test = made_up(60, seed=0), made_up(30, seed=1)
    zeros, ones, twos = (np.flatnonzero(train.labels.numpy() == k) for k in range(N_CLASSES))
    held = np.sort(np.concatenate([zeros[:5], ones[:3], twos[:2]]))
    labelled = np.concatenate([zeros[5:8], ones[5:8], twos[5:8]])
    rest = np.setdiff1d(np.arange(60), np.concatenate([held, labelled]))
    split = Split(*(torch.from_numpy(part) for part in (labelled, rest, held)))
    few = torch.from_numpy(np.concatenate([np.flatnonzero(test.labels.numpy() == k)[:n] for k, n in ((0, 2), (1, 6))]))
    data = TrainTest(train, Dataset(test.images[few], test.labels[few], test.class_names))
    still = AdamSpec(learning_rate=Constant(0.0), beta1=Constant(0.9), beta2=Constant(0.99))
    method = _ShipsOne(decay=Constant(0.9), buffers="average")
    whole = recipe(steps=2, evaluate_every=1).varied(model=_SaysZero(), method=method, optim=still)
    with temporary_folder() as folder:
        record = _run(whole, folder / "run", data, split=split)
        normalise = load_file(_checkpoint(folder / "run") / "normalise.safetensors")
    assert record is not None
    known = {
        "student": {"test": 6 / 8, "validation": 5 / 10},
        "teacher": {"test": 2 / 8, "validation": 7 / 10},
    }
    for model, errors in known.items():
        for part, error in errors.items():
            said = record["errors"]["last"][model][part]
            assert abs(said - error) < 1e-9, f"the {part} error of the {model} is {said}, not {error}"
        last = record["curve"][-1]
        assert abs(last[model] - errors["validation"]) < 1e-9, f"the curve shows another error of the {model}"
    taught = np.setdiff1d(np.arange(60), held)
    mean = (train.images.numpy()[taught] / 255).mean()
    assert abs(float(normalise["mean"]) - mean) < 1e-6, "the normalisation is fitted to other images"


DETECTORS = (
    the_time_of_a_run_counts_what_was_before_an_interruption,
    the_curve_of_a_resumed_run_is_whole,
    the_optimiser_follows_its_schedules,
    the_best_is_chosen_by_the_teacher_and_never_on_test_images,
    the_record_holds_the_errors_of_the_models_it_names,
)
