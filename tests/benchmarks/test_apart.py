"""A contender in a process of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.apart import apart


def _counting(path: Path) -> Callable[[], None]:
    """Each call adds a line: which process it is, which call, and with how many threads."""
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        with path.open("a") as lines:
            lines.write(f"{os.getpid()} {len(calls)} {torch.get_num_threads()}\n")

    return call


def _failing() -> Callable[[], None]:
    def call() -> None:
        os._exit(7)

    return call


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_calls_are_made_elsewhere_and_waited_for(tmp_path: Path):
    path = tmp_path / "calls"
    with apart(_counting, path) as call:
        assert not path.exists()
        for n in (1, 2, 3):
            call()
            process, number, threads = path.read_text().splitlines()[-1].split()
            assert (int(number), int(threads)) == (n, 3)
    assert int(process) != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_a_process_that_dies_is_reported_and_not_waited_for():
    with apart(_failing) as call, pytest.raises(RuntimeError, match="exit code 7"):
        call()
