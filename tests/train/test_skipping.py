"""A run that is short of time leaves steps of its schedule out, and still ends as it should."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch

from meanteacher.experiment import run_training
from meanteacher.experiment.describe import describe, recorded
from meanteacher.train import AdamSpec, StopWhen
from support import recipe


@dataclass(frozen=True)
class NotingAdam(AdamSpec):
    """Notes the steps whose learning rate is set: those that are taken."""

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        TAKEN.append(step)
        super().set_step(optimizer, step)


TAKEN: list[int] = []


def _taken(out: Path, skip_to: Callable[[int], int], *, stops: tuple[int, ...] = ()) -> list[int]:
    whole = recipe("mean-teacher", "fixed")
    assert isinstance(whole.training.optim, AdamSpec)
    optim = NotingAdam(
        **{field.name: getattr(whole.training.optim, field.name) for field in fields(whole.training.optim)}
    )
    whole = whole.varied(steps=20, evaluate_every=5, optim=optim)
    TAKEN.clear()
    for number, after in enumerate((*stops, 100)):
        left = iter(range(after - 1))
        data = whole.data.source.load(out)
        run_training(
            whole.training,
            recorded=recorded(describe(whole)),
            seed=3,
            out=out,
            data=data,
            split=whole.data.split(data.train, 3),
            resume=number > 0,
            skip_to=skip_to,
            callbacks=[StopWhen(lambda left=left: next(left, None) is None)],
        )
    return list(TAKEN)


def _record(out: Path) -> dict:
    return json.loads((out / "record.json").read_text())


def test_no_step_is_left_out_unless_asked(tmp_path: Path):
    assert _taken(tmp_path / "a", lambda due: due) == list(range(20))
    assert _record(tmp_path / "a")["skipped_steps"] == 0


@pytest.mark.parametrize("asked", [lambda due: due + 2, lambda due: 3 * due, lambda due: due + 1000])
def test_steps_are_left_out_as_asked_but_never_the_last(asked: Callable[[int], int], tmp_path: Path):
    taken = _taken(tmp_path / "a", asked)
    expected, due = [], 0
    while due < 20:
        expected.append(min(asked(due), 19))
        due = expected[-1] + 1
    assert taken == expected
    assert taken[-1] == 19
    record = _record(tmp_path / "a")
    assert record["steps"] == 20
    assert record["skipped_steps"] == 20 - len(taken)


def test_no_step_is_taken_twice(tmp_path: Path):
    assert _taken(tmp_path / "a", lambda due: due - 5) == list(range(20))


def test_evaluations_between_the_steps_that_are_left_out_are_made_up_for(tmp_path: Path):
    """Every 5 steps: with steps 3, 7, 11, 15, 19 taken, at the first end beyond each multiple of 5."""
    _taken(tmp_path / "a", lambda due: due + 3)
    assert [point["step"] for point in _record(tmp_path / "a")["curve"]] == [8, 12, 16, 20]


def test_an_interrupted_run_remembers_what_it_left_out(tmp_path: Path):
    straight = _taken(tmp_path / "a", lambda due: due + 1)
    assert _taken(tmp_path / "b", lambda due: due + 1, stops=(2, 3)) == straight
    for field in ("skipped_steps", "errors", "curve"):
        assert _record(tmp_path / "a")[field] == _record(tmp_path / "b")[field]
