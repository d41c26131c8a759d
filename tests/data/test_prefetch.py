"""Batches prepared ahead are those of the plain stream, whatever is asked for, and cost no time of their own."""

import threading
import time

import pytest
import torch

from meanteacher.core import Batch
from meanteacher.data.prefetch import Prefetched
from support import stream


def _batch(step: int) -> Batch:
    return Batch(views={}, labels=torch.tensor([step]), index=torch.tensor([step]))


def _equal(one: Batch, other: Batch) -> bool:
    return (
        one.views.keys() == other.views.keys()
        and all(torch.equal(view, other.views[role]) for role, view in one.views.items())
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.index, other.index)
    )


class Slow:
    """Takes its time, and remembers who asked for what."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.prepared: list[int] = []
        self.threads: set[str] = set()

    def __getitem__(self, step: int) -> Batch:
        time.sleep(self.seconds)
        self.prepared.append(step)
        self.threads.add(threading.current_thread().name)
        return _batch(step)


@pytest.mark.parametrize("batch", ["fixed", "mixed"])
@pytest.mark.parametrize(
    "order",
    [range(6), [17, 18, 19], [0, 0, 0, 1, 2], [5, 2, 3, 9, 8, 7, 0]],
    ids=["from the start", "resumed", "first batch looked at before", "any"],
)
def test_batches_are_those_of_the_plain_stream_in_any_order(batch: str, order: list[int]):
    plain = stream(batch)
    with Prefetched(stream(batch)) as prefetched:
        for step in order:
            assert _equal(prefetched[step], plain[step]), step


def test_next_batch_is_prepared_once_and_by_the_thread():
    slow = Slow()
    with Prefetched(slow) as batches:
        for step in range(5):
            assert int(batches[step].index) == step
    assert slow.prepared[:5] == list(range(5))
    assert set(slow.prepared[5:]) <= {5}
    assert slow.threads == {"prefetch"}


def test_preparing_takes_place_while_the_step_trains():
    n_steps, seconds = 10, 0.05
    began = time.perf_counter()
    with Prefetched(Slow(seconds)) as batches:
        for step in range(n_steps):
            _ = batches[step]
            time.sleep(seconds)
    took = time.perf_counter() - began
    assert took < 0.8 * (2 * n_steps * seconds)


def test_exception_is_raised_by_the_step_that_asks_and_the_next_try_is_a_new_one():
    class Failing(Slow):
        fails = True

        def __getitem__(self, step: int) -> Batch:
            if step == 2 and self.fails:
                raise OSError("the disk is gone")
            return super().__getitem__(step)

    failing = Failing()
    with Prefetched(failing) as batches:
        assert int(batches[0].index) == 0
        assert int(batches[1].index) == 1  # batch 2 fails in the background, and nobody has asked for it
        with pytest.raises(OSError, match="the disk is gone"):
            _ = batches[2]
        assert int(batches[3].index) == 3
        failing.fails = False
        assert int(batches[2].index) == 2


def test_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with Prefetched(stream()) as batches:
        for step in range(4):
            _ = batches[step]
    assert torch.equal(torch.get_rng_state(), before)


def test_thread_computes_with_as_many_threads_as_the_run():
    """Another number would round sums differently."""
    seen = []

    class Asking(Slow):
        def __getitem__(self, step: int) -> Batch:
            seen.append(torch.get_num_threads())
            return super().__getitem__(step)

    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            batches = Prefetched(Asking())
            torch.set_num_threads(threads)
            with batches:
                _ = batches[0]
            assert set(seen) == {threads}
            seen.clear()
    finally:
        torch.set_num_threads(before)


def test_closing_ends_the_thread_and_a_crash_does_not_wait_for_it():
    def alive() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "prefetch"]

    batches = Prefetched(Slow())
    assert alive() == []
    _ = batches[0]
    (thread,) = alive()
    assert thread.daemon
    batches.close()
    batches.close()
    assert alive() == []
    with pytest.raises(ValueError, match="closed"):
        _ = batches[1]
    with Prefetched(Slow()):
        pass  # never asked for anything

    def crash() -> None:
        with Prefetched(Slow()) as batches:
            _ = batches[0]
            raise KeyError

    with pytest.raises(KeyError):
        crash()
    assert alive() == []
