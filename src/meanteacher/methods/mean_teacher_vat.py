"""Mean Teacher with VAT: better targets and better perturbations, the combination the paper leaves open."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from meanteacher.core import Batch, StepOutput
from meanteacher.costs import kl_divergence
from meanteacher.methods.vat import Vat
from meanteacher.passes import SameNoise, class_output


@dataclass(frozen=True, kw_only=True)
class MeanTeacherVat(Vat):
    """The student, where it is most easily misled, must agree with the teacher.

    "One approach is to choose the perturbation carefully. Another is to choose the teacher model carefully"
    (Sec. 1): VAT chooses the perturbation of the student's input, the weight average gives the target.
    """

    roles: ClassVar[tuple[str, ...]] = ("student", "teacher")

    @property
    def teacher_runs(self) -> bool:
        return True

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        x = batch.views["student"]
        noise = SameNoise(x.device)
        logits = class_output(student(x))
        target = class_output(memory(batch.views["teacher"]))
        weight = self.weight(step)
        consistency = kl_divergence(self.perturbed(student, x, logits.detach(), noise), target)
        return StepOutput(
            {"classification": self.classification(logits, batch.labels), "consistency": weight * consistency},
            logits,
            {"consistency": weight},
        )
