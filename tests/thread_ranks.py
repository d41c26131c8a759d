"""Ranks that are threads of this process and exchange in its memory: what one of them computes, in a moment."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from meanteacher.distributed import Ranks
from support import PATIENCE

T = TypeVar("T")


def in_threads(function: Callable[[Ranks], T], n: int) -> list[T]:
    """What the function returns on each of n ranks. If it raises an error on one of them, so does this."""
    barrier = threading.Barrier(n, timeout=PATIENCE)
    shown: list[Tensor] = [torch.empty(0)] * n

    class OfThread(Ranks):
        def _gathered(self, x: Tensor, doing: str) -> Tensor:
            shown[self.rank] = x
            barrier.wait()
            every = torch.stack(shown)
            barrier.wait()  # before anybody shows something else
            return every

        def summed(self, x: Tensor, doing: str) -> Tensor:
            return self._gathered(x.detach(), doing).sum(0)

        def broadcast_(self, tensors: Sequence[Tensor], doing: str) -> None:
            for tensor in tensors:
                tensor.data.copy_(self._gathered(tensor.detach(), doing)[0])

    def on(rank: int) -> T:
        try:
            return function(OfThread(rank, n))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(n) as threads:
        started = [threads.submit(on, rank) for rank in range(n)]
    errors = [each.exception() for each in started]
    # Of those that wait for a rank that has failed, each has an error, too.
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [each.result() for each in started]
