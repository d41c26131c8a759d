"""FixMatch (Sohn et al. 2020): what is certain about a weak view must be learnt from a strong one."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Schedule, StepOutput, check_choice
from meanteacher.costs import classification_cost
from meanteacher.methods.supervised import Supervised
from meanteacher.passes import class_output


@dataclass(frozen=True, kw_only=True)
class FixMatch(Supervised):
    """Role `student` is the weak view, role `strong` the strong one. The weight average is what is evaluated."""

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
