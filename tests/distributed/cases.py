"""What the processes of the tests do. Every function returns what can be written as JSON."""

import dataclasses
import hashlib
import io
import os
import pickle
import runpy
import signal
import socket
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from safetensors.torch import load_file
from test_rows import encoded, stream_of
from torch import Tensor, nn

import meanteacher
from meanteacher.cli import main
from meanteacher.cli.console import graceful_stop
from meanteacher.core import UNLABELLED, Batch, InputError, LostRankError, Problem, StepOutput
from meanteacher.data import Fixed, TrainTest
from meanteacher.distributed import Ranks, check_devices, join
from meanteacher.evaluate import top_error_rates
from meanteacher.experiment import Prepared, Recipe, run
from meanteacher.experiment.run import _broken_images
from meanteacher.methods import MeanTeacher
from meanteacher.models.layers import synchronise_batch_norm
from meanteacher.records import to_json
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher
from meanteacher.train import (
    Declared,
    Evaluation,
    Intervals,
    RunOptions,
    SgdSpec,
    StopWhen,
    TrainState,
    Vitals,
    start,
    train,
)
from meanteacher.train.parallel import agreed_batch
from support import METHODS, N_CLASSES, SHAPE, prepared_of, recipe


def own_loop(script: str) -> dict[str, Any]:
    """The weights of the teacher at the end of a script of docs/own-module.md, and the mean of its students."""
    students: list[list[Tensor]] = []

    def update(real: Any, self: Teacher, student: nn.Module) -> None:
        gathered = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in student.parameters()]
        students.append([p.detach().clone() for p in gathered])
        real(self, student)

    real, names = Teacher.update, {"mt": meanteacher, "torch": torch, "nn": nn}
    with mock.patch.object(Teacher, "update", lambda self, student: update(real, self, student)):
        exec(script, names)
    torch.distributed.destroy_process_group()
    means = [torch.stack(of_one).mean(0) for of_one in zip(*students, strict=True)]
    weights = [value for name, value in names["weights"].items() if "running" not in name and "tracked" not in name]
    assert [w.shape for w in weights] == [m.shape for m in means]
    return {
        "weights": [w.tolist() for w in weights],
        "from the mean": max(float((w - m).abs().max()) for w, m in zip(weights, means, strict=True)),
        "moved": float((students[2][0] - students[0][0]).abs().max()),
        "statistics": [x.tolist() for name, x in names["weights"].items() if "running" in name],
    }


class Plain(nn.Module):
    """Neither batch normalisation nor dropout: what is computed for a row depends on no other row."""

    def __init__(self, outputs: int = 1, extra: tuple[nn.Module, ...] = ()) -> None:
        super().__init__()
        n = SHAPE[1] * SHAPE[2]
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(n, 8), *extra, nn.Tanh())
        self.last = nn.ModuleList(nn.Linear(8, N_CLASSES) for _ in range(outputs))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.features(x.to(self.last[0].weight.dtype))
        first, *second = (layer(features) for layer in self.last)
        return (first, second[0]) if second else first


@dataclasses.dataclass(frozen=True)
class PlainSpec:
    outputs: int = 1
    extra: str = ""

    def build(self, problem: Problem) -> nn.Module:
        extra = {"": (), "batch norm": (nn.BatchNorm1d(8),), "dropout": (nn.Dropout(0.5),)}[self.extra]
        return Plain(self.outputs, extra)


def few_labels(method: str = "mean-teacher", **changes: Any) -> Recipe:
    """One labelled row in a batch of eleven: neither two nor four processes divide it, and most have no label."""
    return recipe(method, **changes).varied(batch=Fixed(size=11, labelled=1, unlabelled_pool="all"), steps=12)


SGD = SgdSpec(learning_rate=Constant(0.05))
"""Unlike Adam, whose steps have the same length for any multiple of the gradient."""
VARIANTS: dict[str, Recipe] = {
    **{name: recipe(name, model=PlainSpec(), optim=SGD, steps=50, evaluate_every=25) for name in METHODS},
    "varying labels": recipe(batch="mixed", model=PlainSpec(), optim=SGD, steps=12),
    "two outputs": recipe(model=PlainSpec(outputs=2), optim=SGD, steps=12).varied(
        method=dataclasses.replace(METHODS["mean-teacher"], logit_distance=0.1, consistency_on="unlabelled"),
    ),
    "few labels": few_labels(model=PlainSpec(), optim=SGD),
    "batch norm": few_labels(model=PlainSpec(extra="batch norm"), optim=SGD),
    "dropout": few_labels("vat", model=PlainSpec(extra="dropout"), optim=SGD),
    "dropout for a while": few_labels("pseudo-ensemble", model=PlainSpec(extra="dropout"), optim=SGD),
}

EQUAL = [*METHODS, "varying labels", "two outputs", "few labels"]
"""Where no row's output depends on other rows, or on noise that each process draws for itself."""


def trained(name: str, steps: int | None, changes: dict[str, Any]) -> tuple[TrainState, Prepared, Vitals]:
    """A run of the whole training loop, in float64: sums in another order then differ by 1e-15, not by 1e-7."""
    torch.set_default_dtype(torch.float64)
    whole = VARIANTS[name]
    whole = whole if steps is None else whole.varied(steps=steps)
    ranks, options = join(), RunOptions(**changes)
    prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    state, vitals = prepared.start(), Vitals(prepared.declared)
    if options.sync_batch_norm:
        synchronise_batch_norm(state.student, ranks)
        synchronise_batch_norm(state.memory, ranks)
    train(
        state,
        whole.training.method,
        whole.training.optim,
        prepared.stream,
        steps=whole.training.steps,
        seed=3,
        vitals=vitals,
        evaluate=prepared.evaluate,
        every=Intervals(evaluate=whole.training.evaluate_every),
        ranks=ranks,
        options=options,
    )
    return state, prepared, vitals


def tensors(state: TrainState) -> dict[str, Tensor]:
    modules = {"student": state.student, "memory": state.memory}
    return {f"{part}.{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}


def digest(values: dict[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in values.values())).hexdigest()


def weights(
    folder: str, names: list[str], steps: int | None = None, changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train each and save the weights to a file of the folder."""
    found = {}
    for name in names:
        state, prepared, vitals = trained(name, steps, changes or {})
        ranks = prepared.ranks
        if ranks.is_first:
            torch.save(tensors(state), Path(folder) / f"{name}.pt")
        found[name] = {
            "digest": digest(tensors(state)),
            "curve": [[point.student, point.teacher, point.student_cost] for point in state.curve],
            "alarms": [alarm.kind for alarm in vitals.alarms],
            "gradients": vitals.readings[-1].gradients,
            "labelled": int((prepared.stream[0].labels[ranks.rows] >= 0).sum()),
        }
    return found


def several(folder: str, calls: list[tuple[str, list[Any]]]) -> dict[str, Any]:
    """Several of the functions here, one after the other, each with a folder of its own."""
    found = {}
    for name, arguments in calls:
        own = Path(folder) / name
        own.mkdir(exist_ok=True)
        torch.set_default_dtype(torch.float32)
        found[name] = globals()[name](str(own), *arguments)
    return found


def whole_run(folder: str, name: str, stop_rank: int | None = None, resume: bool = False) -> dict[str, Any]:
    """A run into a folder, with batch normalisation and dropout; one rank may get SIGTERM after its sixth step."""
    ranks, n_asked = join(), 0
    whole = recipe(steps=14, evaluate_every=4, **({"model": PlainSpec()} if name == "plain" else {}))
    if name == "plain":
        torch.set_default_dtype(torch.float64)
    with graceful_stop(Console(quiet=True)) as stopped:

        def should_stop() -> bool:
            nonlocal n_asked
            n_asked += 1
            if ranks.rank == stop_rank and n_asked == 6:
                signal.raise_signal(signal.SIGTERM)
            return stopped()

        outcome = run(
            whole,
            seed=3,
            out=Path(folder),
            data=whole.data.source.load(Path()),
            resume=resume,
            options=RunOptions(device="cpu"),
            callbacks=[StopWhen(should_stop)],
        )
    return {"step": outcome.step, "record": outcome.record and to_json(outcome.record)}


def stuck(folder: str) -> str:
    """Rank 1 does not come to its fourth step before rank 0 has given up."""
    ranks, n_asked, given_up = join(), 0, Path(folder) / "given up"

    def should_stop() -> bool:
        nonlocal n_asked
        n_asked += 1
        while ranks.rank == 1 and n_asked == 3 and not given_up.exists():
            time.sleep(0.1)
        return False

    whole = recipe(steps=14)
    try:
        run(
            whole,
            seed=3,
            out=Path(folder) / "run",
            data=whole.data.source.load(Path()),
            callbacks=[StopWhen(should_stop)],
        )
    except LostRankError as error:
        given_up.touch()
        return str(error)
    return "no error"


def synchronised(folder: str) -> dict[str, Any]:
    return weights(folder, ["batch norm"], None, {"sync_batch_norm": True})


def statistics(folder: str) -> list[list[float]]:
    """The running mean of a batch norm after three steps, and what it would be with this rank's rows alone."""
    torch.set_default_dtype(torch.float64)
    whole, ranks, own = few_labels(model=PlainSpec(extra="batch norm"), optim=SGD).varied(steps=3), join(), []
    prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    state = prepared.start()
    layer = state.student.features[2]
    layer.register_forward_pre_hook(
        lambda layer, inputs: own.append(inputs[0].detach().mean(0)) if layer.training else None
    )
    prepared.train(state)
    alone = torch.zeros(8)
    for mean in own:
        alone.lerp_(mean, layer.momentum)
    return [layer.running_mean.tolist(), alone.tolist()]


def other_group(folder: str) -> dict[str, Any]:
    """A run in a program that has a process group of its own, which like NCCL's has nothing for tensors on a CPU."""
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    fake: Any = torch._C._distributed_c10d
    made = fake.FakeProcessGroup._create_internal
    dist.Backend.register_backend("for gpus", lambda store, rank, size, timeout: made(rank, size), devices=["cuda"])
    store = dist.FileStore(os.environ.pop("MEANTEACHER_STORE"), size)
    dist.init_process_group("for gpus", store=store, rank=rank, world_size=size)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.zeros(1))
    return weights(folder, ["few labels"])


class FromData(Plain):
    """First weights that no two processes compute alike."""

    def initialise_from(self, images: Tensor) -> None:
        with torch.no_grad():
            self.last[0].bias.fill_(100 * join().rank + len(images)).add_(images.mean())


def first_weights(folder: str) -> list[str]:
    """Digests of student and memory at the start of a run whose first weights depend on data."""
    whole, ranks = recipe(), join()
    prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    with mock.patch.object(type(whole.training.model), "build", return_value=FromData()):
        state = prepared.start()
    assert float(state.student.last[0].bias[0]) < 50
    return [digest(dict(module.state_dict())) for module in (state.student, state.memory)]


def devices(folder: str) -> list[str]:
    """What is said about GPUs if every process sees one, which is its own, and if all see the same one."""
    ranks, said = join(), []
    for uuid in (f"GPU-{ranks.rank}", "GPU-0"):
        with mock.patch.object(
            torch.cuda, "get_device_properties", lambda device, uuid=uuid: SimpleNamespace(uuid=uuid)
        ):
            try:
                said.append(str(check_devices(torch.device("cuda", 0), ranks)))
            except InputError as error:
                said.append(str(error))
    return said


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnRowsOnly(MeanTeacher):
    """A method that somebody wrote for one process: it compares its rows with those of all."""

    def forward(self, student: nn.Module, memory: Any, batch: Batch, step: int) -> StepOutput:
        logits, target = student(batch.views["student"]), memory(batch.views["teacher"])
        share = torch.rand(len(batch.views["student"]), 1)
        return self.step_output(logits, logits, target * share, batch, step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnDraws(MeanTeacher):
    """A method whose draws differ between the ranks."""

    def forward(self, student: nn.Module, memory: Any, batch: Batch, step: int) -> StepOutput:
        logits, target = student(batch.views["student"]), memory(batch.views["teacher"])
        return self.step_output(logits, logits, target * torch.rand(len(target), 1), batch, step)


def own_methods(folder: str) -> dict[str, Any]:
    """The weights that the example's method trains, and what is said about two methods that are for one process."""
    torch.set_default_dtype(torch.float64)
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_method.py"))["Interpolation"]
    ranks, said = join(), []
    given = {"decay": Constant(0.9), "buffers": "own", "weight": Constant(2.0)}
    for kind in (example, OwnRowsOnly, OwnDraws):
        whole = few_labels(model=PlainSpec(), optim=SGD).varied(method=kind(**given))
        prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
        state = prepared.start()
        try:
            prepared.train(state)
        except InputError as error:
            said.append(str(error))
        else:
            torch.save(tensors(state), Path(folder) / f"{kind.__name__}-{ranks.rank}.pt")
        ranks.meet("ending a method")
    return {"said": said}


def guarded(folder: str) -> dict[str, Any]:
    """A whole run in which nothing may be unpickled, after somebody wrote a pickle to every port; and the addresses."""
    join()
    out = Path(folder)
    inodes = {str(path.stat().st_ino) for path in Path("/proc/self/fd").iterdir() if path.exists()}
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]
    ]
    heard = [line[1] for line in lines if line[3] == "0A" and line[9] in inodes]  # it listens, and is ours
    evil = pickle.dumps(Evil(str(out / "executed")))
    strangers = []
    for address in heard:
        stranger = socket.create_connection(("127.0.0.1", int(address.partition(":")[2], 16)))
        stranger.sendall(len(evil).to_bytes(8, "little") + evil)
        strangers.append(stranger)
    refused = mock.Mock(side_effect=AssertionError("a pickle was read"))
    with mock.patch("pickle.loads", refused), mock.patch.object(dist.distributed_c10d, "_unpickler", refused):
        found = whole_run(str(out / "run"), "plain")
    return {"heard": heard, "step": found["step"], "executed": (out / "executed").exists()}


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def in_parts(folder: str) -> dict[str, Any]:
    """How far the weights of parts of five rows are from those of whole batches; and how many batches were counted."""
    apart = {}
    for name in EQUAL:
        whole, parts = (tensors(trained(name, 6, changes)[0]) for changes in ({}, {"micro_batch": 5}))
        apart[name] = max(float((whole[key].double() - parts[key].double()).abs().max()) for key in whole)
    # Its parent has no dropout, also when it is computed again: torch compares what both passes keep.
    trained("dropout for a while", 2, {"micro_batch": 5})
    state, _, _ = trained("batch norm", None, {"micro_batch": 6})
    counted = {name: int(t) for name, t in tensors(state).items() if name.endswith("num_batches_tracked")}
    return {"apart": apart, "counted": counted}


def stopped(folder: str) -> dict[str, Any]:
    """A run that rank 1's signal stops, the same one resumed, and an undisturbed one."""
    runs = Path(folder)
    return {
        "stopped": whole_run(str(runs / "resumed"), "normalised", 1),
        "resumed": whole_run(str(runs / "resumed"), "normalised", None, True),
        "straight": whole_run(str(runs / "straight"), "normalised"),
    }


def command_line(folder: str, words: list[str]) -> str:
    """What `meanteacher` prints with these words, in a process that somebody else has started."""
    os.environ["MARKER"] = folder  # which is there, so that nobody is killed
    sys.argv, printed = ["meanteacher", *words], io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return printed.getvalue()


def plain(folder: str) -> dict[str, Any]:
    """A run that rank 0's signal stops, for another number of processes to resume it."""
    return whole_run(str(Path(folder) / "run"), "plain", 0)


def resumed_by_another_number(folder: str) -> dict[str, Any]:
    """The run that `plain` left, and the same one undisturbed."""
    return {name: whole_run(str(Path(folder) / name), "plain", None, name == "run") for name in ("run", "straight")}


def refused(folder: str) -> str:
    whole = recipe().varied(batch=Fixed(size=1, labelled=1, unlabelled_pool="all"))
    try:
        run(whole, seed=3, out=Path(folder) / "run", data=whole.data.source.load(Path()))
    except InputError as error:
        return str(error)
    return "no error"


def broken(folder: str) -> dict[str, Any]:
    """The labels and positions of a batch with images that cannot be read, and an error rate on all images."""
    ranks, batch = join(), Fixed(size=7, labelled=2, unlabelled_pool="unlabelled")
    positions = stream_of(encoded(), batch, ranks)[0].index
    data = encoded(*positions[[0, 3, 4]].tolist())  # with a label and without, of both of two ranks
    stream = stream_of(data, batch, ranks)
    agreed = agreed_batch(stream[0], ranks)
    # Before the evaluation, in which a rank may also meet the broken images of another one's rows.
    recorded = sorted(_broken_images(TrainTest(data, data), ranks)["train"].first)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, N_CLASSES))
    own, add_up = torch.arange(30)[ranks.rows], lambda counts: ranks.summed(counts, "adding up errors")
    given: Any = {"normalise": stream.normalise, "tops": (1,), "add_up": add_up}
    error = top_error_rates({"": network}, data, own, **given)[0][""]
    return {
        "labels": agreed.labels.tolist(),
        "index": agreed.index.tolist(),
        "error": error,
        "replaced": int((agreed.index != positions).sum()),
        "recorded": recorded,
    }


class Pixels:
    """Six images per batch with a class for each of their pixels, two with labels and one of these only in part.

    A rank knows the labels and positions of its own rows alone.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __getitem__(self, step: int) -> Batch:
        draws = torch.Generator().manual_seed(step)
        labels = torch.randint(N_CLASSES, (6, 4, 5), generator=draws)
        images = labels[:, None] + torch.randn(6, 1, 4, 5, generator=draws)
        labels[2:] = UNLABELLED
        labels[1, :2] = UNLABELLED
        with_labels, without = (torch.randperm(6, generator=draws) for _ in range(2))
        index = torch.cat([with_labels[:2], 6 + without[:4]])
        views = {role: images + 0.1 * torch.randn(images.shape, generator=draws) for role in ("student", "teacher")}
        own = self.ranks.rows
        own_labels, own_index = torch.ones_like(labels), torch.zeros_like(index)
        own_labels[own], own_index[own] = labels[own], index[own]
        return Batch({role: view[own] for role, view in views.items()}, own_labels, own_index)


def dense(folder: str) -> dict[str, Any]:
    """The whole training loop with a class for every pixel, by methods that keep a teacher and targets by position."""
    torch.set_default_dtype(torch.float64)
    ranks, found = join(), {}
    problem = Problem(n_classes=N_CLASSES, n_examples=12, input_shape=(1, 4, 5), label_shape=(4, 5))
    for name in ("mean-teacher", "temporal-ensembling"):
        torch.manual_seed(3)
        student = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, N_CLASSES, 1))
        stream = Pixels(ranks)
        state = start(student, METHODS[name], SGD, stream, normalise=nn.Identity(), problem=problem, seed=3)
        vitals = Vitals(Declared(n_labelled=6, labelled_share=1 / 3, exact=True, steps=12))
        train(
            state,
            METHODS[name],
            SGD,
            stream,
            steps=12,
            seed=3,
            vitals=vitals,
            evaluate=lambda state: Evaluation(state.step, "test", 0.0, 0.0),
            every=Intervals(evaluate=12, log=1),
            ranks=ranks,
        )
        if ranks.is_first:
            torch.save(tensors(state), Path(folder) / f"{name}.pt")
        found[name] = {
            "digest": digest(tensors(state)),
            "alarms": [alarm.kind for alarm in vitals.alarms],
            "gradients": vitals.readings[-1].gradients,
            "labelled": vitals.state()["labelled"],
        }
    return found


def last_checkpoint(out: Path) -> list[Path]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return sorted(folder.glob("*.safetensors"))


def files_of(out: Path) -> dict[str, str]:
    """Digests of the final files of student and memory."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last_checkpoint(out)}


def tensors_of(out: Path) -> dict[str, Tensor]:
    return {f"{path.stem}.{name}": t for path in last_checkpoint(out) for name, t in load_file(path).items()}
