"""Passes through a network without its writes, without its dropout, or with the same noise again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

Logits = Tensor | tuple[Tensor, Tensor]
"""What a network returns: logits [B, C], or a pair of them, for classification and for consistency."""


def to_channels_last(x: Tensor) -> Tensor:
    """Images or convolution weights in the channels_last memory format, which is fastest; values are unchanged."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def both_outputs(output: Logits) -> tuple[Tensor, Tensor]:
    """The logits for classification and for consistency; the same tensor where there is one output.

    In float32 where the network computed in bfloat16: a cost compares differences that bfloat16 would round away.
    """
    first, second = output if isinstance(output, tuple) else (output, output)
    return at_least_float32(first), at_least_float32(second)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision as float32; float64 and whole numbers as they are.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def class_output(output: Logits) -> Tensor:
    """The logits for classification: a teacher's target, and what is evaluated."""
    return both_outputs(output)[0]


def untracked(network: nn.Module, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Logits:
    """A pass whose writes to running statistics go to copies and are dropped.

    In training mode a layer updates its statistics as it runs. An extra pass over the same images must not count
    twice, and a pass over other images, such as adversarial ones, must not count.

    Args:
        network: in any mode
        x: its input
        parameters: to use instead of the network's own, by name
    """
    spare = {name: buffer.clone() for name, buffer in network.named_buffers()}
    output: Logits = functional_call(network, {**spare, **(parameters or {})}, (x,))
    return output


@contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Every dropout layer passes its input through; all other layers stay in their mode."""
    active = [layer for layer in network.modules() if isinstance(layer, _DropoutNd) and layer.training]
    for layer in active:
        layer.training = False
    try:
        yield
    finally:
        for layer in active:
            layer.training = True


class SameNoise:
    """Repeats the noise of a pass: every `with` block draws what the first one drew.

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
    """The states of the CPU's generator and of the device's, from which its networks draw."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    if device.type == "mps":
        return torch.get_rng_state(), torch.mps.get_rng_state()
    return (torch.get_rng_state(),)


def set_noise_state(device: torch.device, state: tuple[Tensor, ...]) -> None:
    """Make the next draws those that follow a state of `noise_state`."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state[1])
