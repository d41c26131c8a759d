"""A step that is divided: over the ranks of a run, and within a process over parts that fit into its memory."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from meanteacher.core import Batch, Method
from meanteacher.distributed.ranks import Ranks
from meanteacher.distributed.rows import all_rows
from meanteacher.passes import Logits, at_least_float32, noise_state, set_noise_state, untracked
from meanteacher.seeding import set_global
from meanteacher.train.checkpoint import TrainState


def agreed_batch(batch: Batch, ranks: Ranks) -> Batch:
    """The batch with each row's labels and position from the rank that has it: a broken image may be replaced."""
    if ranks.size == 1:
        return batch
    labels = batch.labels[..., None].flatten(1)  # a column for each place
    own = torch.cat([batch.index[:, None], labels], 1)[ranks.rows]
    rows = ranks.gather_rows(own, len(labels), "agreeing on the rows of a batch")
    return replace(batch, labels=rows[:, 1:].reshape(batch.labels.shape).to(labels.dtype), index=rows[:, 0])


class WholeBatch(nn.Module):
    """A network that is given this rank's rows and returns the outputs of the whole batch.

    Each rank draws the network's own noise, such as dropout, for itself. Parts of `micro_batch` rows are computed one
    after the other and once more in the backward pass, so that the activations of one part are in memory at a time.
    Batch statistics are those of a part.
    """

    def __init__(self, network: nn.Module, ranks: Ranks, micro_batch: int | None) -> None:
        super().__init__()
        self.network = network
        self.ranks, self.micro_batch = ranks, micro_batch
        self.training = network.training

    def forward(self, x: Tensor) -> Logits:
        with _noise_of(self.ranks, x.device):
            output = self._own_rows(x)
        if isinstance(output, tuple):
            first, second = (all_rows(at_least_float32(part)) for part in output)
            return first, second
        return all_rows(at_least_float32(output))

    def _own_rows(self, x: Tensor) -> Logits:
        if self.micro_batch is None or len(x) <= self.micro_batch:
            output: Logits = self.network(x)
            return output
        outputs = [self._part(part) for part in x.split(self.micro_batch)]
        if isinstance(outputs[0], tuple):
            first, second = (torch.cat(parts) for parts in zip(*outputs, strict=True))
            return first, second
        return torch.cat(outputs)

    def _part(self, x: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return self.network(x)
        return checkpoint(_Repeatable(self.network), x, use_reentrant=False)


class _Repeatable:
    """A pass that can be repeated in the backward pass, when the network may have another mode and other parameters."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.parameters = dict(network.named_parameters(remove_duplicate=False))
        self.modes = [(module, module.training) for module in network.modules()]
        self.is_first = True

    def __call__(self, x: Tensor) -> Logits:
        if self.is_first:
            self.is_first = False
            output: Logits = self.network(x)
            return output
        now = [(module, module.training) for module, _ in self.modes]
        try:
            _set_modes(self.modes)
            # Running statistics count a part once.
            repeated: Logits = untracked(self.network, x, parameters=self.parameters)
            return repeated
        finally:
            _set_modes(now)


def _set_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


@contextmanager
def _noise_of(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Networks draw what is this rank's alone. What a method draws afterwards is the same on all ranks.

    The noise of a pass is a function of the generator's state and the rank. A pass that drew something moves the
    generator on by one draw, on every rank.
    """
    if ranks.size == 1:
        yield
        return
    before = noise_state(device)
    digest = hashlib.blake2b(before[0].numpy().tobytes() + str(ranks.rank).encode(), digest_size=8).digest()
    set_global(int.from_bytes(digest, "little") >> 1)
    seeded = noise_state(device)
    try:
        yield
    finally:
        drew = any(not torch.equal(*states) for states in zip(seeded, noise_state(device), strict=True))
        set_noise_state(device, before)
        if drew:
            torch.rand(1)


@contextmanager
def whole_batches(
    state: TrainState, method: Method, ranks: Ranks, micro_batch: int | None
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Student and memory for one call of `Method.forward`: the student and the predictor are `WholeBatch`es in it."""
    student, memory = state.student, state.memory
    if ranks.size == 1 and micro_batch is None:
        yield student, memory
        return
    predictor = state.predictor(method)
    wrapped = WholeBatch(predictor, ranks, micro_batch)
    held_by = [
        (module, name) for module in memory.modules() for name, child in module.named_children() if child is predictor
    ]
    for module, name in held_by:
        setattr(module, name, wrapped)
    try:
        yield WholeBatch(student, ranks, micro_batch), wrapped if predictor is memory else memory
    finally:
        for module, name in held_by:
            setattr(module, name, predictor)


Buffers = dict[str, Tensor]
"""Name -> its values on one rank."""


@torch.no_grad()
def merge_buffers(state: TrainState, ranks: Ranks) -> Buffers:
    """Replace the buffers that differ between the ranks, such as batch statistics, by their means over the ranks.

    Whole numbers become those of rank 0. What is returned is what they were on this rank.
    """
    if ranks.size == 1:
        return {}
    doing = f"merging the batch statistics of step {state.step}"
    buffers = _buffers(state)
    digests = {name: _digest(buffer) for name, buffer in buffers.items()}
    everywhere = ranks.gather(digests, doing)
    differ = [name for name in digests if len({other[name] for other in everywhere}) > 1]
    own = {name: buffers[name].detach().clone() for name in differ}
    floats = [buffers[name] for name in differ if buffers[name].is_floating_point()]
    means = [buffer.double() for buffer in floats] if floats and floats[0].device.type != "mps" else floats
    if means:
        ranks.average_(means, doing)
        torch._foreach_copy_(floats, means)
    counts = {name: buffers[name].cpu() for name in differ if not buffers[name].is_floating_point()}
    if counts:
        for name, value in ranks.from_first(lambda: counts, doing).items():
            buffers[name].copy_(value)
    return own


@torch.no_grad()
def _put_back(state: TrainState, own: Buffers) -> None:
    """Give this rank the buffers that it had before they were merged."""
    buffers = _buffers(state)
    for name, value in own.items():
        buffers[name].copy_(value)


@contextmanager
def merged_buffers(state: TrainState, ranks: Ranks, *, put_back: bool) -> Iterator[None]:
    """All ranks have the merged buffers within the block, and the state has those of each for an exact resume.

    With `put_back` each rank goes on with its own buffers afterwards.
    """
    own = merge_buffers(state, ranks)
    mine = {name: value.cpu() for name, value in own.items()}
    state.rank_buffers = ranks.gather(mine, f"saving step {state.step}") if ranks.size > 1 else []
    yield
    if put_back:
        _put_back(state, own)


def take_own_buffers(state: TrainState, ranks: Ranks) -> None:
    """After a checkpoint was read: go on with this rank's buffers if there were equally many ranks, else the merged."""
    if state.rank_buffers and len(state.rank_buffers) == ranks.size:
        _put_back(state, state.rank_buffers[ranks.rank])


def _buffers(state: TrainState) -> Buffers:
    modules = {"student": state.student, "memory": state.memory}
    return {f"{part}.{name}": b for part, module in modules.items() for name, b in module.named_buffers()}


def _digest(buffer: Tensor) -> bytes:
    values = buffer.detach().contiguous().cpu().flatten().view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()
