"""Mean Teacher (Tarvainen & Valpola 2017): consistency with a teacher that averages the student."""

from dataclasses import dataclass

from torch import nn

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.passes import class_output
from meanteacher.teacher import Teacher, check_dropout


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(ConsistencyMethod[Teacher]):
    """Mean Teacher (Tarvainen & Valpola 2017): consistency with a teacher that averages the student.

    The student must agree with the teacher, whose weights are the moving average of the student's (Sec. 2).
    """

    teacher_dropout: float | None = None
    """Rate of dropout in the teacher (Figure 4b): 0 for none, None for the student's own rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout("teacher_dropout", self.teacher_dropout)

    @property
    def teacher_runs(self) -> bool:
        return True

    def init(self, student: nn.Module, problem: Problem) -> Teacher:
        return Teacher(student, buffers=self.buffers, dropout=self.teacher_dropout)

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        target = class_output(memory(batch.views["teacher"]))
        return self.step_output(logits, consistency_logits, target, batch, step)
