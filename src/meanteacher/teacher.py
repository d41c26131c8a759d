"""The weight-averaged copy of the student, and the memory of methods that keep more than this copy."""

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from meanteacher.core import InputError, check_choice
from meanteacher.passes import at_least_float32, copied, untracked

Buffers = Literal["own", "average", "copy"]
"""Source of the teacher's buffers, such as batch-normalisation statistics.

own      the teacher runs in training mode and keeps statistics of its own activations, as in the authors' code
average  buffers are averaged exponentially, like the weights
copy     buffers are the student's latest
"""


def warmed_up(decay: float, step: int) -> float:
    """The decay to use after step `step`.

    The random initial weights would dominate an early exponential average. So the average is the plain mean of all
    students until the decay of that mean reaches `decay`.

    >>> warmed_up(0.99, 0), warmed_up(0.99, 1), warmed_up(0.99, 500)
    (0.0, 0.5, 0.99)
    """
    return min(1 - 1 / (step + 1), decay)


def check_dropout(name: str, rate: float | None) -> None:
    """Raise an InputError if a dropout rate is neither None nor a number from 0 to below 1."""
    if rate is not None and (isinstance(rate, bool) or not 0 <= rate < 1):
        raise InputError(
            f"{name} is a rate from 0 (no dropout) to below 1, or None for the student's own rate; got {rate}."
        )


def set_dropout(network: nn.Module, rate: float) -> None:
    """Set the rate of every dropout layer, or raise an InputError if there is none and the rate is above 0."""
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

    Its weights are float32 or float64, whatever the student's precision, because rounding to bfloat16 loses an update
    with decay 0.999. No gradient reaches it. It takes the student's arguments and returns the student's kind of output.

    Args:
        student: the network to average, of any class; not yet wrapped for several processes
        buffers: source of the teacher's buffers
        dropout: dropout rate of the teacher's passes in training (Figure 4b); None for the student's rate
        in_host_memory: keep the average on the CPU and copy it to the device of the inputs for each pass. This leaves
            the device's memory to the student, and costs a copy of all weights per pass and per update.

    Raises:
        InputError: the student has lazy layers whose shapes are not known yet, or no dropout layer for the rate.

    >>> student = nn.Linear(1, 1)
    >>> teacher = Teacher(student)
    >>> first = student.weight.item()
    >>> with torch.no_grad():
    ...     _ = student.weight.add_(1.0)
    >>> teacher.update(student, decay=0.75)
    >>> round(teacher.network.weight.item() - first, 4)
    0.25
    """

    def __init__(
        self,
        student: nn.Module,
        *,
        buffers: Buffers = "own",
        dropout: float | None = None,
        in_host_memory: bool = False,
    ) -> None:
        super().__init__()
        check_choice("buffers", buffers, get_args(Buffers))
        check_dropout("dropout", dropout)
        if any(is_lazy(parameter) for parameter in student.parameters()):
            raise InputError(
                f"{type(student).__name__} has lazy layers, whose weights do not exist before the first pass. Pass one "
                "batch through the student before you create its teacher."
            )
        self.buffer_policy: Buffers = buffers
        self.in_host_memory = in_host_memory
        self.network: nn.Module = copied(student)._apply(at_least_float32).requires_grad_(requires_grad=False)
        if in_host_memory:
            self.network.cpu()
        self._modes: list[tuple[nn.Module, bool]] = []
        if dropout is not None:
            set_dropout(self.network, dropout)

    @property
    def teacher(self) -> "Teacher":
        """The teacher itself, because it may be the whole memory of a method or a part of it (`Memory`)."""
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Teacher":
        """Serves `to` and similar functions; a teacher in host memory stays on the CPU."""
        super()._apply((lambda x: fn(x).cpu()) if self.in_host_memory else fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def train(self, mode: bool = True) -> "Teacher":
        self._modes = []
        return super().train(mode)

    def predictor(self) -> nn.Module:
        """The network in evaluation mode. The next pass in training restores the mode of every layer."""
        if not self._modes:
            self._modes = [(module, module.training) for module in self.network.modules()]
        return self.network.eval()

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            for module, mode in self._modes:
                module.training = mode
            self._modes = []
        # The inputs of a student in half precision are in half precision too, but the teacher's weights are not.
        args = tuple(map(_wide, args))
        kwargs = {name: _wide(value) for name, value in kwargs.items()}
        tracks = self.buffer_policy == "own" or not self.training
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if self.in_host_memory and inputs and inputs[0].device.type != "cpu":
            return self._pass_on(inputs[0].device, args, kwargs, tracks=tracks)
        return self.network(*args, **kwargs) if tracks else untracked(self.network, *args, **kwargs)

    def _pass_on(self, device: torch.device, args: Any, kwargs: Any, *, tracks: bool) -> Any:
        """A pass with a copy of the weights on another device; running statistics are copied back if it tracks them."""
        buffers = dict(self.network.named_buffers())
        copies = {name: x.to(device) for name, x in (*self.network.named_parameters(), *buffers.items())}
        output = functional_call(self.network, copies, args, kwargs)
        if tracks:
            for name, buffer in buffers.items():
                buffer.copy_(copies[name])
        return output

    @torch.no_grad()
    def update(self, student: nn.Module, *, decay: float) -> None:
        """Set teacher = decay · teacher + (1 - decay) · student."""
        _average(list(zip(self.network.parameters(), student.parameters(), strict=True)), decay)
        if self.buffer_policy == "own":
            return
        averaged = []
        for own, new in zip(self.network.buffers(), student.buffers(), strict=True):
            if self.buffer_policy == "average" and own.is_floating_point():
                averaged.append((own, new))
            else:
                own.copy_(new)
        _average(averaged, decay)


Own = TypeVar("Own", bound=nn.Module)


class Memory(nn.Module, Generic[Own]):
    """A teacher and the method's further state, for instance a generator that it trains."""

    def __init__(self, teacher: Teacher, own: Own) -> None:
        super().__init__()
        self.teacher = teacher
        self.own = own


def _wide(value: Any) -> Any:
    return at_least_float32(value) if isinstance(value, Tensor) else value


def _average(pairs: list[tuple[Tensor, Tensor]], decay: float) -> None:
    """Update all averages in one fused operation, because a Python loop costs more than the arithmetic."""
    if pairs:
        values = [value.to(average.device, average.dtype) for average, value in pairs]
        torch._foreach_lerp_([average for average, _ in pairs], values, 1 - decay)
