"""The weight-averaged copy of the student, and the memory of methods that keep more than that."""

import copy
import re
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from meanteacher.core import InputError, check_choice
from meanteacher.passes import Logits, at_least_float32, untracked

Buffers = Literal["own", "average", "copy"]
"""Where the teacher's buffers, such as batch-normalisation statistics, come from.

own      the teacher runs in training mode and keeps statistics of its own activations, as the authors do
average  the same exponential average as the weights
copy     the student's latest
"""


def warmed_up(decay: float, step: int) -> float:
    """The decay to use after step `step`.

    At first an exponential average would be dominated by the random start, so it is the plain mean of the students so
    far until that mean's decay reaches `decay`.

    >>> warmed_up(0.99, 0), warmed_up(0.99, 1), warmed_up(0.99, 500)
    (0.0, 0.5, 0.99)
    """
    return min(1 - 1 / (step + 1), decay)


def check_dropout(name: str, rate: float | None) -> None:
    """Refuse what is not a rate of dropout from 0 to below 1, or None.

    Raises:
        InputError: says so; also for True and False, which were allowed until version 0.1.
    """
    if rate is None:
        return
    if isinstance(rate, bool) or not 0 <= rate < 1:
        raise InputError(
            f"{name} is a rate from 0 (no dropout) to below 1, or None for the student's own rate; got {rate}."
        )


def set_dropout(network: nn.Module, rate: float) -> None:
    """Give every dropout layer this rate, for good.

    Raises:
        InputError: there is no dropout layer that could drop anything.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, _DropoutNd)]
    if rate and not layers:
        raise InputError(
            f"A dropout rate of {rate} has no effect: {type(network).__name__} has no dropout layer. Leave the rate "
            "out, or use a network with dropout."
        )
    for layer in layers:
        layer.p = rate


class Teacher(nn.Module):
    """A network whose weights are the exponential moving average of the student's (Sec. 2).

    At least float32, whatever the student's precision: in bfloat16 an update with decay 0.999 is lost to
    rounding. The teacher of a float64 student is float64. No gradient reaches it.

    Args:
        student: the network to average
        buffers: where the teacher's buffers come from
        dropout: rate in the teacher's own passes in training (Figure 4b); None for the student's
    """

    def __init__(self, student: nn.Module, *, buffers: Buffers = "own", dropout: float | None = None) -> None:
        super().__init__()
        check_choice("buffers", buffers, get_args(Buffers))
        check_dropout("dropout", dropout)
        self.buffer_policy: Buffers = buffers
        self.network: nn.Module = copy.deepcopy(student)._apply(at_least_float32).requires_grad_(requires_grad=False)
        if dropout is not None:
            set_dropout(self.network, dropout)

    @property
    def teacher(self) -> "Teacher":
        """Itself: a teacher can be the whole memory of a method, as well as a part of one."""
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Logits:
        if self.buffer_policy == "own" or not self.training:
            output: Logits = self.network(x)
            return output
        return untracked(self.network, x)

    @torch.no_grad()
    def update(self, student: nn.Module, *, decay: float) -> None:
        """teacher = decay · teacher + (1 - decay) · student."""
        _average(list(self.network.parameters()), list(student.parameters()), decay)
        if self.buffer_policy == "own":
            return
        ours, theirs = list(self.network.buffers()), list(student.buffers())
        if self.buffer_policy == "average":
            floating = [i for i, buffer in enumerate(ours) if buffer.is_floating_point()]
            _average([ours[i] for i in floating], [theirs[i] for i in floating], decay)
            ours = [buffer for buffer in ours if not buffer.is_floating_point()]
            theirs = [buffer for buffer in theirs if not buffer.is_floating_point()]
        for own, new in zip(ours, theirs, strict=True):
            own.copy_(new)


Own = TypeVar("Own", bound=nn.Module)


class Memory(nn.Module, Generic[Own]):
    """A teacher, and what else a method keeps from step to step, for instance a generator that it trains."""

    def __init__(self, teacher: Teacher, own: Own) -> None:
        super().__init__()
        self.teacher = teacher
        self.own = own

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As every module; also reads the names in checkpoints of version 0.1."""
        return super().load_state_dict({_name(old): value for old, value in state_dict.items()}, strict, assign)


def _name(old: str) -> str:
    if old.startswith(("teacher.", "own.")):
        return old
    return f"teacher.{old}" if old.startswith("network.") else "own." + re.sub(r"^(denoise|generator)\.", "", old)


def _average(averages: list[Tensor], values: list[Tensor], decay: float) -> None:
    """One fused update of all tensors; a Python loop costs more than the arithmetic."""
    if averages:
        values = [value.to(average.dtype) for average, value in zip(averages, values, strict=True)]
        torch._foreach_lerp_(averages, values, 1 - decay)
