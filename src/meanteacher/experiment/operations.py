"""The work of a training step, counted on two rows. Nothing is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from meanteacher.core import Batch, Problem
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.seeding import isolated_global_randomness

_ROWS = 2
"""Rows of a counted step: batch norm needs more than one."""


def row_operations(training: TrainingSpec, problem: Problem) -> float:
    """Floating-point operations per row in all passes of a step, late in the run, when every cost has its weight.

    A multiplication and an addition count as two. Only convolutions and linear layers count. Sizes are those of the
    step and values are not: no weight is drawn, and a convolution computes one channel.

    >>> from meanteacher.recipes import find
    >>> digits = Problem(n_classes=10, n_examples=1198, input_shape=(1, 8, 8))
    >>> [round(row_operations(find(f"digits/{name}").training, digits)) for name in ("supervised", "pi-model")]
    [474112, 948224]
    """
    count = _Count()
    with isolated_global_randomness(), saved_tensors_hooks(_of_its_shape, lambda kept: kept), count:
        student = training.model.build(problem).train()
        memory = training.method.init(student, replace(problem, n_examples=_ROWS)).train()
        count.operations = 0.0
        labels = torch.zeros(_ROWS, dtype=torch.int64)
        views = dict.fromkeys(training.method.roles, torch.zeros(_ROWS, *problem.input_shape))
        training.method.forward(student, memory, Batch(views, labels, labels), training.steps - 1)
    return count.operations / _ROWS


def _of_its_shape(kept: Tensor) -> Tensor:
    """A tensor that takes no memory in the place of one that a layer keeps for its gradient."""
    return kept.new_zeros(()).expand(kept.shape)


class _Count(TorchFunctionMode):
    """Counts the operations of layers. Each gradient of a layer takes as many as its output.

    torch's `FlopCounterMode` sees the backward pass itself, but imports the compiler, which takes seconds.
    """

    operations: float = 0.0

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
        if layer in (Tensor.clone, nn.functional.batch_norm):
            return args[0]
        output = (_like_convolution if layer is torch.conv2d else layer)(*args, **kwargs)
        if layer in (torch.conv2d, torch.conv_transpose2d, nn.functional.linear):
            x, weight = args[:2]
            passes = 1 + (x.requires_grad + weight.requires_grad) * torch.is_grad_enabled()
            counted = x if layer is torch.conv_transpose2d else output
            self.operations += passes * 2.0 * counted.numel() * weight[0].numel()
        return output


def _like_convolution(x: Tensor, weight: Tensor, bias: object = None, *args: Any, **kwargs: Any) -> Tensor:
    """A tensor of the convolution's size, of which one channel is computed, from one channel."""
    ungrouped = {name: value for name, value in kwargs.items() if name != "groups"}
    return torch.conv2d(x[:, :1], weight[:1, :1], None, *args[:3], **ungrouped).repeat(1, len(weight), 1, 1)
