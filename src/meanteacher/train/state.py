"""Everything that changes during a run: what a checkpoint holds."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from meanteacher.core import Method


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One point of the learning curve: the errors of both models."""

    step: int
    part: str
    """"validation" or "test": where the errors were measured."""
    student: float
    teacher: float


def trained_parameters(student: nn.Module, memory: nn.Module) -> list[nn.Parameter]:
    """What the optimiser moves: the student, and what a method trains beside it (a generator, a denoiser).

    A teacher in the memory requires no gradient, so it is not included.
    """
    return [p for module in (student, memory) for p in module.parameters() if p.requires_grad]


@dataclass(slots=True, eq=False)
class TrainState:
    """A run after `step` steps."""

    student: nn.Module
    memory: nn.Module
    normalise: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    skipped: int = 0
    """Steps of the schedule that were left out to finish in time."""
    seconds: float = 0.0
    """Spent training and evaluating, over all interruptions."""
    cpu_seconds: float = 0.0
    """The same in processor time, which does not depend on other load."""
    curve: list[Evaluation] = field(default_factory=list)
    vitals: dict[str, Any] = field(default_factory=dict)
    """What the vitals remember, in plain values."""

    def modules(self) -> dict[str, nn.Module]:
        """What is saved as weights."""
        return {"student": self.student, "memory": self.memory, "normalise": self.normalise}

    def best(self) -> Evaluation | None:
        """The evaluation with the lowest validation error of the teacher, the earliest of equals.

        There is none without validation data: a test error that was used to choose is too low.
        """
        candidates = [point for point in self.curve if point.part == "validation"]
        return min(candidates, key=lambda point: point.teacher, default=None)

    def predictor(self, method: Method) -> nn.Module:
        return method.predictor(self.student, self.memory)
