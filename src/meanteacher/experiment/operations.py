"""The work of a training step, counted on two rows. Nothing is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from meanteacher.core import Batch, Problem
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.models import MlpSpec, ModelSpec
from meanteacher.seeding import isolated_global_randomness

_ROWS = 2
"""Rows of a counted pass: batch norm needs more than one."""
_WIDTHS = (64, 128)
"""Widths of the small networks that stand in for the student while the passes of a method are counted."""


def row_operations(training: TrainingSpec, problem: Problem) -> float:
    """Floating-point operations per row in all passes of a step, late in the run, when every cost has its weight.

    One pass of the network is counted, and how many of them the method's step is worth. A multiplication and an
    addition count as two. Only convolutions and linear layers count.

    >>> from meanteacher.recipes import find
    >>> digits = Problem(n_classes=10, n_examples=1198, input_shape=(1, 8, 8))
    >>> [round(row_operations(find(f"digits/{name}").training, digits)) for name in ("supervised", "pi-model")]
    [474112, 948224]
    """
    with isolated_global_randomness():
        network = _network(training.model, problem)  # type: ignore[arg-type]  # a frozen value
        small, large = (_step(training, problem, width) for width in _WIDTHS)
    total = 0.0
    for whole, (one, step), (other, other_step) in zip(network, small, large, strict=True):
        # What does not grow with the student is done by networks of the method's own.
        total += step + (whole - one) * (other_step - step) / (other - one)
    return total / _ROWS


_Work = tuple[float, float]
"""Operations of forward passes, and of the gradients that follow them."""


def _step(training: TrainingSpec, problem: Problem, width: int) -> list[tuple[float, float]]:
    """The work of one pass of a small student beside that of the method's step with it: forward, then gradients."""
    mlp = MlpSpec(hidden=3 * (width,), outputs=getattr(training.model, "outputs", 1))
    layers = mlp.build(replace(problem, input_shape=(1,)))
    student = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(1), layers).train()
    memory = training.method.init(student, replace(problem, n_examples=_ROWS)).train()
    labels = torch.zeros(_ROWS, dtype=torch.int64)
    batch = Batch({role: _images(problem) for role in training.method.roles}, labels, labels)
    step = _counted(lambda: training.method.forward(student, memory, batch, training.steps - 1))
    return list(zip(_counted(lambda: student(_images(problem))), step, strict=True))


@cache
def _network(model: ModelSpec, problem: Problem) -> _Work:
    """The work of one pass, which all methods of a table share. No weight is drawn, and no layer's input is kept."""
    with _Count(), saved_tensors_hooks(lambda _: torch.empty(0), lambda kept: kept):
        network = model.build(problem).train()
        return _counted(lambda: network(_images(problem)))


def _images(problem: Problem) -> Tensor:
    return torch.zeros(_ROWS, *problem.input_shape)


def _counted(compute: Callable[[], object]) -> _Work:
    with _Count() as count:
        compute()
    return count.forward, count.gradients


class _Count(TorchFunctionMode):
    """Counts the operations of layers. Each gradient of a layer takes as many as its output.

    torch's `FlopCounterMode` sees the backward pass itself, but imports the compiler, which takes seconds.
    """

    forward = gradients = 0.0

    def __torch_function__(
        self,
        layer: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(layer, "__module__", "") == nn.init.__name__:
            return kwargs["tensor"]  # as it is: no count depends on the values
        output = (_like_convolution if layer is torch.conv2d else layer)(*args, **kwargs)
        if layer in (torch.conv2d, torch.conv_transpose2d, nn.functional.linear):
            x, weight = args[:2]
            operations = 2.0 * (x if layer is torch.conv_transpose2d else output).numel() * weight[0].numel()
            self.forward += operations
            self.gradients += operations * (x.requires_grad + weight.requires_grad) * torch.is_grad_enabled()
        return output


def _like_convolution(x: Tensor, weight: Tensor, bias: object = None, *args: Any, **kwargs: Any) -> Tensor:
    """A tensor of the convolution's size, of which one channel per group is computed."""
    n_groups = x.shape[-3] // weight.shape[1]
    channels = torch.conv2d(x, weight[:n_groups], None, *args, **kwargs)
    return channels.repeat_interleave(len(weight) // n_groups, -3)
