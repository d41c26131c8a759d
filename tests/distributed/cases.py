"""What the processes of the tests do. Every function returns what can be written as JSON."""

import dataclasses
import hashlib
import signal
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file
from test_rows import encoded, stream_of
from torch import Tensor, nn

from meanteacher.cli.console import graceful_stop
from meanteacher.core import InputError, LostRankError, Problem
from meanteacher.data import Fixed, TrainTest
from meanteacher.distributed.ranks import join
from meanteacher.evaluate import error_rates
from meanteacher.experiment import Recipe, dismissing_helpers, help_first, run, run_with_helpers
from meanteacher.experiment.prepared import Prepared
from meanteacher.experiment.run import _broken_images
from meanteacher.models.layers import synchronise_batch_norm
from meanteacher.schedules import Constant
from meanteacher.train import Intervals, SgdSpec, TrainState, Vitals, train
from meanteacher.train.compile import Speed
from meanteacher.train.parallel import agreed_batch
from support import METHODS, N_CLASSES, SHAPE, recipe


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
    return dataclasses.replace(
        recipe(method, **changes), batch=Fixed(size=11, labelled=1, unlabelled_pool="all"), steps=12
    )


SGD = SgdSpec(learning_rate=Constant(0.05))
"""Unlike Adam, whose steps have the same length for any multiple of the gradient."""
VARIANTS: dict[str, Recipe] = {
    **{name: recipe(name, model=PlainSpec(), optim=SGD, steps=50, evaluate_every=25) for name in METHODS},
    "varying labels": recipe(batch="mixed", model=PlainSpec(), optim=SGD, steps=12),
    "two outputs": dataclasses.replace(
        recipe(model=PlainSpec(outputs=2), optim=SGD, steps=12),
        method=dataclasses.replace(METHODS["mean-teacher"], logit_distance=0.1, consistency_on="unlabelled"),
    ),
    "few labels": few_labels(model=PlainSpec(), optim=SGD),
    "batch norm": few_labels(model=PlainSpec(extra="batch norm"), optim=SGD),
    "batch norm, evaluated often": few_labels(model=PlainSpec(extra="batch norm"), optim=SGD, evaluate_every=1),
    "dropout": few_labels("vat", model=PlainSpec(extra="dropout"), optim=SGD),
    "dropout for a while": few_labels("pseudo-ensemble", model=PlainSpec(extra="dropout"), optim=SGD),
}

EQUAL = [*METHODS, "varying labels", "two outputs", "few labels"]
"""Where no row's output depends on other rows, or on noise that each process draws for itself."""


def trained(name: str, steps: int | None, changes: dict[str, Any]) -> tuple[TrainState, Prepared, Vitals]:
    """A run of the whole training loop, in float64: sums in another order then differ by 1e-15, not by 1e-7."""
    torch.set_default_dtype(torch.float64)
    whole = VARIANTS[name]
    whole = whole if steps is None else dataclasses.replace(whole, steps=steps)
    ranks, speed = join(), Speed(**changes)
    prepared = Prepared(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    state, vitals = prepared.start(), Vitals(prepared.declared)
    if speed.sync_batch_norm:
        synchronise_batch_norm(state.student)
        synchronise_batch_norm(state.memory)
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
        speed=speed,
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
            torch.save({**tensors(state), "of ranks": state.rank_buffers}, Path(folder) / f"{name}.pt")
        found[name] = {
            "digest": digest(tensors(state)),
            "curve": [[point.student, point.teacher, point.student_cost] for point in state.curve],
            "alarms": [alarm.kind for alarm in vitals.alarms],
            "gradients": vitals.readings[-1]["gradients"],
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
            device="cpu",
            should_stop=should_stop,
        )
    return {"step": outcome.step, "record": outcome.record}


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
        run(whole, seed=3, out=Path(folder) / "run", data=whole.data.source.load(Path()), should_stop=should_stop)
    except LostRankError as error:
        given_up.touch()
        return str(error)
    return "no error"


def helped(folder: str) -> dict[str, Any]:
    """Two runs that only rank 0 knows of, as in a fit, of which the second skips steps."""
    ranks = join()
    if not ranks.is_first:
        help_first(lambda: False)
        return {}
    whole = recipe(steps=14, evaluate_every=4)
    data = whole.data.source.load(Path())
    prepared = Prepared(whole, seed=3, data=data)
    found = {}
    with dismissing_helpers():
        for name, skip_to in (("all", lambda step: step), ("skipping", lambda step: step + 1)):
            outcome = run_with_helpers(
                whole,
                seed=3,
                out=Path(folder) / name,
                data=data,
                split=prepared.split,
                resume=False,
                device="cpu",
                skip_to=skip_to,
            )
            assert outcome.record is not None
            found[name] = outcome.record
    return found


def synchronised(folder: str) -> dict[str, Any]:
    return weights(folder, ["batch norm"], None, {"sync_batch_norm": True})


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


def plain(folder: str) -> dict[str, Any]:
    """A run that rank 0's signal stops, for another number of processes to resume it."""
    return whole_run(str(Path(folder) / "run"), "plain", 0)


def refused(folder: str) -> str:
    whole = dataclasses.replace(recipe(), batch=Fixed(size=1, labelled=1, unlabelled_pool="all"))
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
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, N_CLASSES))
    error = error_rates({"": network}, data, normalise=stream.normalise, ranks=ranks)[""]
    return {
        "labels": agreed.labels.tolist(),
        "index": agreed.index.tolist(),
        "error": error,
        "replaced": int((agreed.index != positions).sum()),
        "recorded": sorted(_broken_images(TrainTest(data, data), ranks)["broken"]["train"]["first"]),
    }


def last_checkpoint(out: Path) -> list[Path]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return sorted(folder.glob("*.safetensors"))


def files_of(out: Path) -> dict[str, str]:
    """Digests of the final files of student and memory."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last_checkpoint(out)}


def tensors_of(out: Path) -> dict[str, Tensor]:
    return {f"{path.stem}.{name}": t for path in last_checkpoint(out) for name, t in load_file(path).items()}
