"""Supervised-only, and the common part of all methods."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

from torch import Tensor, nn

from meanteacher.core import (
    UNLABELLED,
    Batch,
    Cost,
    InputError,
    Problem,
    Scheduled,
    StepOutput,
    check_choice,
)
from meanteacher.costs import classification_cost, hidden_as_unlabelled
from meanteacher.passes import Logits, LogitsOf, class_output, tried_out
from meanteacher.schedules import as_schedule, fix_schedules
from meanteacher.teacher import Buffers, Memory, Teacher, teacher_of

M = TypeVar("M", bound=Teacher | Memory[Any])


@dataclass(frozen=True, kw_only=True)
class TeacherMethod(ABC, Generic[M]):
    """The classification cost, and a teacher that averages the student's weights.

    The paper evaluates the weight average of every system ("We use exponential moving average weights in the
    evaluation of all our models", Table 1).
    """

    decay: Scheduled
    """EMA decay: a schedule, or a constant."""
    buffers: Buffers
    labelled_share: float | None = None
    """Expected share of labelled rows in a batch, for batches whose number of labelled rows varies. The classification
    cost is divided by their expected number instead of their actual one, so that all labelled rows weigh alike."""
    ignore_index: int = UNLABELLED
    """A further label that counts as unlabelled, for instance 255 for pixels without a class in segmentation."""
    roles: ClassVar[tuple[str, ...]] = ("student",)

    def __post_init__(self) -> None:
        fix_schedules(self)
        check_choice("buffers", self.buffers, get_args(Buffers))
        if self.buffers == "own" and not self.teacher_runs:
            raise InputError(
                f"{type(self).__name__} never runs its teacher in training, so buffers='own' would leave its "
                "statistics at their initial values. Use buffers='average' or 'copy'."
            )
        if self.labelled_share is not None and not 0 < self.labelled_share <= 1:
            raise InputError(
                f"{type(self).__name__}: labelled_share is above 0 and at most 1, got {self.labelled_share}. It is the "
                "number of labelled images over the number of training images, or None to count each batch's."
            )

    @property
    def teacher_runs(self) -> bool:
        """Whether the teacher makes passes in training, which lets it keep statistics of its own."""
        return False

    def init(self, student: nn.Module, problem: Problem) -> M:
        """The memory at step 0: the teacher. Methods that keep more than the teacher return a `Memory`."""
        return cast(M, self.new_teacher(student, problem))

    @abstractmethod
    def forward(self, student: nn.Module, memory: M, batch: Batch, step: int) -> StepOutput:
        """The costs of one step."""

    def new_teacher(self, student: nn.Module, problem: Problem, *, dropout: float | None = None) -> Teacher:
        """The teacher at step 0, after a check of the student's output.

        A copy of the student is run on two examples of zeros. If it rejects them, its output is checked in the first
        step. An InputError says that the student does not return the logits of this problem, or that `ignore_index` is
        a class.
        """
        teacher = Teacher(student, buffers=self.buffers, dropout=dropout)
        if 0 <= self.ignore_index < problem.n_classes:
            raise InputError(
                f"{type(self).__name__}: ignore_index={self.ignore_index} is one of the {problem.n_classes} classes, "
                "which would never be learnt. Give a number that is not a class, such as 255."
            )
        if (output := tried_out(student, problem.input_shape)) is not None:
            _check_shape(self.checked(output), problem)
        axis_is_given = isinstance(student, LogitsOf) and student.class_axis is not None
        if problem.label_shape and {*problem.label_shape} == {problem.n_classes} and not axis_is_given:
            raise InputError(
                f"There are as many classes ({problem.n_classes}) as places ({list(problem.label_shape)}), so the axis "
                "of the classes is ambiguous. Name it: LogitsOf(network, class_axis=1), or class_axis=-1."
            )
        return teacher

    def checked(self, output: Logits) -> Tensor:
        """The student's logits for classification, after a check that its output suits the method."""
        return class_output(output)

    def labels(self, batch: Batch) -> Tensor:
        """The batch's labels, with `UNLABELLED` in place of `ignore_index`."""
        return hidden_as_unlabelled(batch.labels, self.ignore_index)

    def classification(self, logits: Tensor, labels: Tensor) -> Cost:
        """The classification cost of the labelled rows."""
        cost = classification_cost(logits, labels, self.labelled_share, ignore_index=self.ignore_index, class_axis=1)
        return Cost(cost)

    def after_step(self, student: nn.Module, memory: M, batch: Batch, output: StepOutput, step: int) -> None:
        """Update the teacher."""
        teacher_of(memory).update(student, decay=as_schedule(self.decay)(step))

    def predictor(self, student: nn.Module, memory: M) -> nn.Module:
        """The teacher's network itself, in evaluation mode. It goes on following the student."""
        return teacher_of(memory).network


@dataclass(frozen=True, kw_only=True)
class Supervised(TeacherMethod[Teacher]):
    """Supervised-only: the classification cost, nothing else.

    Learn from the labelled rows only.

    The weight average is evaluated, as for every method; nothing learns from it.

    >>> from meanteacher.schedules import Constant
    >>> Supervised(decay=Constant(0.99), buffers="average").roles
    ('student',)
    """

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits = class_output(student(batch.views["student"]))
        return StepOutput({"classification": self.classification(logits, batch.labels)}, logits)


def _check_shape(logits: Tensor, problem: Problem) -> None:
    expected = [problem.n_classes, *problem.label_shape]
    found = list(logits.shape[1:])
    if found == expected and problem.n_classes > 1:
        return
    hint = "Build the network for this problem, or give the problem that the network was built for."
    if found[:1] == [1]:
        hint = "The softmax of a single logit is always 1, so no cost could train it. Give the network two outputs."
    elif len(found) > 1 and not problem.label_shape:
        hint = (
            f"For a label per place, as in segmentation, give Problem(..., label_shape={tuple(found[1:])}). For a "
            "label per example, let the network return one prediction per example."
        )
    elif sorted(found) == sorted(expected):
        hint = "If the classes come last, wrap the network: LogitsOf(network, class_axis=-1)."
    raise InputError(
        f"The network returns [B, {', '.join(map(str, found))}], but the problem needs logits "
        f"[B, {', '.join(map(str, expected))}]. {hint}"
    )
