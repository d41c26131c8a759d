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
    generator: torch.Generator


_step: ContextVar[_Step | None] = ContextVar("step", default=None)


@contextmanager
def step_of(ranks: Ranks, n_rows: int, generator: torch.Generator) -> Iterator[None]:
    """A step on a batch of `n_rows` rows, of which this process has its own. All ranks have the same generator."""
    before = _step.set(_Step(ranks, n_rows, generator) if ranks.size > 1 else None)
    try:
        yield
    finally:
        _step.reset(before)


def all_rows(x: Tensor) -> Tensor:
    """What every rank computed for its rows [n, ...], as [B, ...] of the whole batch; x itself with one process.

    The gradient reaches this rank's rows.

    >>> all_rows(torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    step = _step.get()
    if step is None:
        return x
    gathered: Tensor = _AllRows.apply(x, step.ranks, step.n_rows)  # type: ignore[no-untyped-call]
    return gathered


def own_rows(x: Tensor) -> Tensor:
    """This rank's rows of a tensor [B, ...] of the whole batch; x itself with one process.

    >>> own_rows(torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    step = _step.get()
    return x if step is None else x[step.ranks.rows]


def shared_generator() -> torch.Generator | None:
    """What a method draws from if all ranks have to draw the same; None, for the global generator, with one process.

    >>> torch.randperm(3, generator=shared_generator()).shape
    torch.Size([3])
    """
    step = _step.get()
    return None if step is None else step.generator


def normal_rows(like: Tensor) -> Tensor:
    """Standard normal noise for this rank's rows [n, ...], as one process would have drawn it for them.

    >>> normal_rows(torch.zeros(2, 5)).shape
    torch.Size([2, 5])
    """
    step = _step.get()
    if step is None:
        return torch.randn_like(like)
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    whole = torch.empty((step.n_rows, *like.shape[1:]), dtype=like.dtype, device=like.device, memory_format=layout)
    return whole.normal_(generator=step.generator)[step.ranks.rows].contiguous(memory_format=layout)


def over_ranks(statistics: Tensor, ranks: Ranks) -> Tensor:
    """The sum of batch statistics over the ranks, with gradient."""
    total: Tensor = _Sum.apply(statistics, ranks)  # type: ignore[no-untyped-call]
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
        return ranks.summed(x, "adding up batch statistics")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.summed(gradient, "adding up batch statistics"), None
