"""Confident predictions as labels: Pseudo-Label, FixMatch and FreeMatch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Problem, Schedule, StepOutput, check_choice
from meanteacher.costs import classification_cost
from meanteacher.methods.supervised import Supervised
from meanteacher.passes import class_output
from meanteacher.teacher import Buffers, Teacher


@dataclass(frozen=True, kw_only=True)
class PseudoLabel(Supervised):
    """Pseudo-label (Lee 2013): believe one's own best guess.

    Unlabelled rows are trained towards the class the network itself finds most probable.
    """

    weight: Schedule
    roles: ClassVar[tuple[str, ...]] = ("student",)

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        logits = class_output(student(batch.views["student"]))
        unlabelled = batch.labels == UNLABELLED
        guesses = logits.detach().argmax(1).where(unlabelled, UNLABELLED)
        weight = self.weight(step)
        return StepOutput(
            {
                "classification": self.classification(logits, batch.labels),
                "pseudo-label": weight * classification_cost(logits, guesses),
            },
            logits,
            {"pseudo-label": weight},
        )


@dataclass(frozen=True, kw_only=True)
class FixMatch(Supervised):
    """FixMatch (Sohn et al. 2020): what is certain about a weak view must be learnt from a strong one.

    Role `student` is the weak view, role `strong` the strong one. The weight average is what is evaluated.
    """

    weight: Schedule
    threshold: float = 0.95
    labelled_by: Literal["student", "teacher"] = "student"
    """Whose prediction of the weak view becomes the label: the student's as in the original, or the average's."""
    roles: ClassVar[tuple[str, ...]] = ("student", "strong")

    def __post_init__(self) -> None:
        check_choice("labelled_by", self.labelled_by, ("student", "teacher"))
        super().__post_init__()

    @property
    def teacher_runs(self) -> bool:
        return self.labelled_by == "teacher"

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        # In one pass, so that both views share their batch statistics.
        joined = torch.cat([batch.views["student"], batch.views["strong"]])
        weak, strong = class_output(student(joined)).chunk(2)
        by_teacher = self.labelled_by == "teacher"
        target = class_output(memory(batch.views["student"])) if by_teacher else weak.detach()
        confidence, guess = target.softmax(1).max(1)
        unlabelled = batch.labels == UNLABELLED
        certain = unlabelled & (confidence >= self.asked(memory, guess))
        # Averaged over all unlabelled rows, not over the certain ones: few certain rows weigh little.
        share = certain.sum() / unlabelled.sum().clamp_min(1)
        weight = self.weight(step)
        return StepOutput(
            {
                "classification": self.classification(weak, batch.labels),
                "pseudo-label": weight * share * classification_cost(strong, guess.where(certain, UNLABELLED)),
            },
            weak,
            # Without a certain row there is nothing to learn from, rightly.
            {"pseudo-label": weight * certain.any()},
        )

    def asked(self, memory: nn.Module, guess: Tensor) -> Tensor:
        """[B], the confidence that makes each row's guess a label."""
        return torch.full_like(guess, self.threshold, dtype=torch.float32)


class Certainty(Teacher):
    """Running averages: how certain the network is, and of each class."""

    overall: Tensor
    per_class: Tensor

    def __init__(self, student: nn.Module, n_classes: int, *, buffers: Buffers) -> None:
        super().__init__(student, buffers=buffers)
        uniform = torch.full((n_classes,), 1 / n_classes)
        self.register_buffer("overall", uniform[0].clone())
        self.register_buffer("per_class", uniform.clone())

    def threshold(self) -> Tensor:
        """[C]: the overall certainty, lower for classes that are harder at present."""
        return self.overall * self.per_class / self.per_class.max()

    def note(self, probabilities: Tensor, rows: Tensor, momentum: float) -> None:
        """Take the rows [B] of bool into the averages; without any, nothing changes."""
        share = rows / rows.sum().clamp_min(1)
        pull = (1 - momentum) * rows.any()
        self.overall.lerp_(share @ probabilities.amax(1), pull)
        self.per_class.lerp_(share @ probabilities, pull)


@dataclass(frozen=True, kw_only=True)
class FreeMatch(FixMatch):
    """FreeMatch (Wang et al. 2023): FixMatch with thresholds that follow the network's own certainty.

    The threshold starts at 1 / n_classes and rises with the network's certainty, to `threshold` at most.

    The self-adaptive thresholds are the original's; its further cost on the distribution of the predictions is left
    out.
    """

    threshold: float = 1.0
    momentum: float = 0.999

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return Certainty(student, problem.n_classes, buffers=self.buffers)

    def asked(self, memory: nn.Module, guess: Tensor) -> Tensor:
        assert isinstance(memory, Certainty)
        return memory.threshold()[guess].clamp_max(self.threshold)

    def after_step(self, student: nn.Module, memory: nn.Module, batch: Batch, output: StepOutput, step: int) -> None:
        assert isinstance(memory, Certainty)
        super().after_step(student, memory, batch, output, step)
        memory.note(output.logits.detach().softmax(1), batch.labels == UNLABELLED, self.momentum)
