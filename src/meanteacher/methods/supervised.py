"""Supervised-only, and what it shares with all other methods."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, get_args

from torch import Tensor, nn

from meanteacher.core import ADDED_LATER, Batch, Cost, InputError, Problem, Schedule, StepOutput, check_choice
from meanteacher.costs import classification_cost
from meanteacher.passes import class_output
from meanteacher.teacher import Buffers, Memory, Teacher, warmed_up

M = TypeVar("M", bound=Teacher | Memory[Any])


@dataclass(frozen=True, kw_only=True)
class TeacherMethod(ABC, Generic[M]):
    """The classification cost, and a teacher that averages the student's weights.

    The paper evaluates the weight average of every system ("We use exponential moving average weights in the
    evaluation of all our models", Table 1).
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

    @abstractmethod
    def init(self, student: nn.Module, problem: Problem) -> M:
        """The memory at step 0."""

    @abstractmethod
    def forward(self, student: nn.Module, memory: M, batch: Batch, step: int) -> StepOutput:
        """The costs of one step."""

    def classification(self, logits: Tensor, labels: Tensor) -> Cost:
        """The cost of the labelled rows."""
        return Cost(classification_cost(logits, labels, self.labelled_share))

    def after_step(self, student: nn.Module, memory: M, batch: Batch, output: StepOutput, step: int) -> None:
        """Move the teacher."""
        memory.teacher.update(student, decay=warmed_up(self.decay(step), step))

    def predictor(self, student: nn.Module, memory: M) -> nn.Module:
        """The teacher's network."""
        return memory.teacher.network


@dataclass(frozen=True, kw_only=True)
class Supervised(TeacherMethod[Teacher]):
    """Supervised-only: the classification cost, nothing else.

    Learn from the labelled rows only.

    The weight average is evaluated, as for every method; nothing learns from it.
    """

    def init(self, student: nn.Module, problem: Problem) -> Teacher:
        return Teacher(student, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits = class_output(student(batch.views["student"]))
        return StepOutput({"classification": self.classification(logits, batch.labels)}, logits)
