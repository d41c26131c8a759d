"""The work of a training step, counted on shapes: nothing is allocated and nothing is trained."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from meanteacher.core import Batch, Problem
from meanteacher.experiment.recipe import TrainingSpec

_ROWS = 2
"""Rows of the counted step: batch norm needs more than one."""


def row_operations(training: TrainingSpec, problem: Problem) -> float:
    """Floating-point operations per row in all passes of a step, late in the run, when every cost has its weight.

    The step runs on torch's meta device. A multiplication and an addition count as two.

    >>> from meanteacher.recipes import find
    >>> digits = Problem(n_classes=10, n_examples=1198, input_shape=(1, 8, 8))
    >>> [round(row_operations(find(f"digits/{name}").training, digits)) for name in ("supervised", "pi-model")]
    [474112, 948224]
    """
    with torch.device("meta"):
        student = training.model.build(problem).train()
        memory = training.method.init(student, problem).train()
        views = {role: torch.empty(_ROWS, *problem.input_shape) for role in training.method.roles}
        labels = torch.zeros(_ROWS, dtype=torch.int64)
    with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        training.method.forward(student, memory, Batch(views, labels, labels), training.steps - 1).total.backward()
    return float(counter.get_total_flops()) / _ROWS


def _convolution(out: list[int], x: list[int], weight: list[int], *options: Any, **_: object) -> int:
    """Operations of a backward pass: each of the two gradients takes as many as the forward pass.

    torch's own formula multiplies the gradient of the weights by the number of groups.
    """
    transposed, wanted = options[4], options[7]
    forward = 2 * math.prod(x if transposed else out) * math.prod(weight[1:])
    return int(forward * sum(wanted[:2]))


_FORMULAS = {torch.ops.aten.convolution_backward: _convolution}
