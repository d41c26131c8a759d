"""Supervised-only: the classification cost, nothing else."""

from dataclasses import dataclass, field
from typing import ClassVar, get_args

from torch import Tensor, nn

from meanteacher.core import ADDED_LATER, Batch, InputError, Problem, Schedule, StepOutput, check_choice
from meanteacher.costs import classification_cost
from meanteacher.passes import class_output
from meanteacher.teacher import Buffers, Teacher, warmed_up


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Supervised-only: the classification cost, nothing else.

    Learn from the labelled rows only.

    The paper evaluates the weight average of every system, this one included ("We use exponential moving
    average weights in the evaluation of all our models", Table 1); here nothing learns from it.
    """

    decay: Schedule
    buffers: Buffers
    labelled_share: float | None = field(default=None, metadata=ADDED_LATER)
    """Where the number of labelled rows varies: their share of the average batch. The classification cost is then
    divided by their expected number instead of the number there is, and all labelled rows weigh alike."""
    roles: ClassVar[tuple[str, ...]] = ("student",)

    def __post_init__(self) -> None:
        check_choice("buffers", self.buffers, get_args(Buffers))
        if self.buffers == "own" and not self.teacher_runs:
            raise InputError(
                f"{type(self).__name__} never runs its teacher in training, so buffers='own' would leave its "
                "statistics at their start. Use buffers='average' or 'copy'."
            )
        if self.labelled_share is not None and not 0 < self.labelled_share <= 1:
            raise InputError(
                f"{type(self).__name__}: labelled_share is above 0 and at most 1, got {self.labelled_share}. It is the "
                "number of labelled images over the number of training images, or None to count each batch's."
            )

    @property
    def teacher_runs(self) -> bool:
        """Whether the teacher makes a pass in training, and so can keep statistics of its own."""
        return False

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return Teacher(student, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        logits = class_output(student(batch.views["student"]))
        return StepOutput({"classification": self.classification(logits, batch.labels)}, logits)

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The cost of the rows that show their label."""
        return classification_cost(logits, labels, self.labelled_share)

    def after_step(
        self,
        student: nn.Module,
        memory: nn.Module,
        batch: Batch,
        output: StepOutput,
        step: int,
    ) -> None:
        assert isinstance(memory, Teacher)
        memory.update(student, decay=warmed_up(self.decay(step), step))

    def predictor(self, student: nn.Module, memory: nn.Module) -> nn.Module:
        assert isinstance(memory, Teacher)
        return memory.network
