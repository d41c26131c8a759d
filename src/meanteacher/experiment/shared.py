"""Runs of a program that only rank 0 executes, such as a fit: the other ranks wait for them and take part."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from meanteacher.core import DivergedError, FirstRankError, LostRankError
from meanteacher.distributed.ranks import join
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.experiment.run import Outcome, run_training
from meanteacher.train import Callback, StopWhen
from meanteacher.train.execution import RunOptions


def run_with_helpers(
    training: TrainingSpec,
    *,
    options: RunOptions,
    callbacks: Sequence[Callback],
    skip_to: Callable[[int], int],
    **shared: Any,
) -> Outcome:
    """`run_training`, on rank 0, together with the ranks that are in `help_first`.

    Args:
        training: how to train
        options: for rank 0; the other ranks take devices of the same kind
        callbacks: for rank 0
        skip_to: for rank 0, which says which steps are taken
        shared: further arguments of `run_training`; copies are sent to the other ranks
    """
    theirs = replace(options, device=options.device.partition(":")[0])
    join().call_helpers((training, {**shared, "options": theirs}))
    return run_training(training, **shared, options=options, callbacks=callbacks, skip_to=skip_to)


def help_first(should_stop: Callable[[], bool]) -> None:
    """Take part in the runs of rank 0 until it dismisses its helpers.

    Args:
        should_stop: asked after every step; True ends the run on all ranks

    Raises:
        LostRankError: rank 0 has ended without that.
    """
    while (called := join().wait_for_call()) is not None:
        training, shared = called
        # What all ranks refuse, rank 0 reports. It also says which steps are taken.
        with suppress(FirstRankError, DivergedError):
            run_training(training, **shared, callbacks=[StopWhen(should_stop)], skip_to=lambda step: step)


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
