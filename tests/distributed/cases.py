"""What the processes of the tests do."""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from test_rows import Counting, encoded, stream_of
from torch import Tensor, nn

import meanteacher
from meanteacher.cli import main
from meanteacher.cli.console import graceful_stop
from meanteacher.core import UNLABELLED, Batch, InputError, Problem, StepOutput
from meanteacher.data import Fixed, TrainTest
from meanteacher.distributed import Ranks, check_devices, group_of, join
from meanteacher.evaluate import top_error_rates
from meanteacher.experiment import Recipe, run
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
from support import METHODS, N_CLASSES, SHAPE, in_double, prepared_of, recipe

NOBODY = 65534


def several(folder: str, names: list[str]) -> dict[str, Any]:
    """Several of the functions here, one after the other, each with a folder of its own."""
    found = {}
    for name in names:
        own = Path(folder) / name
        own.mkdir(exist_ok=True)
        torch.set_default_dtype(torch.float32)
        found[name] = globals()[name](own)
    return found


def said(compute: Callable[[], object], *errors: type[Exception]) -> str:
    """The message of the error that `compute` raises."""
    with pytest.raises(errors or InputError) as raised:
        compute()
    return str(raised.value)


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


SGD = SgdSpec(learning_rate=Constant(0.05))
"""Unlike Adam, whose steps have the same length for any multiple of the gradient."""


def few_labels(name: str = "mean-teacher", extra: str = "", **changes: Any) -> Recipe:
    """One labelled row in a batch of eleven: neither two nor four processes divide it, and most have no label."""
    given = {"batch": Fixed(size=11, labelled=1, unlabelled_pool="all"), "steps": 12, **changes}
    return recipe(name, model=PlainSpec(extra=extra), optim=SGD).varied(**given)


VARIANTS: dict[str, Recipe] = {
    **{name: recipe(name, model=PlainSpec(), optim=SGD, steps=50, evaluate_every=25) for name in METHODS},
    "varying labels": recipe(batch="mixed", model=PlainSpec(), optim=SGD, steps=12),
    "two outputs": recipe(model=PlainSpec(outputs=2), optim=SGD, steps=12).varied(
        method=dataclasses.replace(METHODS["mean-teacher"], logit_distance=0.1, consistency_on="unlabelled"),
    ),
    "few labels": few_labels(),
    "batch norm": few_labels(extra="batch norm"),
    "dropout": few_labels("vat", "dropout"),
}
EQUAL = [name for name in VARIANTS if name not in {"batch norm", "dropout"}]
"""Where no row's output depends on other rows, or on noise that each process draws for itself."""


def trained(whole: Recipe, ranks: Ranks, **options: Any) -> tuple[TrainState, Vitals]:
    """A run of the whole training loop."""
    prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    state, vitals = prepared.start(), Vitals(prepared.declared)
    if options.get("sync_batch_norm"):
        synchronise_batch_norm(state.student, ranks)
        synchronise_batch_norm(state.memory, ranks)
    prepared.train(state, vitals=vitals, options=RunOptions(**options))
    return state, vitals


def tensors(state: TrainState) -> dict[str, Tensor]:
    modules = {"student": state.student, "memory": state.memory}
    return {f"{part}.{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}


def found_in(state: TrainState, vitals: Vitals) -> dict[str, Any]:
    return {
        "weights": tensors(state),
        "curve": [[point.student, point.teacher, point.student_cost] for point in state.curve],
        "alarms": [alarm.kind for alarm in vitals.alarms],
        "gradients": vitals.readings[-1].gradients,
        "labelled": vitals.state()["labelled"],
    }


def variants(folder: Path, *names: str, **options: Any) -> dict[str, Any]:
    with in_double():
        return {name: found_in(*trained(VARIANTS[name], join(), **options)) for name in names or VARIANTS}


def few(folder: Path) -> Any:
    """And how many rows of this rank have a label, and how many its views were given."""
    whole, seen = VARIANTS["few labels"], list[int]()
    stream = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=join()).stream
    stream.views = dict.fromkeys(stream.views, Counting(seen, by_rows=True))
    labelled = int((stream[0].labels[join().rows] >= 0).sum())
    return {**variants(folder, "few labels")["few labels"], "own": labelled, "seen": seen}


def synchronised(folder: Path) -> Any:
    return variants(folder, "batch norm", sync_batch_norm=True)["batch norm"]


def halves(folder: Path) -> Any:
    """In float16, with a cost so heavy that its gradients overflow in the first steps."""
    method = dataclasses.replace(METHODS["mean-teacher"], weight=Constant(3e3))
    state, vitals = trained(few_labels(method=method), join(), precision="float16")
    return {**found_in(state, vitals), "scaler": state.scaler, "overflows": state.overflows}


def in_parts(folder: Path) -> dict[str, Any]:
    """The weights of parts of five rows and of whole batches; and how many batches were counted."""
    both = {}
    with in_double():
        for name in EQUAL:
            whole = VARIANTS[name].varied(steps=6)
            both[name] = [tensors(trained(whole, join(), **given)[0]) for given in ({}, {"micro_batch": 5})]
        # Its parent has no dropout, also when it is computed again: torch compares what both passes keep.
        trained(few_labels("pseudo-ensemble", "dropout", steps=2), join(), micro_batch=5)
        counts = tensors(trained(VARIANTS["batch norm"], join(), micro_batch=6)[0])
    return {"both": both, "counted": {int(t) for name, t in counts.items() if name.endswith("num_batches_tracked")}}


def at_a_file() -> dict[str, Any]:
    """Where the processes of a program meet that has a process group of its own."""
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    return {"store": dist.FileStore(f"{os.environ['MEANTEACHER_STORE']}-own", size), "rank": rank, "world_size": size}


def other_group(folder: Path) -> Any:
    """A run in a program that has a process group of its own, which like NCCL's has nothing for tensors on a CPU."""
    fake: Any = torch._C._distributed_c10d
    made = fake.FakeProcessGroup._create_internal
    dist.Backend.register_backend("for gpus", lambda store, rank, size, timeout: made(rank, size), devices=["cuda"])
    dist.init_process_group("for gpus", **at_a_file())
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.zeros(1))
    return few(folder)


class FromData(Plain):
    """First weights that no two processes compute alike."""

    def initialise_from(self, images: Tensor) -> None:
        with torch.no_grad():
            self.last[0].bias.fill_(100 * join().rank + len(images)).add_(images.mean())


def first_weights(folder: Path) -> dict[str, Tensor]:
    """Student and memory at the start of a run whose first weights depend on data."""
    whole = recipe()
    prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=join())
    with mock.patch.object(type(whole.training.model), "build", return_value=FromData()):
        state = prepared.start()
    assert float(state.student.last[0].bias[0]) < 50
    return tensors(state)


def broken(folder: Path) -> dict[str, Any]:
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
    given: Any = {"normalise": stream.normalise, "add_up": lambda counts: ranks.summed(counts, "adding up errors")}
    error = top_error_rates({"": network}, data, torch.arange(30)[ranks.rows], tops=(1,), **given)
    replaced = int((agreed.index != positions).sum())
    return {"batch": [agreed.labels.tolist(), agreed.index.tolist(), error, replaced], "recorded": recorded}


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


def dense(folder: Path) -> dict[str, Any]:
    """The whole training loop with a class for every pixel, by methods that keep a teacher and targets by position."""
    torch.set_default_dtype(torch.float64)
    ranks, found = join(), {}
    problem = Problem(n_classes=N_CLASSES, n_examples=12, input_shape=(1, 4, 5), label_shape=(4, 5))
    for name in ("mean-teacher", "temporal-ensembling"):
        torch.manual_seed(3)
        student = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, N_CLASSES, 1))
        given: Any = (METHODS[name], SGD, Pixels(ranks))
        state = start(student, *given, normalise=nn.Identity(), problem=problem, seed=3)
        vitals = Vitals(Declared(n_labelled=6, labelled_share=1 / 3, exact=True, steps=12))
        loop: Any = {"evaluate": lambda state: Evaluation(state.step, "test", 0.0, 0.0), "ranks": ranks}
        train(state, *given, steps=12, seed=3, vitals=vitals, every=Intervals(evaluate=12, log=1), **loop)
        found[name] = found_in(state, vitals)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForOne(MeanTeacher):
    """A method that somebody wrote for one process: it draws for its own rows, or draws what other ranks do not."""

    own_rows: bool

    def forward(self, student: nn.Module, memory: Any, batch: Batch, step: int) -> StepOutput:
        view = batch.views["student"]
        logits, target = student(view), memory(batch.views["teacher"])
        share = torch.rand(len(view if self.own_rows else target), 1)
        return self.step_output(logits, logits, target * share, batch, step)


def own_methods(folder: Path) -> list[Any]:
    """The weights that the example's method trains, and what is said about two methods that are for one process."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_method.py"))["Interpolation"]
    given: Any = {"decay": Constant(0.9), "buffers": "own", "weight": Constant(2.0)}
    with in_double():
        found: list[Any] = [tensors(trained(few_labels(method=example(**given)), join())[0])]
        for own_rows in (True, False) if join().size > 1 else ():
            whole = few_labels(method=ForOne(**given, own_rows=own_rows))
            found.append(said(lambda whole=whole: trained(whole, join())))
            join().agree(0, doing="ending a method")
    return found


def whole_run(folder: Path, stop_rank: int | None = None, resume: bool = False, **changes: Any) -> dict[str, Any]:
    """A run into a folder, with batch normalisation and dropout; one rank may get SIGTERM after its sixth step."""
    ranks, n_asked = join(), 0
    whole = recipe(steps=14, evaluate_every=4, **changes)
    with graceful_stop(Console(quiet=True)) as stopped:

        def should_stop() -> bool:
            nonlocal n_asked
            n_asked += 1
            if ranks.rank == stop_rank and n_asked == 6:
                signal.raise_signal(signal.SIGTERM)
            return stopped()

        given: Any = {"resume": resume, "options": RunOptions(device="cpu"), "callbacks": [StopWhen(should_stop)]}
        outcome = run(whole, seed=3, out=folder, data=whole.data.source.load(Path()), **given)
    return {"step": outcome.step, "record": outcome.record and to_json(outcome.record)}


def stopped(folder: Path) -> list[dict[str, Any]]:
    """A run that rank 1's signal stops, the same one resumed, and an undisturbed one."""
    resumed = folder / "resumed"
    return [whole_run(resumed, 1), whole_run(resumed, resume=True), whole_run(folder / "straight")]


def plain(folder: Path) -> dict[str, Any]:
    """A run that rank 0's signal stops, for another number of processes to resume it."""
    with in_double():
        return whole_run(folder / "run", 0, model=PlainSpec())


def resumed_by_another_number(folder: Path) -> list[dict[str, Any]]:
    """The run that `plain` left, and the same one undisturbed."""
    with in_double():
        return [whole_run(folder / name, resume=name == "run", model=PlainSpec()) for name in ("run", "straight")]


def refused(folder: Path) -> str:
    whole = recipe().varied(batch=Fixed(size=1, labelled=1, unlabelled_pool="all"))
    return said(lambda: run(whole, seed=3, out=folder / "run", data=whole.data.source.load(Path())))


def failing() -> None:
    """Rank 0 waits for rank 1, which fails."""
    assert os.environ["RANK"] == "0", "rank 1 fails"
    join()


def stuck(folder: str) -> str:
    """Rank 1 does not come to the end of its third step before rank 0 has given up, which then waits for a second."""
    ranks, n_asked, given_up = join(), 0, Path(folder) / "given up"

    def should_stop() -> bool:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 3 and ranks.is_first:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group_of(torch.device("cpu")))
        while n_asked == 3 and not ranks.is_first and not given_up.exists():
            time.sleep(0.1)
        return False

    whole = recipe(steps=14)
    given: Any = {"data": whole.data.source.load(Path()), "callbacks": [StopWhen(should_stop)]}
    message = said(lambda: run(whole, seed=3, out=Path(folder) / "run", **given), RuntimeError)
    given_up.touch()
    return message


def command_line(folder: str, words: list[str]) -> str:
    """What `meanteacher` prints with these words, in a process that somebody else has started."""
    os.environ["MARKER"] = folder  # which is there, so that nobody is killed
    sys.argv, printed = ["meanteacher", *words], io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return printed.getvalue()


def last_checkpoint(out: Path) -> list[Path]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return sorted(folder.glob("*.safetensors"))


def files_of(out: Path) -> dict[str, str]:
    """Digests of the final files of student and memory."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last_checkpoint(out)}


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def guarded(folder: Path) -> dict[str, Any]:
    """A whole run in which nothing may be unpickled, after somebody wrote a pickle to every port; and the addresses."""
    join()
    inodes = {str(path.stat().st_ino) for path in Path("/proc/self/fd").iterdir() if path.exists()}
    tables = [Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:] for kind in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    heard = [line[1] for line in lines if line[3] == "0A" and line[9] in inodes]  # it listens, and is ours
    evil = pickle.dumps(Evil(str(folder / "executed")))
    strangers = []
    for address in heard:
        stranger = socket.create_connection(("127.0.0.1", int(address.partition(":")[2], 16)))
        stranger.sendall(len(evil).to_bytes(8, "little") + evil)
        strangers.append(stranger)
    refused = mock.Mock(side_effect=AssertionError("a pickle was read"))
    another_user = _tried_as_another_user(Path(f"{os.environ['MEANTEACHER_STORE']}-0"))
    with mock.patch("pickle.loads", refused), mock.patch.object(dist.distributed_c10d, "_unpickler", refused):
        found = whole_run(folder / "run", model=PlainSpec())
    result = {"heard": heard, "step": found["step"], "executed": (folder / "executed").exists()}
    return {**result, "another user": another_user}


def _tried_as_another_user(store: Path) -> dict[str, str]:
    """What comes of reading the store of the run, of writing to it, and of joining it as one of two ranks."""
    attempts: dict[str, Callable[[], Any]] = {
        "list": lambda: list(store.parent.iterdir()),
        "read": store.read_bytes,
        "write": lambda: store.open("ab"),
        "join": lambda: dist.FileStore(str(store), 2).set("meanteacher/0/key", "value"),
    }
    assert store.read_bytes()  # it is there
    if os.geteuid() != 0:
        return {}
    reading, writing = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        found: dict[str, str] = json.loads(os.read(reading, 10_000))
        return found
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    results = {}
    for name, attempt in attempts.items():
        try:
            results[name] = f"done: {attempt()}"
        except Exception as error:
            results[name] = str(error)
    os.write(writing, json.dumps(results).encode())
    os._exit(0)


def devices(folder: Path) -> list[str]:
    """What is said about GPUs if every process sees one, which is its own, and if all see the same one."""

    def check(uuid: str) -> None:
        with mock.patch.object(torch.cuda, "get_device_properties", return_value=SimpleNamespace(uuid=uuid)):
            check_devices(torch.device("cuda", 0), join())

    check(f"GPU-{join().rank}")
    return [said(lambda: check("GPU-0"))]


_kept: list[Any] = []


def own_loop(script: str) -> dict[str, Any]:
    """The weights of the teacher at the end of a script of docs/own-module.md, and the mean of its students.

    The processes meet at a file and connect by the loopback: somebody else could take a port meanwhile, and would have
    to resolve a name. Nothing that the script has made is freed before the end: threads of gloo may still use it.
    """
    students: list[list[Tensor]] = []

    def update(real: Any, self: Teacher, student: nn.Module) -> None:
        gathered = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in student.parameters()]
        students.append([p.detach().clone() for p in gathered])
        real(self, student)

    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    meet = partial(dist.init_process_group, **at_a_file())
    real, names = Teacher.update, {"mt": meanteacher, "torch": torch, "nn": nn}
    _kept.append(names)
    with (
        mock.patch.object(dist, "init_process_group", meet),
        mock.patch.object(Teacher, "update", lambda self, student: update(real, self, student)),
    ):
        exec(script, names)
    means = [torch.stack(of_one).mean(0) for of_one in zip(*students, strict=True)]
    weights = [value for name, value in names["weights"].items() if "running" not in name and "tracked" not in name]
    assert [w.shape for w in weights] == [m.shape for m in means]
    return {
        "weights": [w.tolist() for w in weights],
        "from the mean": max(float((w - m).abs().max()) for w, m in zip(weights, means, strict=True)),
        "moved": float((students[2][0] - students[0][0]).abs().max()),
        "statistics": [x.tolist() for name, x in names["weights"].items() if "running" in name],
    }
