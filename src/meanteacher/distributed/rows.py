"""The rows of a batch that is divided over several processes.

A step has the batch of one process. Rank r of W computes rows r, r + W, r + 2 W … of it, and then every rank knows the
outputs of all rows: costs are computed by every rank, over the whole batch. Outputs are small, so that costs little.

The gradient of such a cost reaches the rank's own rows only. It is multiplied by W there and averaged over the ranks
afterwards, so that parameters before and after the exchange both get the gradient of one process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meanteacher.distributed.ranks import Ranks


@dataclass(frozen=True, slots=True)
class _Step:
    ranks: Ranks
    n_rows: int
    synchronised: bool


_step: ContextVar[_Step | None] = ContextVar("step", default=None)
_STATISTICS = "adding up batch statistics"


@contextmanager
def step_of(ranks: Ranks, n_rows: int, *, synchronised: bool = False) -> Iterator[None]:
    """A step on a batch of `n_rows` rows; this process has those of its rank. Synchronised are batch statistics."""
    before = _step.set(_Step(ranks, n_rows, synchronised) if ranks.size > 1 else None)
    try:
        yield
    finally:
        _step.reset(before)


def all_rows(x: Tensor) -> Tensor:
    """What every rank computed for its rows [n, ...], as [B, ...] of the whole batch; x itself with one process.

    The gradient reaches this rank's rows.
    """
    step = _step.get()
    if step is None:
        return x
    gathered: Tensor = _AllRows.apply(x, step.ranks, step.n_rows)  # type: ignore[no-untyped-call]
    return gathered


def normal_rows(like: Tensor) -> Tensor:
    """Standard normal noise for this rank's rows [n, ...], as one process would have drawn it for them."""
    step = _step.get()
    if step is None:
        return torch.randn_like(like)
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    whole = torch.empty(
        (step.n_rows, *like.shape[1:]), dtype=like.dtype, device=like.device, memory_format=layout
    ).normal_()
    return whole[step.ranks.rows].contiguous(memory_format=layout)


def is_synchronised() -> bool:
    """Whether the batch statistics of this step are those of all ranks."""
    step = _step.get()
    return step is not None and step.synchronised


def over_ranks(statistics: Tensor) -> Tensor:
    """The sum of batch statistics over the ranks, with gradient, in a step where these are synchronised."""
    step = _step.get()
    assert step is not None
    total: Tensor = _Sum.apply(statistics, step.ranks)  # type: ignore[no-untyped-call]
    return total


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, n_rows: int) -> Tensor:
        ctx.ranks, ctx.n_rows, ctx.shape = ranks, n_rows, x.shape
        return ranks.gather_rows(x, n_rows, "gathering the outputs of a step")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        blocks = gradient.reshape(-1, ctx.n_rows, *gradient.shape[1:])
        return blocks[:, ctx.ranks.rows].reshape(ctx.shape) * ctx.ranks.size, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.summed(x, _STATISTICS)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.summed(gradient, _STATISTICS), None
