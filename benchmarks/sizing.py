"""What a run needs, computed on paper: python -m benchmarks.sizing RECIPE --gpus 10.

Memory, communication and time come from counted shapes and stated figures. The step of the recipe runs on torch's meta
device, on which a tensor has a shape and no values: the tensors kept for the backward pass and the products are
counted, and nothing is allocated.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from meanteacher.api import load_recipe
from meanteacher.cli.console import exit_codes, say
from meanteacher.core import Batch, InputError, Problem, check_choice
from meanteacher.data import Source
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.imagenet import ImageNet
from meanteacher.data.svhn import Svhn
from meanteacher.data.toy import Digits, Moons
from meanteacher.experiment.operations import row_operations
from meanteacher.experiment.recipe import Recipe
from meanteacher.formats import duration
from meanteacher.train import OptimSpec
from meanteacher.train.checkpoint import trained_parameters

_FLOAT64, _FLOAT32, _BFLOAT16 = 8, 4, 2
_NODE = 8
"""GPUs of one machine."""
_NETWORK = 12.5
"""GB/s between machines, of the 100 Gbit/s of a common network card. All GPUs of a machine share it."""
_PROBE = (2, 4)
"""Batch sizes of the two counted steps; their difference gives the cost of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Figures of a device."""

    name: str
    memory: float
    """Memory in GB (10⁹ bytes)."""
    tflops: Mapping[str, float]
    """Peak of dense products by the maker's data sheet. A precision without an entry has no hardware support."""
    efficiency: Mapping[str, float]
    """The share of the peak that a training step of a residual network attains."""
    bandwidth: float
    """GB/s from one GPU to the others, in each direction."""
    reserve: float = 2.0
    """GB that the driver, the libraries' workspaces and fragmentation take."""


_V100, _A100, _H100 = {"float32": 15.7}, {"float32": 156.0, "bfloat16": 312.0}, {"float32": 495.0, "bfloat16": 989.0}
_CUDA_CORES, _TENSOR_CORES = {"float32": 0.46}, {"float32": 0.09, "bfloat16": 0.14}
GPUS = {
    "v100-16gb": Gpu(name="v100-16gb", memory=16, tflops=_V100, efficiency=_CUDA_CORES, bandwidth=150),
    "v100-32gb": Gpu(name="v100-32gb", memory=32, tflops=_V100, efficiency=_CUDA_CORES, bandwidth=150),
    "a100-40gb": Gpu(name="a100-40gb", memory=40, tflops=_A100, efficiency=_TENSOR_CORES, bandwidth=300),
    "a100-80gb": Gpu(name="a100-80gb", memory=80, tflops=_A100, efficiency=_TENSOR_CORES, bandwidth=300),
    "h100-80gb": Gpu(name="h100-80gb", memory=80, tflops=_H100, efficiency=_TENSOR_CORES, bandwidth=450),
}
"""Data sheets of NVIDIA; float32 is TF32 if the device has it, which torch uses for convolutions. The efficiencies are
those of ResNeXt-101 32x4d in NVIDIA's DeepLearningExamples (one V100: 150 images per second in FP32; one A100: 300 in
TF32, 908 in mixed precision), each image counted as 48 GFLOP. An H100 is taken to have an A100's efficiency."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known about the training data of a source before they are read."""

    problem: Problem
    stored_bytes: int
    """Mean size of an image in its file."""
    decoded: bool = False
    """Whether images stay encoded in their files, and are decoded whenever they are needed."""

    def scaled(self, factor: float) -> "Outline":
        """The same with so many times the images."""
        return replace(self, problem=replace(self.problem, n_examples=round(factor * self.problem.n_examples)))


def outline(source: Source) -> Outline:
    """The outline of a data set of the recipes.

    Raises:
        InputError: the source is another one.
    """
    match source:
        case Svhn():
            return Outline(Problem(10, n_examples=73_257 + source.extra, input_shape=(3, 32, 32)), stored_bytes=3072)
        case Cifar10():
            return Outline(Problem(10, n_examples=50_000, input_shape=(3, 32, 32)), stored_bytes=3072)
        case ImageNet():
            problem = Problem(source.n_classes, n_examples=source.n_train, input_shape=(3, source.size, source.size))
            # The archive of all 1,281,167 training photos has 147,897,477,120 bytes.
            return Outline(problem, stored_bytes=115_000, decoded=True)
        case Digits():
            return Outline(Problem(n_classes=10, n_examples=1198, input_shape=(1, 8, 8)), stored_bytes=64)
        case Moons():
            return Outline(Problem(n_classes=2, n_examples=source.n, input_shape=(2,)), stored_bytes=8)
    raise InputError(f"The size of {type(source).__name__} is unknown. Add it to benchmarks/sizing.py, `outline`.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Bytes held and floating-point operations computed by one process."""

    n_parameters: int
    """Parameters of the student."""
    weights: int
    """Bytes of the student, with its buffers."""
    gradients: int
    optimiser: int
    memory: int
    """Bytes of the method: the teacher, and anything else it keeps."""
    weight_copies: int
    """Bytes of the bfloat16 copies for matrix products."""
    activations: Mapping[str, float]
    """Bytes per image: the views, and the tensors kept for the backward pass."""
    flops: float
    """Operations per image in all passes of a step. A multiplication and an addition count as two."""
    outputs: float
    """Numbers per image in the outputs of all passes, which every process gathers. Mean Teacher with a network of two
    outputs gathers its logits four times."""
    statistics: int
    """Numbers in the running statistics, which the processes average in float64."""


def count_step(recipe: Recipe, problem: Problem) -> Counted:
    """Count a step of the recipe on data of this shape, late in the run, when every cost has its weight."""
    few, many = (_Passes(recipe, problem, rows) for rows in _PROBE)
    few_half, many_half = (_Passes(recipe, problem, rows, autocast=True) for rows in _PROBE)
    per_row = 1 / (_PROBE[1] - _PROBE[0])
    trained = trained_parameters(many.student, many.memory)
    return Counted(
        n_parameters=sum(p.numel() for p in many.student.parameters()),
        weights=_bytes((*many.student.parameters(), *many.student.buffers())),
        gradients=_bytes(trained),
        optimiser=_optimiser_bytes(recipe.training.optim, trained),
        memory=_bytes((*many.memory.parameters(), *many.memory.buffers())),
        weight_copies=_BFLOAT16 * sum(p.numel() for p in many.student.parameters() if p.ndim > 1),
        activations={
            "float32": (many.saved - few.saved) * per_row,
            "bfloat16": (many_half.saved - few_half.saved) * per_row,
        },
        flops=row_operations(recipe.training, problem),
        outputs=(many.outputs - few.outputs) * per_row,
        statistics=sum(
            buffer.numel()
            for module in (many.student, many.memory)
            for name, buffer in module.named_buffers()
            if name.rpartition(".")[2].startswith("running_")
        ),
    )


class _Passes:
    """The forward pass of a step on the meta device."""

    def __init__(self, recipe: Recipe, problem: Problem, rows: int, *, autocast: bool = False) -> None:
        with torch.device("meta"):
            self.student = recipe.training.model.build(problem).train()
            self.memory = recipe.training.method.init(self.student, problem).train()
            views = {role: torch.empty(rows, *problem.input_shape) for role in recipe.training.method.roles}
            labels = index = torch.zeros(rows, dtype=torch.int64)
        # A pass whose graph is freed before the end of the step, as in VAT, does not count.
        kept: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

        def keep(tensor: Tensor) -> Tensor:
            kept[len(numbers)] = tensor
            numbers.append(len(numbers))
            return tensor

        numbers: list[int] = []
        self.outputs = 0

        def gathered(network: nn.Module, inputs: Any, output: Any) -> None:
            self.outputs += sum(logits.numel() for logits in (output if isinstance(output, tuple) else (output,)))

        for network in {self.student, recipe.training.method.predictor(self.student, self.memory)}:
            network.register_forward_hook(gathered)
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, _Autocast() if autocast else nullcontext():
            batch = Batch(views, labels, index)
            # The costs hold the graph, and so what it keeps.
            costs = recipe.training.method.forward(self.student, self.memory, batch, recipe.training.steps - 1)
        own = {_storage(t) for m in (self.student, self.memory) for t in (*m.parameters(), *m.buffers())}
        held = {_storage(t): t.untyped_storage().nbytes() for t in (*views.values(), *kept.values())}
        self.saved = sum(n_bytes for storage, n_bytes in held.items() if storage not in own)
        del costs


class _Autocast(TorchFunctionMode):
    """Computes matrix products in bfloat16, as torch's autocast does, which does not support the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            args = [_rounded(value) for value in args]
            kwargs = {name: _rounded(value) for name, value in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


_PRODUCTS = {torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose1d, torch.conv_transpose2d, F.linear}
_PRODUCTS |= {torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, Tensor.matmul, Tensor.__matmul__}


def _rounded(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _storage(tensor: Tensor) -> int:
    """Tensors that share their memory have the same number: in-place operations and views keep nothing more."""
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _optimiser_bytes(optim: OptimSpec, trained: list[nn.Parameter]) -> int:
    """Bytes of the optimiser's state, from a step on one small parameter for each number of dimensions."""
    per_value = {}
    for ndim in {parameter.ndim for parameter in trained}:
        small = nn.Parameter(torch.zeros((2,) * ndim))
        optimizer = optim.build([small])
        small.grad = torch.ones_like(small)
        optim.set_step(optimizer, 0)
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        # A counter of steps is one number, whatever the parameter's size.
        sizes = [_bytes([t]) for t in states if isinstance(t, Tensor) and t.shape == small.shape]
        per_value[ndim] = sum(sizes) / small.numel()
    return round(sum(per_value[parameter.ndim] * parameter.numel() for parameter in trained))


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """The needs of a run in one precision."""

    memory: Mapping[str, float]
    """GB per GPU: use -> size."""
    total: float
    """GB per GPU."""
    largest_batch: int
    """Images per GPU at most."""
    compute_seconds: float
    """Seconds of computing per step."""
    communication_seconds: float
    """Seconds of communication per step, as if none of it were hidden behind the backward pass."""
    run_seconds: float
    """Seconds of all steps, without evaluations."""
    images_per_second: float
    """Images read and decoded for all GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The needs of a run on a number of GPUs."""

    recipe: str
    gpu: Gpu
    gpus: int
    n_images: int
    storage: float
    """GB of all images in their files."""
    image_bytes: float
    """Mean size of an image in its file."""
    decoded: bool
    steps: int
    batch: int
    rows: int
    """Images per GPU and step."""
    counted: Counted
    communicated: Mapping[str, float]
    """Bytes that one GPU sends in a step: kind -> size."""
    bandwidth: float
    """GB/s at which they are sent."""
    decode_rate: float
    """Images per second that one processor core decodes."""
    needs: Mapping[str, Need]
    advice: tuple[str, ...]
    """A sentence for each precision that does not fit, with ways out, and one for more than one machine."""


def plan(
    recipe: Recipe,
    *,
    gpus: int = 1,
    gpu: Gpu = GPUS["a100-40gb"],
    data_factor: float = 1.0,
    decode_rate: float = 100.0,
) -> Plan:
    """What a run of the recipe needs. Allocates no network and reads no data.

    Args:
        recipe: a recipe
        gpus: number of GPUs that share every batch
        gpu: figures of the device
        data_factor: multiplies the images and the steps
        decode_rate: images per second that one processor core decodes

    Raises:
        InputError: a batch has fewer rows than there are GPUs, or a factor is not above 0.

    >>> planned = plan(load_recipe("table1/svhn-500/mean-teacher"), gpus=4)
    >>> planned.batch, planned.rows, sorted(planned.needs)
    (100, 25, ['bfloat16', 'float32'])
    """
    if not 1 <= gpus <= recipe.training.batch.size:
        raise InputError(
            f"{recipe.name} has {recipe.training.batch.size} rows in a batch: give 1 to as many GPUs, not {gpus}."
        )
    if not data_factor > 0:
        raise InputError(f"data_factor multiplies the images and is above 0; got {data_factor}.")
    data = outline(recipe.data.source).scaled(data_factor)
    counted = count_step(recipe, data.problem)
    steps, rows = round(recipe.training.steps * data_factor), -(-recipe.training.batch.size // gpus)
    ring = (gpus - 1) / gpus
    communicated = {
        # A ring passes every value on twice: to sum it, and to spread the sum.
        "gradients": 2 * ring * counted.gradients,
        "logits": ring * recipe.training.batch.size * counted.outputs * _FLOAT32,
        "statistics": 2 * ring * counted.statistics * _FLOAT64,
    }
    bandwidth = gpu.bandwidth if gpus <= _NODE else min(gpu.bandwidth, _NETWORK)
    needs = {
        precision: _need(
            counted,
            sum(communicated.values()) / (1e9 * bandwidth),
            precision,
            gpu,
            rows=rows,
            batch=recipe.training.batch.size,
            steps=steps,
        )
        for precision in gpu.tflops
    }
    return Plan(
        recipe=recipe.name,
        gpu=gpu,
        gpus=gpus,
        n_images=data.problem.n_examples,
        storage=data.problem.n_examples * data.stored_bytes / 1e9,
        image_bytes=data.stored_bytes,
        decoded=data.decoded,
        steps=steps,
        batch=recipe.training.batch.size,
        rows=rows,
        counted=counted,
        communicated=communicated,
        bandwidth=bandwidth,
        decode_rate=decode_rate,
        needs=needs,
        advice=tuple(_advice(needs, gpu, rows=rows, gpus=gpus)),
    )


def _need(
    counted: Counted,
    communication: float,
    precision: str,
    gpu: Gpu,
    *,
    rows: int,
    batch: int,
    steps: int,
) -> Need:
    fixed = {
        "student": counted.weights + (counted.weight_copies if precision == "bfloat16" else 0),
        "gradients": counted.gradients,
        "optimiser": counted.optimiser,
        "method": counted.memory,
        "reserve": 1e9 * gpu.reserve,
    }
    per_image = counted.activations[precision]
    compute = rows * counted.flops / (1e12 * gpu.tflops[precision] * gpu.efficiency[precision])
    memory = {name: n / 1e9 for name, n in {**fixed, "activations": rows * per_image}.items()}
    return Need(
        memory=memory,
        total=sum(memory.values()),
        largest_batch=max(0, int((1e9 * gpu.memory - sum(fixed.values())) / per_image)),
        compute_seconds=compute,
        communication_seconds=communication,
        run_seconds=steps * (compute + communication),
        images_per_second=batch / (compute + communication),
    )


def _advice(needs: Mapping[str, Need], gpu: Gpu, *, rows: int, gpus: int) -> Iterable[str]:
    if gpus > _NODE:
        machines = -(-gpus // _NODE)
        yield (
            f"{gpus} GPUs are {machines} machines of {_NODE}: what a step sends crosses the network, at "
            f"{_NETWORK:g} GB/s. No run on several machines with GPUs was measured, and the network has to be trusted."
        )
    for precision, need in needs.items():
        if need.total <= gpu.memory:
            continue
        ways = []
        if 0 < need.largest_batch < rows:
            ways.append(f"{-(-rows // need.largest_batch)} micro-batches of at most {need.largest_batch} images")
            ways.append(f"{-(-rows * gpus // need.largest_batch)} GPUs")
        if precision == "float32" and "bfloat16" in needs and needs["bfloat16"].total <= gpu.memory:
            ways.append("bfloat16")
        ways.append("a device with more memory")
        yield (
            f"{precision} does not fit: {need.total:.1f} GB of {gpu.memory:g} GB per GPU. Take {', or '.join(ways)}."
        )


def _print(console: Console, plan: Plan) -> None:
    gpu, counted = plan.gpu, plan.counted
    say(console, f"{plan.recipe} on {plan.gpus} x {gpu.name}")
    say(
        console,
        f"{plan.n_images:,} images ({_size(1e9 * plan.storage)} of files), {plan.steps:,} steps of {plan.batch} "
        f"images, {plan.rows} per GPU",
    )
    say(
        console,
        f"{counted.n_parameters:,} parameters, {counted.flops / 1e9:.1f} GFLOP and "
        f"{_size(counted.activations['float32'])} of float32 activations per image",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("per GPU", no_wrap=True)
    for precision in plan.needs:
        table.add_column(precision, justify="right", no_wrap=True)
    needs = list(plan.needs.values())

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    names = {
        "student": "student",
        "gradients": "gradients",
        "optimiser": "optimiser",
        "method": "teacher, and what else the method keeps",
        "reserve": "driver and workspaces",
        "activations": "activations",
    }
    for key, label in names.items():
        row(label, *(_size(1e9 * need.memory[key]) for need in needs))
    row("memory in all", *(_size(1e9 * need.total) for need in needs))
    row(f"largest batch in {gpu.memory:g} GB", *(f"{need.largest_batch:,}" for need in needs))
    for name, sent in plan.communicated.items():
        row(f"sent per step: {name}", *(_size(sent) for _ in needs))
    row("time per step: computing", *(_time(need.compute_seconds) for need in needs))
    row("time per step: communicating", *(_time(need.communication_seconds) for need in needs))
    row("time of the run", *(_time(need.run_seconds) for need in needs))
    row("GPU time of the run", *(_time(plan.gpus * need.run_seconds) for need in needs))
    row("images read per second, all GPUs", *(f"{need.images_per_second:,.0f}" for need in needs))
    row("bytes read per second", *(_size(need.images_per_second * plan.image_bytes) for need in needs))
    if plan.decoded:
        row("processor cores that decode", *(_cores(need, plan) for need in needs))
    console.print(table)
    shares = ", ".join(f"{plan.gpu.tflops[kind]:g} TFLOP/s in {kind} x {gpu.efficiency[kind]:g}" for kind in plan.needs)
    decoding = f", {plan.decode_rate:g} images decoded per second and core" if plan.decoded else ""
    say(console, f"Figures: {gpu.memory:g} GB, {shares}, {plan.bandwidth:g} GB/s between GPUs{decoding}.")
    for sentence in plan.advice:
        say(console, (sentence, "yellow"))


def _cores(need: Need, plan: Plan) -> str:
    return f"{max(1, round(need.images_per_second / plan.decode_rate)):,}"


_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def _size(n_bytes: float) -> str:
    """Three digits and a unit.

    >>> _size(0), _size(496_003_200), _size(147_334_205_000_000)
    ('0 bytes', '496 MB', '147 TB')
    """
    unit = 0
    while n_bytes >= 999.5 and unit < len(_UNITS) - 1:
        n_bytes, unit = n_bytes / 1000, unit + 1
    return f"{n_bytes:.0f} {_UNITS[unit]}" if n_bytes >= 99.95 or unit == 0 else f"{n_bytes:.3g} {_UNITS[unit]}"


_DAY = 86_400.0
_YEAR = 365.25 * _DAY


def _time(seconds: float) -> str:
    """A time from microseconds to years.

    >>> _time(0.0031), _time(75), _time(3 * 86_400), _time(1e9)
    ('3.1 ms', '1 min 15 s', '3.0 days', '31.7 years')
    """
    if seconds >= 2 * _YEAR:
        return f"{seconds / _YEAR:,.1f} years"
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:,.1f} days"
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, or FILE.py:NAME for one of your own.")],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs over which every batch is divided.")] = 1,
    gpu: Annotated[str, typer.Option(metavar="|".join(GPUS), help="Device whose figures are used.")] = "a100-40gb",
    decode_rate: Annotated[
        float, typer.Option(metavar="N", help="Images per second that one processor core decodes.")
    ] = 100.0,
    data_factor: Annotated[float, typer.Option(metavar="X", help="X times the images, and X times the steps.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print every number as JSON.")] = False,
) -> None:
    """Compute what a run needs, without running it: memory per GPU, communication, time."""
    with exit_codes(sys.argv, resume=False):
        check_choice("--gpu", gpu, tuple(GPUS))
        found = plan(load_recipe(recipe), gpus=gpus, gpu=GPUS[gpu], data_factor=data_factor, decode_rate=decode_rate)
        if as_json:
            typer.echo(json.dumps(asdict(found), indent=1))
        else:
            _print(Console(), found)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.sizing")
