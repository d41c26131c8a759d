"""A step that is divided: over the ranks of a run, and within a process over parts that fit into its memory."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from meanteacher.core import Batch, DivergedError, InputError, LostRankError, Method, StepOutput
from meanteacher.distributed import Ranks, all_rows, group_of
from meanteacher.passes import Logits, at_least_float32, untracked
from meanteacher.seeding import seed_global
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

    Parts of `micro_batch` rows are computed one after the other and once more in the backward pass, so that the
    activations of one part are in memory at a time. Batch statistics are those of a part.
    """

    def __init__(self, network: nn.Module, micro_batch: int | None) -> None:
        super().__init__()
        self.network, self.micro_batch = network, micro_batch
        self.training = network.training

    def forward(self, x: Tensor) -> Logits:
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
def whole_batches(
    state: TrainState, method: Method, ranks: Ranks, micro_batch: int | None
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Student and memory for one call of `Method.forward`: the student and the predictor are `WholeBatch`es in it."""
    student, memory = state.student, state.memory
    if ranks.size == 1 and micro_batch is None:
        yield student, memory
        return
    predictor = state.predictor(method)
    wrapped = WholeBatch(predictor, micro_batch)
    held_by = [
        (module, name) for module in memory.modules() for name, child in module.named_children() if child is predictor
    ]
    for module, name in held_by:
        setattr(module, name, wrapped)
    try:
        yield WholeBatch(student, micro_batch), wrapped if predictor is memory else memory
    finally:
        for module, name in held_by:
            setattr(module, name, predictor)


def seed_networks(seed: int, step: int, ranks: Ranks) -> None:
    """Seed what networks draw in a step: each of several ranks draws for itself, unlike with `shared_generator`."""
    seed_global(seed, "network noise" if ranks.size == 1 else f"network noise of rank {ranks.rank}", step)


Step = Callable[[Callable[[], Tensor]], Tensor]
"""Calls the function that computes the total cost of a step, and returns the cost, ready for `backward`."""


def engine(trained: Sequence[nn.Parameter], ranks: Ranks) -> Step:
    """What computes the cost of a step; with several processes `backward` then averages gradients over them.

    torch's `DistributedDataParallel` sends gradients while others are still computed. It is around a module whose pass
    is the whole step, so a method may pass any network any number of times.
    """
    if ranks.size == 1:
        return lambda compute: compute()
    group = group_of(trained[0].device)
    return DistributedDataParallel(
        _WholeStep(trained), process_group=group, find_unused_parameters=True, gradient_as_bucket_view=True
    )


class _WholeStep(nn.Module):
    def __init__(self, trained: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.trained = nn.ParameterList(trained)

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


@contextmanager
def averaged_statistics(state: TrainState, ranks: Ranks) -> Iterator[None]:
    """Replace the buffers that networks write in the block, such as batch statistics, by their means over the ranks.

    All ranks then have the same state after every step. Running means are linear in the statistics of the batches, so
    averaging them in every step is averaging them once at the end.
    """

    def versions() -> list[tuple[Tensor, object]]:
        modules = (state.student, state.memory) if ranks.size > 1 else ()
        named = [(name, b) for module in modules for name, b in module.named_buffers() if b.is_floating_point()]
        # torch does not count what its batch norm writes, so running statistics get a version that equals no other.
        return [(b, object() if name.rpartition(".")[2].startswith("running_") else b._version) for name, b in named]

    before = versions()
    yield
    changed = zip(versions(), before, strict=True)
    written = [now for (now, version), (buffer, old) in changed if now is not buffer or version != old]
    ranks.average_(written, f"averaging the batch statistics of step {state.step}")


@contextmanager
def explained(method: Method, n_rows: int, ranks: Ranks) -> Iterator[None]:
    """Turn an error of a method's own code into one that says which rows a rank has: another try would not help."""
    try:
        yield
    except Exception as error:
        if ranks.size == 1 or isinstance(error, InputError | DivergedError | LostRankError):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"{type(method).__name__}.forward failed at {Path(frame.filename).name}:{frame.lineno} ({reason}). With "
            f"{ranks.size} processes a view has {len(range(n_rows)[ranks.rows])} of the {n_rows} rows of the batch; "
            "labels, index and the outputs of networks have all of them. Take all_rows(view) and own_rows(rows) of "
            "meanteacher.distributed, or start one process."
        ) from error


def check_costs(output: StepOutput, ranks: Ranks) -> None:
    """Refuse costs that differ between the ranks, by more than rounding: every rank computes the whole batch's."""
    own = {name: float(cost.value.detach()) for name, cost in output.costs.items()} if ranks.size > 1 else {}
    for other in ranks.gather(own, "comparing the costs"):
        for name, value in own.items():
            if abs(value - other[name]) > 1e-3 * max(abs(value), abs(other[name])):
                raise InputError(
                    f"The cost '{name}' is {value:.6g} on rank {ranks.rank} and {other[name]:.6g} on another, but each "
                    "rank computes the cost of the whole batch. Draw noise with generator=shared_generator() of "
                    "meanteacher.distributed, and compute costs from the outputs of all rows."
                )
