"""What a run needs, computed on paper: memory, communication and time, from counted shapes and stated figures.

The step of the recipe runs on torch's meta device, where a tensor has a shape and no values: what it keeps for the
backward pass and what it multiplies is counted, and nothing is allocated.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from meanteacher.core import Batch, InputError, Problem, check_choice
from meanteacher.data import Outlined
from meanteacher.devices import GPUS, Gpu
from meanteacher.experiment.recipe import Recipe
from meanteacher.train import OptimSpec
from meanteacher.train.checkpoint import trained_parameters

_FLOAT32, _BFLOAT16 = 4, 2
_PROBE = (2, 4)
"""Rows of the batches that are counted: the difference is what further rows take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What one process holds and computes, in bytes and floating-point operations."""

    n_parameters: int
    """Of the student."""
    weights: int
    """Of the student, with its buffers."""
    gradients: int
    optimiser: int
    memory: int
    """Of the method: the teacher, and what else it keeps."""
    weight_copies: int
    """In bfloat16, for its matrix products."""
    activations: Mapping[str, float]
    """Per image: what the forward pass keeps for the backward pass, and the views."""
    flops: float
    """Per image: all forward and backward passes of a step. A multiplication and an addition are two."""


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
        optimiser=_optimiser_bytes(recipe.optim, trained),
        memory=_bytes((*many.memory.parameters(), *many.memory.buffers())),
        weight_copies=_BFLOAT16 * sum(p.numel() for p in many.student.parameters() if p.ndim > 1),
        activations={
            "float32": (many.saved - few.saved) * per_row,
            "bfloat16": (many_half.saved - few_half.saved) * per_row,
        },
        flops=(many.flops() - few.flops()) * per_row,
    )


class _Passes:
    """The forward pass of a step on the meta device, and its backward pass."""

    def __init__(self, recipe: Recipe, problem: Problem, rows: int, *, autocast: bool = False) -> None:
        with torch.device("meta"):
            self.student = recipe.model.build(problem).train()
            self.memory = recipe.method.init(self.student, problem).train()
            views = {role: torch.empty(rows, *problem.input_shape) for role in recipe.method.roles}
            labels = index = torch.zeros(rows, dtype=torch.int64)
        # A pass whose graph is freed before the end of the step, as in VAT, does not count.
        kept: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

        def keep(tensor: Tensor) -> Tensor:
            kept[len(numbers)] = tensor
            numbers.append(len(numbers))
            return tensor

        numbers: list[int] = []
        counter = FlopCounterMode(display=False)
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with counter, hooks, _Autocast() if autocast else nullcontext():
            batch = Batch(views, labels, index)
            self._total = recipe.method.forward(self.student, self.memory, batch, recipe.steps - 1).total
        self._forward_flops = counter.get_total_flops()
        own = {_storage(t) for m in (self.student, self.memory) for t in (*m.parameters(), *m.buffers())}
        held = {_storage(t): t.untyped_storage().nbytes() for t in (*views.values(), *kept.values())}
        self.saved = sum(n_bytes for storage, n_bytes in held.items() if storage not in own)

    def flops(self) -> int:
        """Of both passes."""
        with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
            self._total.backward()
        return int(self._forward_flops + counter.get_total_flops())


class _Autocast(TorchFunctionMode):
    """What torch's autocast does, which has no version for the meta device: matrix products are in bfloat16."""

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


def _convolution(
    out: list[int],
    x: list[int],
    weight: list[int],
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: int,
    mask: list[bool],
    **_: object,
) -> int:
    """Of a backward pass: each of the two gradients takes what the forward pass takes. torch's own formula multiplies
    the gradient of the weights by the number of groups.
    """
    forward = 2 * math.prod(x if transposed else out) * math.prod(weight[1:])
    return forward * (int(mask[0]) + int(mask[1]))


_FORMULAS = {torch.ops.aten.convolution_backward: _convolution}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _optimiser_bytes(optim: OptimSpec, trained: list[nn.Parameter]) -> int:
    """What the optimiser keeps: read off after a step on one small parameter for each number of dimensions."""
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
    """What a run needs in one precision."""

    memory: Mapping[str, float]
    """GB per GPU, by what takes it."""
    total: float
    """GB per GPU."""
    largest_batch: int
    """Images per GPU at most."""
    compute_seconds: float
    """Of one step."""
    communication_seconds: float
    """Of one step, as if none of it were hidden behind the backward pass."""
    run_seconds: float
    """Of all steps, without evaluations."""
    images_per_second: float
    """To be read and decoded for all GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run needs on so many GPUs."""

    recipe: str
    gpu: Gpu
    gpus: int
    n_images: int
    storage: float
    """GB of all images in their files."""
    image_bytes: float
    """Of one image in its file."""
    decoded: bool
    steps: int
    batch: int
    rows: int
    """Images per GPU and step."""
    counted: Counted
    communicated: Mapping[str, float]
    """Bytes that one GPU sends in a step, by what they are."""
    decode_rate: float
    """Images per second that one processor core decodes."""
    needs: Mapping[str, Need]
    advice: tuple[str, ...]
    """Sentences on what does not fit, and what to do."""


def plan(recipe: Recipe, *, gpus: int, gpu: Gpu | str, data_factor: float, decode_rate: float) -> Plan:
    """What a run of the recipe needs. `meanteacher.api.plan` says what the arguments are."""
    if isinstance(gpu, str):
        check_choice("gpu", gpu, tuple(GPUS))
        gpu = GPUS[gpu]
    if not isinstance(recipe.data.source, Outlined):
        raise InputError(
            f"{type(recipe.data.source).__name__} does not say how much data it has. Give the source a function "
            "outline() that returns a meanteacher.data.Outline."
        )
    if not 1 <= gpus <= recipe.batch.size:
        raise InputError(f"{recipe.name} has {recipe.batch.size} rows in a batch: give 1 to as many GPUs, not {gpus}.")
    if not data_factor > 0:
        raise InputError(f"data_factor multiplies the images and is above 0; got {data_factor}.")
    outline = recipe.data.source.outline().scaled(data_factor)
    counted = count_step(recipe, outline.problem)
    steps, rows = round(recipe.steps * data_factor), -(-recipe.batch.size // gpus)
    logits = recipe.batch.size * outline.problem.n_classes * _FLOAT32
    communicated = {
        # A ring passes every value on twice: to sum it, and to spread the sum.
        "gradients": 2 * (gpus - 1) / gpus * counted.gradients,
        "logits": (gpus - 1) / gpus * logits,
    }
    needs = {
        precision: _need(counted, communicated, precision, gpu, rows=rows, batch=recipe.batch.size, steps=steps)
        for precision in gpu.tflops
    }
    return Plan(
        recipe=recipe.name,
        gpu=gpu,
        gpus=gpus,
        n_images=outline.problem.n_examples,
        storage=outline.problem.n_examples * outline.stored_bytes / 1e9,
        image_bytes=outline.stored_bytes,
        decoded=outline.decoded,
        steps=steps,
        batch=recipe.batch.size,
        rows=rows,
        counted=counted,
        communicated=communicated,
        decode_rate=decode_rate,
        needs=needs,
        advice=tuple(_advice(needs, gpu, rows=rows, gpus=gpus)),
    )


def _need(
    counted: Counted,
    communicated: Mapping[str, float],
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
    communication = sum(communicated.values()) / (1e9 * gpu.bandwidth)
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
