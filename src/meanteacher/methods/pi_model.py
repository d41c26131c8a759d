"""The Pi model (Laine & Aila 2017): two noisy passes of one network must agree."""

from dataclasses import dataclass

from torch import nn

from meanteacher.core import Batch, StepOutput
from meanteacher.costs import classification_cost, softmax_mse
from meanteacher.methods.consistency import ConsistencyMethod


@dataclass(frozen=True, kw_only=True)
class PiModel(ConsistencyMethod):
    """The student is its own teacher, and both sides are trained (App. B.1)."""

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        logits = student(batch.views["student"])
        other = student(batch.views["teacher"])
        weight = self.weight(step)
        return StepOutput(
            {
                "classification": classification_cost(logits, batch.labels),
                "consistency": weight * softmax_mse(logits, other, self.consistency_rows(batch)),
            },
            logits,
            {"consistency": weight},
        )
