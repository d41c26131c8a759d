"""The whole training step against its limit, against plain code, and against a data set a hundred times as large."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.apart import apart
from benchmarks.plain import make_step
from benchmarks.setup import BATCH, METHOD, N_IMAGES, N_LABELLED, N_SHOWN, Training, made_up, training
from benchmarks.timing import interleaved, ratio
from meanteacher.core import UNLABELLED, Problem
from meanteacher.models import ModelSpec
from meanteacher.teacher import Teacher
from meanteacher.train.state import trained_parameters

Announce = Callable[[str], None]


def against_the_limit(model: ModelSpec, *, n_steps: int, rounds: int, announce: Announce) -> dict[str, Any]:
    """The step every run makes, beside the same student forward and backward and teacher forward with nothing else."""
    run = training(model)
    timings = interleaved(
        {"step": lambda: run.steps(n_steps), "limit": _limit(run, n_steps)}, rounds=rounds, announce=announce
    )
    return {
        "step_ms": 1000 * timings["step"].median / n_steps,
        "limit_ms": 1000 * timings["limit"].median / n_steps,
        "step_by_limit": ratio(timings, "step", "limit"),
        "images_per_second": BATCH * n_steps / timings["step"].median,
    }


def against_plain(model: ModelSpec, *, n_steps: int, rounds: int, announce: Announce) -> dict[str, Any]:
    """The same step as one would usually write it (plain.py).

    Plain code has processes of its own: in this one it would have its memory kept as ours is.
    """
    run = training(model)
    with ExitStack() as processes:
        contenders: dict[str, Callable[[], object]] = {"step": lambda: run.steps(n_steps)}
        for workers in (0, 2):
            announce(f"starting plain code with {workers} workers")
            contenders[f"{workers} workers"] = processes.enter_context(apart(plain, model, workers, n_steps))
        timings = interleaved(contenders, rounds=rounds, announce=announce)
    plain_ms = {name: 1000 * t.median / n_steps for name, t in timings.items() if name != "step"}
    best = min(plain_ms, key=lambda name: plain_ms[name])
    return {
        "step_ms": 1000 * timings["step"].median / n_steps,
        "plain_ms": plain_ms,
        "times_as_fast": ratio(timings, best, "step"),
    }


def plain(model: ModelSpec, workers: int, n_steps: int) -> Callable[[], None]:
    """n steps of plain code, for a process that has nothing else to do."""
    data = made_up(N_IMAGES)
    labels = data.labels.where(torch.arange(N_IMAGES) < N_SHOWN, UNLABELLED).tolist()
    student = model.build(Problem(n_classes=10, n_examples=N_IMAGES, input_shape=(3, 32, 32)))
    pixels = data.images.permute(0, 2, 3, 1).contiguous().numpy()
    return _repeated(make_step(student, pixels, labels, size=BATCH, n_labelled=N_LABELLED, workers=workers), n_steps)


def growth(model: ModelSpec, *, n_steps: int, rounds: int, announce: Announce) -> dict[str, Any]:
    """The cost of a step with 10,000 and with 1,000,000 images."""
    small, large = training(model, n_images=10_000), training(model, n_images=1_000_000)
    timings = interleaved(
        {"small": lambda: small.steps(n_steps), "large": lambda: large.steps(n_steps)}, rounds=rounds, announce=announce
    )
    return {"large_by_small": ratio(timings, "large", "small")}


def vitals_share(model: ModelSpec, *, n_steps: int, rounds: int, announce: Announce) -> dict[str, Any]:
    """What the vitals add to a step, of a run long enough for their first readings not to count."""
    run = training(model)
    batch = run.stream[0]
    output = METHOD.forward(run.state.student, run.state.memory, batch, 0)
    trained = trained_parameters(run.state.student, run.state.memory)
    predictor = run.state.predictor(METHOD)

    def checked() -> None:
        for _ in range(10):
            run.vitals.note_labels(batch)
        run.vitals.read(5, batch, output, run.state.student, predictor)

    timings = interleaved(
        {
            "step": lambda: run.steps(n_steps),
            "ten steps": checked,
            "gradients": lambda: run.vitals.read_gradients(5, batch, output, trained),
        },
        rounds=rounds,
        announce=announce,
    )
    per_step = timings["ten steps"].median / 10 + timings["gradients"].median / 1000
    return {"share": per_step * n_steps / timings["step"].median}


def _limit(run: Training, n_steps: int) -> Callable[[], None]:
    batch = run.stream[0]
    x, other = batch.views["student"].clone(), batch.views["teacher"].clone()
    labels = torch.arange(BATCH) % 10
    student, teacher = run.state.student, run.state.memory
    assert isinstance(teacher, Teacher)

    def forward_and_backward() -> None:
        logits: Tensor = student(x)
        with torch.no_grad():
            target: Tensor = teacher.network(other)
        cost = F.cross_entropy(logits, labels) + F.mse_loss(logits.softmax(1), target.softmax(1))
        student.zero_grad()
        cost.backward()

    return _repeated(forward_and_backward, n_steps)


def _repeated(call: Callable[[], object], n: int) -> Callable[[], None]:
    def many() -> None:
        for _ in range(n):
            call()

    return many
