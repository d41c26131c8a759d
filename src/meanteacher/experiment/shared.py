"""Runs of a program that only rank 0 executes, such as a fit: the other ranks wait for them and take part."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from meanteacher.core import DivergedError, FirstRankError, LostRankError
from meanteacher.data import Split, TrainTest
from meanteacher.distributed.ranks import join
from meanteacher.experiment.recipe import Recipe
from meanteacher.experiment.run import Outcome, run


def run_with_helpers(
    recipe: Recipe, *, seed: int, out: Path, data: TrainTest, split: Split, resume: bool, device: str, **own: Any
) -> Outcome:
    """`run`, on rank 0, together with the ranks that are in `help_first`.

    Args:
        recipe: as all arguments that `run` has, too
        seed: the same
        out: the same
        data: the same; a copy is sent to the other ranks
        split: the same
        resume: the same
        device: the same; the other ranks take devices of that kind
        own: further arguments of `run`, which are for rank 0 alone
    """
    shared: dict[str, Any] = {"seed": seed, "out": out, "data": data, "split": split, "resume": resume}
    join().call_helpers((recipe, {**shared, "device": device.partition(":")[0]}))
    return run(recipe, **shared, device=device, **own)


def help_first(should_stop: Callable[[], bool]) -> None:
    """Take part in the runs of rank 0 until it dismisses its helpers.

    Args:
        should_stop: asked after every step; True ends the run on all ranks

    Raises:
        LostRankError: rank 0 has ended without that.
    """
    while (called := join().wait_for_call()) is not None:
        recipe, shared = called
        # What all ranks refuse, rank 0 reports. It also says which steps are taken.
        with suppress(FirstRankError, DivergedError):
            run(recipe, **shared, should_stop=should_stop, skip_to=lambda step: step)


@contextmanager
def dismissing_helpers() -> Iterator[None]:
    """On rank 0: let the other ranks end with this block, unless one of them is lost."""
    try:
        yield
    except LostRankError:
        raise
    except BaseException:
        join().call_helpers(None)
        raise
    join().call_helpers(None)
