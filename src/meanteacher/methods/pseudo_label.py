"""Pseudo-label (Lee 2013): believe one's own best guess."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from meanteacher.core import UNLABELLED, Batch, Schedule, StepOutput
from meanteacher.costs import classification_cost
from meanteacher.methods.supervised import Supervised
from meanteacher.passes import class_output


@dataclass(frozen=True, kw_only=True)
class PseudoLabel(Supervised):
    """Unlabelled rows are trained towards the class the network itself finds most probable."""

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
