"""Predictions as labels: Pseudo-Label, FixMatch and FreeMatch."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Cost, Problem, Scheduled, StepOutput, check_choice
from meanteacher.costs import classification_cost
from meanteacher.methods.supervised import M, Supervised, TeacherMethod
from meanteacher.passes import class_output
from meanteacher.schedules import as_schedule
from meanteacher.teacher import Memory, Teacher, teacher_of


@dataclass(frozen=True, kw_only=True)
class PseudoLabel(Supervised):
    """Pseudo-label (Lee 2013): the network's own predictions as labels.

    An unlabelled row is trained on the class that the network finds most probable.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> PseudoLabel(decay=Constant(0.99), buffers="average", weight=SigmoidRampUp(value=1.0, steps=100)).roles
    ('student',)
    """

    weight: Scheduled

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits = class_output(student(batch.views["student"]))
        unlabelled = self.labels(batch) == UNLABELLED
        guesses = logits.detach().argmax(1).where(unlabelled, UNLABELLED)
        weight = as_schedule(self.weight)(step)
        return StepOutput(
            {
                "classification": self.classification(logits, batch.labels),
                "pseudo-label": Cost(weight * classification_cost(logits, guesses, class_axis=1), weight),
            },
            logits,
        )


@dataclass(frozen=True, kw_only=True)
class MatchMethod(TeacherMethod[M]):
    """A confident prediction on the weak view labels the strong one. The methods differ in their thresholds.

    Role `student` is the weak view, role `strong` the strong one.
    """

    weight: Scheduled
    threshold: float
    labelled_by: Literal["student", "teacher"] = "student"
    """The network whose prediction on the weak view is the label. The original uses the student."""
    roles: ClassVar[tuple[str, ...]] = ("student", "strong")

    def __post_init__(self) -> None:
        check_choice("labelled_by", self.labelled_by, ("student", "teacher"))
        super().__post_init__()

    @property
    def teacher_runs(self) -> bool:
        return self.labelled_by == "teacher"

    def forward(self, student: nn.Module, memory: M, batch: Batch, step: int) -> StepOutput:
        # Both views go through one pass, so that they share their batch statistics.
        joined = torch.cat([batch.views["student"], batch.views["strong"]])
        weak, strong = class_output(student(joined)).chunk(2)
        target = class_output(teacher_of(memory)(batch.views["student"])) if self.teacher_runs else weak.detach()
        confidence, guess = target.softmax(1).max(1)
        unlabelled = self.labels(batch) == UNLABELLED
        certain = unlabelled & (confidence >= self.thresholds(memory, guess))
        # The mean is over all unlabelled rows, not over the certain ones: the cost is small while few rows are certain.
        share = certain.sum() / unlabelled.sum().clamp_min(1)
        weight = as_schedule(self.weight)(step)
        value = weight * share * classification_cost(strong, guess.where(certain, UNLABELLED), class_axis=1)
        return StepOutput(
            {
                "classification": self.classification(weak, batch.labels),
                "pseudo-label": Cost(value, weight * certain.any()),
            },
            weak,
        )

    @abstractmethod
    def thresholds(self, memory: M, guess: Tensor) -> Tensor:
        """The lowest confidence with which each guess becomes a label, in the shape of the guesses."""


@dataclass(frozen=True, kw_only=True)
class FixMatch(MatchMethod[Teacher]):
    """FixMatch (Sohn et al. 2020): confident predictions on a weak view are labels for a strong one.

    Role `student` is the weak view, role `strong` the strong one. The weight average is evaluated.

    >>> from meanteacher.schedules import Constant
    >>> FixMatch(decay=Constant(0.99), buffers="average", weight=Constant(1.0)).roles
    ('student', 'strong')
    """

    threshold: float = 0.95

    def thresholds(self, memory: Teacher, guess: Tensor) -> Tensor:
        return torch.full_like(guess, self.threshold, dtype=torch.float32)


class Certainty(nn.Module):
    """Running averages of the network's confidence, over all rows and per class."""

    overall: Tensor
    per_class: Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        uniform = torch.full((n_classes,), 1 / n_classes)
        self.register_buffer("overall", uniform[0].clone())
        self.register_buffer("per_class", uniform.clone())

    def threshold(self) -> Tensor:
        """Threshold of each class [C]: the overall confidence, scaled down for classes that are harder at present."""
        return self.overall * self.per_class / self.per_class.max()

    def note(self, probabilities: Tensor, rows: Tensor, momentum: float) -> None:
        """Update the averages with the rows or places of a mask, bool [B] or [B, ...]; an empty one changes nothing."""
        rows, probabilities = rows.flatten(), probabilities.movedim(1, -1).flatten(0, -2)
        share = rows / rows.sum().clamp_min(1)
        pull = (1 - momentum) * rows.any()
        self.overall.lerp_(share @ probabilities.amax(1), pull)
        self.per_class.lerp_(share @ probabilities, pull)


@dataclass(frozen=True, kw_only=True)
class FreeMatch(MatchMethod[Memory[Certainty]]):
    """FreeMatch (Wang et al. 2023): FixMatch with thresholds that follow the network's confidence.

    The threshold starts at 1 / n_classes and rises with the network's confidence, to `threshold` at most.

    The self-adaptive thresholds are the original's; its further cost on the distribution of the predictions is left
    out.

    >>> from meanteacher.schedules import Constant
    >>> FreeMatch(decay=Constant(0.99), buffers="average", weight=Constant(1.0)).roles
    ('student', 'strong')
    """

    threshold: float = 1.0
    momentum: float = 0.999

    def init(self, student: nn.Module, problem: Problem) -> Memory[Certainty]:
        return Memory(self.new_teacher(student, problem), Certainty(problem.n_classes))

    def thresholds(self, memory: Memory[Certainty], guess: Tensor) -> Tensor:
        return memory.own.threshold()[guess].clamp_max(self.threshold)

    def after_step(
        self, student: nn.Module, memory: Memory[Certainty], batch: Batch, output: StepOutput, step: int
    ) -> None:
        super().after_step(student, memory, batch, output, step)
        memory.own.note(output.logits.detach().softmax(1), self.labels(batch) == UNLABELLED, self.momentum)
