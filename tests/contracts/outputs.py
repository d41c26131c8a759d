"""Every method with every kind of output: it trains with every cost alive, or refuses when its memory is made.

`make outputs` writes the table to docs/outputs.md.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from meanteacher import testing as contract
from meanteacher.core import UNLABELLED, Batch, InputError, Method, Problem
from meanteacher.passes import LogitsOf
from meanteacher.train.checkpoint import trained_parameters
from support import METHODS, N_CLASSES, PROBLEM, SHAPE, SmallNet, stream, train_steps

TRAINS, REFUSED = "trains", "refused"
DENSE = Problem(n_classes=N_CLASSES, n_examples=PROBLEM.n_examples, input_shape=SHAPE, label_shape=SHAPE[1:])


class Pixels(nn.Module):
    """A prediction for every pixel, [B, C, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(SHAPE[0], 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Conv2d(8, N_CLASSES, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class Returning(nn.Module):
    """A network whose output is `wrap(logits, features)`."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.network, self.wrap = SmallNet(), wrap

    def forward(self, x: Tensor) -> Any:
        features = self.network.layers[:-1](x)
        return self.wrap(self.network.layers[-1](features), features)


def _tuple(logits: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    return logits, features


def _dict(logits: Tensor, features: Tensor) -> dict[str, Tensor]:
    return {"logits": logits, "features": features}


@dataclass(frozen=True)
class Case:
    """A kind of output, as the page names it."""

    title: str
    student: Callable[[], nn.Module]
    problem: Problem = PROBLEM


CASES = [
    Case("`[B, C, H, W]`, with `label_shape=(H, W)`", Pixels, DENSE),
    Case("`[B, C, H, W]`, without", Pixels),
    Case("`[B, H, W, C]`, with `class_axis=-1`", lambda: LogitsOf(_Last(), class_axis=-1), DENSE),
    Case("`(logits, features)`", lambda: Returning(_tuple)),
    Case("the same, with `output=0`", lambda: LogitsOf(Returning(_tuple), output=0)),
    Case("`{'logits': …}`", lambda: Returning(_dict)),
    Case("the same, with `output='logits'`", lambda: LogitsOf(Returning(_dict), output="logits")),
]


class _Last(Pixels):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).movedim(1, -1)


def batches(problem: Problem) -> Callable[[int], Batch]:
    """Of the made-up images; dense labels have a class per column, some of the labelled images' pixels have none."""
    whole = stream()

    def batch(step: int) -> Batch:
        given = whole[step]
        if not problem.label_shape:
            return given
        places = (torch.arange(SHAPE[2]) % N_CLASSES).expand(len(given.labels), *problem.label_shape).clone()
        places[given.labels == UNLABELLED] = UNLABELLED
        places[:, 0] = UNLABELLED
        return Batch(given.views, places, given.index)

    return batch


def outcome(method: Method, case: Case) -> str:
    """What the page says. Whatever else happens is raised."""
    torch.manual_seed(0)
    student = case.student().train()
    try:
        memory = method.init(student, case.problem).train()
    except InputError:
        return REFUSED
    draw = batches(case.problem)
    train_steps(method, student, memory, steps=3, batches=draw)
    contract.every_cost_is_alive(method.forward(student, memory, draw(3), 3), trained_parameters(student, memory))
    return TRAINS


def page() -> str:
    rows = {name: [outcome(method, case) for case in CASES] for name, method in METHODS.items()}
    lines = [
        "<!-- Written by `make outputs`: do not edit. -->",
        "",
        "# Methods and outputs",
        "",
        "The table lists the behaviour of every method with a student that returns something other than logits",
        "`[B, C]`. *trains*: after three steps, every cost has a gradient that is not zero. *refused*:",
        "`method.init(student, problem)` raises an `InputError` that names the student's output, the expected one and",
        "a remedy. `output` and `class_axis` are arguments of `mt.LogitsOf`, `label_shape` is one of `mt.Problem`",
        "([Your own module](own-module.md)).",
        "",
        f"| method | {' | '.join(case.title for case in CASES)} |",
        f"| --- |{' --- |' * len(CASES)}",
        *(f"| `{name}` | {' | '.join(cells)} |" for name, cells in rows.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
