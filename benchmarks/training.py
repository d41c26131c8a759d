"""Training on random images: the time of a step and of its parts, and the memory of a run."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.plain import make_step
from benchmarks.timing import Compare, in_subprocess, ratio
from meanteacher.core import UNLABELLED, Method, Problem
from meanteacher.data import Dataset, Fixed, ImageStream, make_split
from meanteacher.distributed import ALONE, Ranks, join
from meanteacher.evaluate import predict_logits
from meanteacher.methods import MeanTeacher
from meanteacher.methods.temporal_ensembling import EnsembleTable
from meanteacher.models import ModelSpec
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher
from meanteacher.train import AdamSpec, Declared, Evaluation, Intervals, TrainState, Vitals, start, train
from meanteacher.train.checkpoint import trained_parameters
from meanteacher.views import Chain, Noise, PerImage, Translate

BATCH, N_LABELLED_ROWS = 100, 25
N_IMAGES, N_LABELLED = 10_000, 500
VIEW = Chain((Translate(2), Noise(0.15)))
METHOD: Method = MeanTeacher(decay=Constant(0.99), buffers="own", weight=Constant(10.0))
OPTIM = AdamSpec(learning_rate=Constant(1e-3), beta1=Constant(0.9), beta2=Constant(0.99))
_FIRST_STEP = 1001
"""The vitals read the gradients of the first thousand steps often, and of every thousandth step afterwards."""
_ROOT = Path(__file__).parents[1]
_STATUS = Path("/proc/self/status")
_CHILD = (
    "from benchmarks.training import peak_of_this_process, training\n"
    "from meanteacher.models import *\n"
    "model = {model}\n"
    "if model: training(model, n_images=1000).steps(2)\n"
    "print(peak_of_this_process())\n"
)


def random_images(n: int) -> Dataset:
    """Random bytes as images of 32x32 in ten classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Dataset(images, torch.arange(n) % 10, tuple("0123456789"))


def stream(data: Dataset, rows: slice = slice(None)) -> ImageStream:
    """Batches with two views of each image, or of these rows; up to 500 images are labelled."""
    split = make_split(data.labels, n_classes=data.n_classes, n_labelled=min(N_LABELLED, len(data)), seed=0)
    sampler = Fixed(size=BATCH, labelled=N_LABELLED_ROWS, unlabelled_pool="all").sampler(split, 0)
    views = {"student": VIEW, "teacher": VIEW}
    return ImageStream(data, sampler, views=views, normalise=PerImage().fit(data.images), seed=0, rows=rows)


@dataclass(slots=True, eq=False)
class Training:
    """The parts of a run after its first thousand steps."""

    state: TrainState
    stream: ImageStream
    vitals: Vitals
    ranks: Ranks = ALONE

    @property
    def teacher(self) -> Teacher:
        assert isinstance(self.state.memory, Teacher)
        return self.state.memory

    def steps(self, n: int) -> None:
        """Train n more steps, through the loop that every run uses."""
        train(
            self.state,
            METHOD,
            OPTIM,
            self.stream,
            steps=self.state.step + n,
            seed=0,
            vitals=self.vitals,
            evaluate=lambda state: Evaluation(state.step, "test", 0.0, 0.0),
            every=Intervals(evaluate=1_000_000_000),
            ranks=self.ranks,
        )


def training(model: ModelSpec, *, n_images: int = N_IMAGES, ranks: Ranks = ALONE) -> Training:
    batches = stream(random_images(n_images), ranks.rows)
    normalise = batches.normalise
    assert isinstance(normalise, nn.Module)
    problem = Problem(n_classes=10, n_examples=n_images, input_shape=(3, 32, 32))
    torch.manual_seed(0)
    state = start(model.build(problem), METHOD, OPTIM, batches, normalise=normalise, problem=problem, seed=0)
    state.step = _FIRST_STEP
    declared = Declared(n_labelled=N_LABELLED, labelled_share=N_LABELLED_ROWS / BATCH, exact=True, steps=1_000_000)
    return Training(state, batches, Vitals(declared), ranks)


def against_limit(compare: Compare, model: ModelSpec, *, n_steps: int) -> dict[str, Any]:
    """The training step of a run, beside its student forward and backward and teacher forward pass alone."""
    run = training(model)
    timings = compare({"step": lambda: run.steps(n_steps), "limit": _limit(run, n_steps)})
    return {
        "step_ms": 1000 * timings["step"].median / n_steps,
        "limit_ms": 1000 * timings["limit"].median / n_steps,
        "step_by_limit": ratio(timings, "step", "limit"),
        "images_per_second": BATCH * n_steps / timings["step"].median,
    }


def _limit(run: Training, n_steps: int) -> Callable[[], None]:
    batch = run.stream[0]
    x, other = batch.views["student"].clone(), batch.views["teacher"].clone()
    labels = torch.arange(BATCH) % 10
    student, teacher = run.state.student, run.teacher.network

    def forward_and_backward() -> None:
        logits: Tensor = student(x)
        with torch.no_grad():
            target: Tensor = teacher(other)
        cost = F.cross_entropy(logits, labels) + F.mse_loss(logits.softmax(1), target.softmax(1))
        student.zero_grad()
        cost.backward()

    return _repeated(forward_and_backward, n_steps)


def against_plain(compare: Compare, model: ModelSpec, *, n_steps: int) -> dict[str, Any]:
    """The training step of a run, beside the usual implementation (plain.py) with and without worker processes.

    Plain code has processes of its own: in this one it would profit from our configuration of malloc.
    """
    run = training(model)
    with ExitStack() as processes:
        contenders: dict[str, Callable[[], object]] = {"step": lambda: run.steps(n_steps)}
        for workers in (0, 2):
            contenders[f"{workers} workers"] = processes.enter_context(in_subprocess(_plain, model, workers, n_steps))
        timings = compare(contenders)
    plain_ms = {name: 1000 * t.median / n_steps for name, t in timings.items() if name != "step"}
    best = min(plain_ms, key=lambda name: plain_ms[name])
    return {
        "step_ms": 1000 * timings["step"].median / n_steps,
        "plain_ms": plain_ms,
        "times_as_fast": ratio(timings, best, "step"),
    }


def _plain(model: ModelSpec, workers: int, n_steps: int) -> Callable[[], None]:
    data = random_images(N_IMAGES)
    labels = data.labels.where(torch.arange(N_IMAGES) < N_LABELLED, UNLABELLED).tolist()
    student = model.build(Problem(n_classes=10, n_examples=N_IMAGES, input_shape=(3, 32, 32)))
    pixels = data.images.permute(0, 2, 3, 1).contiguous().numpy()
    step = make_step(student, pixels, labels, size=BATCH, n_labelled=N_LABELLED_ROWS, workers=workers)
    return _repeated(step, n_steps)


def _repeated(call: Callable[[], object], n: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(n):
            call()

    return repeated


def two_ranks(compare: Compare, model: ModelSpec, *, n_steps: int) -> dict[str, Any]:
    """Two connected processes of one thread each against one process with two threads."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as processes, ThreadPoolExecutor(2) as pool:
        one = processes.enter_context(in_subprocess(_steps, model, n_steps, threads=2))
        two = [
            processes.enter_context(in_subprocess(_steps_of_rank, model, n_steps, r, port, threads=1)) for r in (0, 1)
        ]

        def both() -> None:
            for call in [pool.submit(call) for call in two]:
                call.result()

        timings = compare({"one": one, "two": both})
    return {
        "one_process_images_per_second": BATCH * n_steps / timings["one"].median,
        "two_processes_images_per_second": BATCH * n_steps / timings["two"].median,
        "two_by_one": ratio(timings, "one", "two"),
    }


def _steps(model: ModelSpec, n_steps: int) -> Callable[[], None]:
    run = training(model)
    return lambda: run.steps(n_steps)


def _steps_of_rank(model: ModelSpec, n_steps: int, rank: int, port: int) -> Callable[[], None]:
    """They connect at the first call, which is not counted: until then they are started one after the other."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    made: list[Training] = []

    def call() -> None:
        if not made:
            made.append(training(model, ranks=join()))
        made[0].steps(n_steps)

    return call


def growth(compare: Compare, model: ModelSpec, *, n_steps: int) -> dict[str, Any]:
    """The time of a step with 1,000,000 images divided by that with 10,000."""
    small, large = training(model, n_images=10_000), training(model, n_images=1_000_000)
    timings = compare({"small": lambda: small.steps(n_steps), "large": lambda: large.steps(n_steps)})
    return {"large_by_small": ratio(timings, "large", "small")}


def vitals_share(compare: Compare, model: ModelSpec, *, n_steps: int) -> dict[str, Any]:
    """What the vitals add to a step, in a run long enough for the frequent first readings not to count."""
    run = training(model)
    batch = run.stream[0]
    output = METHOD.forward(run.state.student, run.state.memory, batch, 0)
    trained = trained_parameters(run.state.student, run.state.memory)
    predictor = run.state.predictor(METHOD)

    def ten_steps() -> None:
        for _ in range(10):
            run.vitals.note_labels(batch)
        run.vitals.read(5, output.costs, run.state.student, predictor, output.logits)

    timings = compare(
        {
            "step": lambda: run.steps(n_steps),
            "ten steps": ten_steps,
            "gradients": lambda: run.vitals.read_gradients(5, output.costs, run.state.student, trained, batch.labels),
        }
    )
    per_step = timings["ten steps"].median / 10 + timings["gradients"].median / 1000
    return {"share": per_step * n_steps / timings["step"].median}


def average(compare: Compare, model: ModelSpec) -> dict[str, Any]:
    """One fused update of the teacher against a loop over its parameters."""
    run = training(model)
    teacher, student = run.teacher, run.state.student

    @torch.no_grad()
    def loop() -> None:
        for ours, theirs in zip(teacher.network.parameters(), student.parameters(), strict=True):
            ours.mul_(0.99).add_(theirs, alpha=0.01)

    timings = compare({"fused": lambda: teacher.update(student, decay=0.99), "loop": loop})
    return {"fused_ms": 1000 * timings["fused"].median, "times_as_fast": ratio(timings, "loop", "fused")}


def predict(compare: Compare, model: ModelSpec, *, n_images: int = 1000) -> dict[str, Any]:
    """Images per second of the evaluated network."""
    run = training(model)
    images, normalise, network = run.stream.dataset.images[:n_images], run.stream.normalise, run.teacher.network
    timings = compare({"predict": lambda: predict_logits(network, images, normalise=normalise)})
    return {"images_per_second": n_images / timings["predict"].median}


def peak_memory(models: Mapping[str, ModelSpec]) -> dict[str, Any] | None:
    """Megabytes at the peak of two steps, each network in a process of its own; `import` is without a network.

    None on Windows, which has no such measurement.
    """
    if not _STATUS.exists() and find_spec("resource") is None:
        return None
    return {"import": _megabytes("None")} | {name: _megabytes(repr(model)) for name, model in models.items()}


def _megabytes(model: str) -> float:
    command = [sys.executable, "-c", _CHILD.format(model=model)]
    return float(subprocess.run(command, cwd=_ROOT, capture_output=True, check=True, text=True).stdout)


def peak_of_this_process() -> float:
    """Megabytes. Linux does not use getrusage: there a child starts with the peak of its parent."""
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].removesuffix("kB")) / 1024
    # On macOS getrusage counts bytes, and a new program starts at zero.
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table_memory(*, n_images: int, n_classes: int) -> dict[str, Any]:
    """Temporal Ensembling's table of targets: the only state besides the images that grows with their number."""
    problem = Problem(n_classes=n_classes, n_examples=n_images, input_shape=(3, 32, 32))
    memory = EnsembleTable(problem)
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in memory.state_dict().values())
    return {"images": n_images, "megabytes": n_bytes / 1e6, "bytes_per_image": n_bytes / n_images}
