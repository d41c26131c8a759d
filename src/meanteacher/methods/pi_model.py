"""The Pi model (Laine & Aila 2017): two noisy passes of one network must agree."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from meanteacher.core import Batch, Schedule, StepOutput
from meanteacher.costs import classification_cost, softmax_mse
from meanteacher.methods.consistency import ConsistencyOn, consistency_rows
from meanteacher.methods.supervised import Supervised


@dataclass(frozen=True, kw_only=True)
class PiModel(Supervised):
    """The student is its own teacher, and both sides are trained (App. B.1)."""

    weight: Schedule
    consistency_on: ConsistencyOn = "all"
    roles: ClassVar[tuple[str, ...]] = ("student", "teacher")

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        logits = student(batch.views["student"])
        other = student(batch.views["teacher"])
        weight = self.weight(step)
        rows = consistency_rows(batch.labels, self.consistency_on)
        return StepOutput(
            {
                "classification": classification_cost(logits, batch.labels),
                "consistency": weight * softmax_mse(logits, other, rows),
            },
            logits,
            {"consistency": weight},
        )
