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

    >>> import torch
    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> student = nn.Linear(2, 3)
    >>> method = MeanTeacher(decay=Constant(0.99), buffers="own", weight=SigmoidRampUp(value=10.0, steps=100))
    >>> teacher = method.init(student, Problem(n_classes=3, n_examples=4, input_shape=(2,)))
    >>> views = {role: torch.randn(4, 2) for role in method.roles}
    >>> batch = Batch(views, labels=torch.tensor([0, 2, -1, -1]), index=torch.arange(4))
    >>> output = method.forward(student, teacher, batch, step=0)
    >>> output.total.backward()
    >>> sorted(output.costs)
    ['classification', 'consistency']
    """

    teacher_dropout: float | None = None
    """Dropout rate in the teacher (Figure 4b): 0 for no dropout, None for the student's own rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout("teacher_dropout", self.teacher_dropout)

    @property
    def teacher_runs(self) -> bool:
        return True

    def init(self, student: nn.Module, problem: Problem) -> Teacher:
        return self.new_teacher(student, problem, dropout=self.teacher_dropout)

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        target = class_output(memory(batch.views["teacher"]))
        return self.step_output(logits, consistency_logits, target, batch, step)
