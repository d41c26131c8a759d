"""The only source of randomness: (seed, purpose, step) -> generator.

Nothing random is carried from one step to the next, so step t can be computed without step t-1: a run
resumes to the bit, and neither a worker count nor an evaluation in between changes what is drawn.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def derive_seed(seed: int, purpose: str, step: int = 0) -> int:
    """A 63-bit seed that is independent for every (seed, purpose, step).

    >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1)
    True
    >>> derive_seed(0, "order", 1) == derive_seed(0, "views", 1)
    False
    """
    digest = hashlib.blake2b(f"{seed}|{purpose}|{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A new generator whose draws are a function of its three arguments and of the kind of device.

    >>> torch.rand(1, generator=generator(0, "noise", 7)) == torch.rand(1, generator=generator(0, "noise", 7))
    tensor([True])
    """
    return torch.Generator(device).manual_seed(derive_seed(seed, purpose, step))


class RowGenerator(torch.Generator):
    """A generator for some of the rows of a batch, for which `drawn` returns what it draws for all of them."""

    n_rows: int
    rows: torch.Tensor
    """[k], the positions of the rows among all `n_rows`."""


def drawn(
    draw: Callable[..., torch.Tensor],
    shape: Sequence[int],
    source: torch.Generator,
    *,
    axis: int = 0,
    **options: Any,
) -> torch.Tensor:
    """`draw(shape, generator=source)`, where the axis counts the rows of a batch, or those of a `RowGenerator`.

    >>> whole = torch.rand(3, generator=generator(0, "noise"))
    >>> some = RowGenerator().manual_seed(derive_seed(0, "noise"))
    >>> some.n_rows, some.rows = 3, torch.tensor([0, 2])
    >>> bool((drawn(torch.rand, [2], some) == whole[[0, 2]]).all())
    True
    """
    if not isinstance(source, RowGenerator):
        return draw(shape, generator=source, **options)
    whole = (*shape[:axis], source.n_rows, *shape[axis + 1 :])
    return draw(whole, generator=source, **options).index_select(axis, source.rows)


@contextmanager
def isolated_global_randomness() -> Iterator[None]:
    """Restore the global torch generators of all devices afterwards.

    Dropout draws only from the global generator, so a step seeds it. The caller of a library must not notice this.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


def seed_global(seed: int, purpose: str, step: int = 0) -> None:
    """Make the next draws from the global generators (dropout), on any device, a function of the three arguments."""
    set_global(derive_seed(seed, purpose, step))


def set_global(seed: int) -> None:
    """Call `torch.manual_seed`, at the cost of a microsecond if the CPU is the only device.

    For every kind of device that is absent, torch formats the stack of the call, which takes up to a millisecond.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
