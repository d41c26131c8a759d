"""A network's output, and passes that keep no statistics, skip dropout or repeat their noise."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from meanteacher.core import InputError

Logits = Tensor | tuple[Tensor, Tensor]
"""A network's output: logits [B, C] or [B, C, ...], or a pair of them, for classification and for consistency."""

Network = TypeVar("Network", bound=nn.Module)


class LogitsOf(nn.Module):
    """A network that selects the logits from another network's output.

    It turns any `nn.Module` into a student, whether it returns a dict, a list, a tuple or an object. Arguments are
    passed through.

    Args:
        network: the other network; its parameters, buffers and mode are shared
        output: where the logits are in the network's output: the name of an attribute or the key of a dict, the
            position in a tuple, or a function of the output, which may return a pair of logits for a network with two
            outputs. A module with a name or a position can be pickled, one with a lambda cannot.
        class_axis: axis of the classes in the logits. It is moved to the second axis, where every cost and method
            expects it; None if it is the second axis already.

    Example::

        student = LogitsOf(BertForTokenClassification(config), "logits", class_axis=-1)

    >>> LogitsOf(nn.Identity(), "logits")({"logits": torch.zeros(4, 3), "features": None}).shape
    torch.Size([4, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        output: str | int | Callable[[Any], Logits] | None = None,
        *,
        class_axis: int | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.output, self.class_axis = output, class_axis
        self.training = network.training

    def forward(self, *args: Any, **kwargs: Any) -> Logits:
        output: Logits = self._selected(self.network(*args, **kwargs))
        if self.class_axis is None:
            return output
        if isinstance(output, tuple):
            first, second = (logits.movedim(self.class_axis, 1) for logits in output)
            return first, second
        return output.movedim(self.class_axis, 1)

    def _selected(self, output: Any) -> Any:
        if self.output is None:
            return output
        if callable(self.output):
            return self.output(output)
        try:
            if isinstance(self.output, int) or isinstance(output, Mapping):
                return output[self.output]
            return getattr(output, self.output)
        except (AttributeError, LookupError, TypeError) as error:
            raise InputError(
                f"The network returns {_in_words(output)}, which has no output {self.output!r}. Give LogitsOf the name "
                "or the position of the logits, or a function that selects them."
            ) from error


def to_channels_last(x: Tensor) -> Tensor:
    """The tensor with its images or convolution weights in the channels_last memory format, which is fastest."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def both_outputs(output: Logits) -> tuple[Tensor, Tensor]:
    """The logits for classification and for consistency; the same tensor twice if there is one output.

    Logits in half precision become float32, because a cost compares differences that bfloat16 would round away. An
    InputError is raised for other outputs, for instance logits and features.
    """
    first, second = output if isinstance(output, tuple) and len(output) == 2 else (output, output)
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.shape != second.shape:
        raise InputError(
            f"The network returns {_in_words(output)}, but a method needs a tensor of logits, or a pair of them with "
            "one shape, for classification and for consistency. Select the logits, for instance with "
            'LogitsOf(network, "logits"), or with their position, LogitsOf(network, 0).'
        )
    return at_least_float32(first), at_least_float32(second)


def _in_words(output: object) -> str:
    if isinstance(output, Tensor):
        return str(list(output.shape))
    if isinstance(output, tuple | list) and type(output) in (tuple, list):
        return f"a {type(output).__name__} of {', '.join(map(_in_words, output))}"
    return f"a {type(output).__name__}" if isinstance(output, dict) else f"an object of class {type(output).__name__}"


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32 if it is in half precision; float64 and whole numbers are unchanged.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def per_place(rows: Tensor, shape: torch.Size) -> Tensor:
    """A mask of places [B, ...]: a mask of rows [B] is expanded to all places, and any other is an InputError.

    >>> per_place(torch.tensor([True, False]), torch.Size([2, 3])).tolist()
    [[True, True, True], [False, False, False]]
    """
    if rows.shape == shape:
        return rows
    if rows.shape != shape[:1]:
        raise InputError(
            f"A mask of the shape {list(rows.shape)} cannot select among rows of the shape {list(shape)}. Give one "
            f"value per row, [{shape[0]}]{', or per place' if len(shape) > 1 else ''}; for indices of rows, set "
            "mask[indices] = True."
        )
    return rows.view(-1, *[1] * (len(shape) - 1)).expand(shape)


def class_output(output: Logits) -> Tensor:
    """The logits for classification, which are also a teacher's target and the logits that are evaluated."""
    return both_outputs(output)[0]


def untracked(network: nn.Module, *args: Any, parameters: Mapping[str, Tensor] | None = None, **kwargs: Any) -> Any:
    """The output of a pass that leaves running statistics unchanged: its writes go to discarded copies.

    In training mode a layer updates its statistics as it runs. An extra pass over the same images must not count twice,
    and a pass over other images, such as adversarial ones, must not count. `parameters` replace the network's own.
    """
    copies = {name: buffer.clone() for name, buffer in network.named_buffers()}
    return functional_call(network, {**copies, **(parameters or {})}, args, kwargs)


def copied(network: Network) -> Network:
    """A deep copy, also of a network that holds computed tensors, such as the weights of torch's older `weight_norm`.

    `deepcopy` refuses tensors with a gradient function, so they are copied detached here. The network computes them
    again in its next pass.
    """
    held = (value for module in network.modules() for value in vars(module).values())
    computed = {id(x): x.detach().clone() for x in held if isinstance(x, Tensor) and x.grad_fn is not None}
    return copy.deepcopy(network, computed)


def tried_out(network: nn.Module, input_shape: tuple[int, ...]) -> Any:
    """Output of a copy of the network for two examples of zeros, floating or else whole; None if it takes neither.

    The network itself and the generators are left unchanged.
    """
    trial = copied(network)
    own = [x for x in chain(trial.parameters(), trial.buffers()) if x.is_floating_point()]
    like = own[0] if own else torch.empty(0)
    for dtype in (like.dtype, torch.int64):
        # If it rejects the input for another reason, its first pass on the caller's data reports the error.
        with suppress(Exception), torch.no_grad(), SameNoise(like.device).again():
            return trial(torch.zeros(2, *input_shape, dtype=dtype, device=like.device))
    return None


@contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Make every dropout layer pass its input through; all other layers keep their mode."""
    active = [layer for layer in network.modules() if isinstance(layer, _DropoutNd) and layer.training]
    for layer in active:
        layer.training = False
    try:
        yield
    finally:
        for layer in active:
            layer.training = True


class SameNoise:
    """Repeats the noise of a pass: the draws in every `with noise.again()` are those that follow its construction.

    Small differences between two passes can only be measured if both drop the same units.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._state = noise_state(device)

    @contextmanager
    def again(self) -> Iterator[None]:
        now = noise_state(self._device)
        set_noise_state(self._device, self._state)
        try:
            yield
        finally:
            set_noise_state(self._device, now)


def noise_state(device: torch.device) -> tuple[Tensor, ...]:
    """The states of the global generators, of the CPU and of the device, from which networks draw."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    if device.type == "mps":
        return torch.get_rng_state(), torch.mps.get_rng_state()
    return (torch.get_rng_state(),)


def set_noise_state(device: torch.device, state: tuple[Tensor, ...]) -> None:
    """Restore a state of `noise_state`."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state[1])
