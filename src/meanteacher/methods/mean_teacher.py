"""Mean Teacher (Tarvainen & Valpola 2017): agree with the average of one's past selves."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from meanteacher.core import Batch, StepOutput
from meanteacher.costs import classification_cost, softmax_mse
from meanteacher.methods.consistency import ConsistencyMethod


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(ConsistencyMethod):
    """The student is drawn towards the teacher, whose weights are the average of the student's (Sec. 2)."""

    teacher_runs: ClassVar[bool] = True

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        logits = student(batch.views["student"])
        target = memory(batch.views["teacher"])
        weight = self.weight(step)
        return StepOutput(
            {
                "classification": classification_cost(logits, batch.labels),
                "consistency": weight * softmax_mse(logits, target, self.consistency_rows(batch)),
            },
            logits,
            {"consistency": weight},
        )
