"""The weight-averaged copy of the student, and the memory of methods that keep more than this copy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import TypeVar

from meanteacher.core import DivergedError, InputError, check_choice
from meanteacher.devices import is_readable
from meanteacher.passes import at_least_float32, copied, untracked

__all__ = ["Buffers", "Memory", "Teacher", "warmed_up"]

Buffers = Literal["own", "average", "copy"]
"""Source of the teacher's buffers, such as batch-normalisation statistics.

own      the teacher runs in training mode and keeps statistics of its own activations, as in the authors' code
average  buffers are averaged exponentially, like the weights
copy     buffers are the student's latest
"""

Student = TypeVar("Student", bound=nn.Module, default=nn.Module)
Given = ParamSpec("Given")
Returned_co = TypeVar("Returned_co", covariant=True)


class _HasForward(Protocol[Given, Returned_co]):
    def forward(self, *args: Given.args, **kwargs: Given.kwargs) -> Returned_co: ...


def warmed_up(decay: float, updates: int) -> float:
    """The decay of an update after `updates` earlier ones.

    The random initial weights would dominate an early exponential average. So the average is the plain mean of all
    students until the decay of that mean reaches `decay`.

    >>> warmed_up(0.99, 0), warmed_up(0.99, 1), warmed_up(0.99, 500)
    (0.0, 0.5, 0.99)
    """
    return min(1 - 1 / (updates + 1), decay)


def check_decay(decay: object) -> None:
    """Raise an InputError if an EMA decay is not a number from 0 to 1."""
    if isinstance(decay, bool) or not isinstance(decay, Real) or not 0 <= float(decay) <= 1:
        raise InputError(
            f"decay is a number from 0 (the teacher is the latest student) to 1 (it never moves); got {decay!r}. Usual "
            "values are 0.99 to 0.999; a longer average needs a longer training."
        )


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


class Teacher(nn.Module, Generic[Student]):
    """A network whose weights are the exponential moving average of the student's (Sec. 2).

    Its weights are float32 or float64, whatever the student's precision, because rounding to bfloat16 loses an update
    with decay 0.999. No gradient reaches it. It takes the student's arguments and returns the student's kind of output.

    In training mode, which is the default, `teacher(x)` is the target of a training step: batches normalise
    themselves and dropout drops. `teacher.eval()` lets it answer as `predictor()` does. Outside of a pass `network` is
    always in evaluation mode. Number of updates and weights are part of its `state_dict`.

    Args:
        student: the network to average, of any class and in either mode. A wrapper of DistributedDataParallel or
            torch.compile is looked through.
        decay: EMA decay, from 0 to 1
        warm_up: take the plain mean of all students until its decay reaches `decay`, see `warmed_up`. Without it the
            random first weights are a part of the average for several times 1 / (1 - decay) updates.
        buffers: source of the teacher's buffers
        dropout: dropout rate of the teacher's passes in training (Figure 4b); None for the student's rate
        in_host_memory: keep the average on the CPU and copy it to the device of the inputs for each pass. This leaves
            the device's memory to the student, and costs a copy of all weights per pass and per update.

    Raises:
        InputError: the student has lazy layers whose shapes are not known yet, the decay is out of range, or no
            dropout layer can have the rate.

    >>> student = nn.Linear(1, 1)
    >>> teacher = Teacher(student, decay=0.75, warm_up=False)
    >>> first = student.weight.item()
    >>> with torch.no_grad():
    ...     _ = student.weight.add_(1.0)
    >>> teacher.update(student)
    >>> round(teacher.network.weight.item() - first, 4)
    0.25
    """

    def __init__(
        self,
        student: Student,
        decay: float = 0.999,
        *,
        warm_up: bool = True,
        buffers: Buffers = "own",
        dropout: float | None = None,
        in_host_memory: bool = False,
    ) -> None:
        super().__init__()
        check_decay(decay)
        check_choice("buffers", buffers, get_args(Buffers))
        check_dropout("dropout", dropout)
        student = _unwrapped(student)
        if _is_sharded(student):
            raise InputError("The student is sharded already. Make its teacher before fully_shard(student).")
        if any(is_lazy(parameter) for parameter in student.parameters()):
            raise InputError(
                f"{type(student).__name__} has lazy layers, whose weights do not exist before the first pass. Pass one "
                "batch through the student before you create its teacher."
            )
        self.decay, self.warm_up = decay, warm_up
        self.buffer_policy: Buffers = buffers
        self.in_host_memory = in_host_memory
        self.n_updates = 0
        self._is_fed = False
        self.network: Student = copied(student)
        self.network._apply(at_least_float32).requires_grad_(requires_grad=False)  # type: ignore[no-untyped-call]
        if in_host_memory:
            self.network.cpu()
        if dropout is not None:
            set_dropout(self.network, dropout)
        self._keeps_statistics = buffers == "own" and any(
            name.rpartition(".")[2].startswith("running_") for name, _ in self.network.named_buffers()
        )
        # Some libraries return a network in evaluation mode, which says nothing about its layers.
        self._rest(self.network if student.training else self.network.train())

    if TYPE_CHECKING:

        def __call__(
            self: "Teacher[_HasForward[Given, Returned_co]]",  # type: ignore[type-var]
            *args: Given.args,
            **kwargs: Given.kwargs,
        ) -> Returned_co: ...

    def _rest(self, network: nn.Module) -> None:
        """Note which layers a pass in training puts into training mode, and put all into evaluation mode until then."""
        self._trained = [module for module in network.modules() if module.training]
        network.eval()

    def train(self, mode: bool = True) -> "Teacher[Student]":
        """Answer as a target of training, or with `mode=False` as `predictor()`."""
        self.training = mode
        if mode:
            self._rest(self.network.train())
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Teacher[Student]":
        """Serves `to`, `half` and similar functions. The average keeps its precision, and its place in host memory."""

        def moved(x: Tensor) -> Tensor:
            new = fn(x)
            if new.dtype in (torch.float16, torch.bfloat16):
                new = x.to(new.device)
            return new.cpu() if self.in_host_memory else new

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.n_updates, int(self._is_fed)])

    def set_extra_state(self, state: Tensor) -> None:
        self.n_updates, is_fed = state.tolist()
        self._is_fed = bool(is_fed)

    def predictor(self) -> Student:
        """A copy of the network in evaluation mode, to evaluate and to ship. Later updates do not change it.

        Raises:
            InputError: the teacher has statistics of its own and was never run in training, or it is sharded.
            DivergedError: a weight is not finite.
        """
        self._check_answer()
        if _is_sharded(self.network):
            raise InputError(
                "A sharded teacher cannot be copied. Gather its weights and load them into an unsharded network: "
                "get_model_state_dict(teacher.network, options=StateDictOptions(full_state_dict=True))."
            )
        for name, average in self.network.named_parameters():
            if not bool(torch.isfinite(average).all()):
                raise DivergedError(f"The teacher's '{name}' is not finite. {_DIVERGED}")
        return copied(self.network)

    @contextmanager
    def average_parameters(self, student: nn.Module) -> Iterator[None]:
        """Give the student the teacher's weights and buffers in a `with` block, and its own back at the end.

        >>> student = nn.Linear(1, 1)
        >>> teacher = Teacher(student)
        >>> with torch.no_grad():
        ...     _ = student.weight.fill_(7.0)
        >>> with teacher.average_parameters(student):
        ...     bool(student.weight == 7)
        False
        >>> student.weight.item()
        7.0
        """
        self._check_answer()
        student = _unwrapped(student)
        pairs = [*self._parameter_pairs(student), *self._buffer_pairs(student)]
        own = [tensor.detach().clone() for _, tensor in pairs]
        with torch.no_grad():
            for average, tensor in pairs:
                tensor.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for (_, tensor), value in zip(pairs, own, strict=True):
                    tensor.copy_(value)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # The inputs of a student in half precision are in half precision too, but the teacher's weights are not.
        args, kwargs = tree_map_only(Tensor, at_least_float32, (args, kwargs))
        if not self.training:
            self._check_answer()
            return self._pass(args, kwargs, tracks=True)
        self._is_fed = True
        for module in self._trained:
            module.training = True
        try:
            return self._pass(args, kwargs, tracks=self.buffer_policy == "own")
        finally:
            for module in self._trained:
                module.training = False

    def _check_answer(self) -> None:
        if self._keeps_statistics and self.n_updates and not self._is_fed:
            raise InputError(
                "The teacher's batch statistics were never fed: buffers='own' keeps statistics of the teacher's own "
                "passes in training, and there was none. Call teacher(x) in every step while it is in training mode, "
                "or make it with buffers='average' or 'copy'."
            )

    def _pass(self, args: Any, kwargs: Any, *, tracks: bool) -> Any:
        if self.in_host_memory:
            inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
            if inputs and inputs[0].device.type != "cpu":
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
    def update(self, student: nn.Module, *, decay: float | None = None) -> None:
        """Set teacher = decay · teacher + (1 - decay) · student. Call it after every step of the optimiser.

        Args:
            student: the network that the teacher was made from
            decay: replaces the teacher's own in this update, for a decay that changes; the warm-up applies to it, too

        Raises:
            InputError: the decay is not from 0 to 1, the student has other parameters than the teacher, or the teacher
                has statistics of its own and is in evaluation mode, in which they would not follow its weights.
            DivergedError: a weight of the student is not finite. It would stay in the average for good, so the
                teacher is unchanged. Weights on a GPU are not read, in order not to wait for it; `predictor` reads.
        """
        if decay is None:
            decay = self.decay
        else:
            check_decay(decay)
        if self._keeps_statistics and not self.training:
            raise InputError(
                "The teacher is in evaluation mode, in which its own batch statistics do not follow its weights. Call "
                "teacher.train() before you train on, or make the teacher with buffers='average' or 'copy'."
            )
        student = _unwrapped(student)
        parameters, buffers = self._parameter_pairs(student), []
        if self.buffer_policy != "own":
            buffers = self._buffer_pairs(student)
        _check_finite(student, [new for _, new in parameters])
        if self.warm_up:
            decay = warmed_up(decay, self.n_updates)
        _average(parameters, decay)
        averaged = []
        for own, new in buffers:
            if self.buffer_policy == "average" and own.is_floating_point():
                averaged.append((own, new))
            else:
                own.copy_(new)
        _average(averaged, decay)
        self.n_updates += 1

    def _parameter_pairs(self, student: nn.Module) -> list[tuple[Tensor, Tensor]]:
        return _pairs("parameter", dict(self.network.named_parameters()), dict(student.named_parameters()))

    def _buffer_pairs(self, student: nn.Module) -> list[tuple[Tensor, Tensor]]:
        return _pairs("buffer", dict(self.network.named_buffers()), dict(student.named_buffers()))


Own = TypeVar("Own", bound=nn.Module)


class Memory(nn.Module, Generic[Own]):
    """A teacher and the method's further state, for instance a generator that it trains."""

    def __init__(self, teacher: Teacher, own: Own) -> None:
        super().__init__()
        self.teacher = teacher
        self.own = own


def teacher_of(memory: Teacher | Memory[Any]) -> Teacher:
    """The teacher of a method's memory, which is a teacher or holds one."""
    return memory if isinstance(memory, Teacher) else memory.teacher


_DIVERGED = "Likely cause: the learning rate or a cost's weight is too large; lower it or ramp it up slowly."


def _unwrapped(network: Student) -> Student:
    """The network inside the wrappers of several processes and of the compiler."""
    inner: Any = network
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        else:
            return cast(Student, inner)


def _is_sharded(network: nn.Module) -> bool:
    return any(hasattr(parameter, "full_tensor") for parameter in network.parameters())


def _pairs(kind: str, averages: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The teacher's and the student's tensors of the same name, or an InputError if they differ in more than values."""
    names = list(averages)
    if names != list(values):
        missing, new = ([name for name in a if name not in b] for a, b in ((averages, values), (values, averages)))
        difference = "the same ones in another order"
        if missing or new:
            found = [f"no {kind} {name!r}" for name in missing[:3]] + [f"a further {kind} {name!r}" for name in new[:3]]
            difference = ", ".join(found)
        raise InputError(
            f"The teacher averages the student that it was made from, but this student has {difference}. Give "
            "update() the same network, and make a new teacher if layers were added, removed or tied."
        )
    pairs = [(average, values[name]) for name, average in averages.items()]
    for name, (average, value) in zip(names, pairs, strict=True):
        if average.shape != value.shape:
            raise InputError(
                f"The student's {kind} {name!r} has the shape {list(value.shape)}, the teacher's has "
                f"{list(average.shape)}. Give update() the network that the teacher was made from."
            )
    return pairs


def _check_finite(student: nn.Module, values: list[Tensor]) -> None:
    if not values or values[0].device.type != "cpu":
        return
    total = torch.stack(torch._foreach_norm(values)).sum()
    if is_readable(total) and not bool(total.isfinite()):
        for name, parameter in student.named_parameters():  # the norm alone may overflow
            if not bool(parameter.isfinite().all()):
                raise DivergedError(
                    f"The student's '{name}' is not finite. It was left out of the average, where it would stay for "
                    f"good. {_DIVERGED}"
                )


def _average(pairs: list[tuple[Tensor, Tensor]], decay: float) -> None:
    """Update all averages in one fused operation, because a Python loop costs more than the arithmetic."""
    if pairs:
        values = [_like(average, value) for average, value in pairs]
        torch._foreach_lerp_([average for average, _ in pairs], values, 1 - decay)


def _like(average: Tensor, value: Tensor) -> Tensor:
    """The value on the device and in the precision of its average; a shard is gathered if the average is whole."""
    if hasattr(value, "full_tensor") and not hasattr(average, "full_tensor"):
        value = value.full_tensor()
    return value.to(average.device, average.dtype)
