"""The Pi model (Laine & Aila 2017): two noisy passes of one network must agree."""

from dataclasses import dataclass

from torch import nn

from meanteacher.core import Batch, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.passes import class_output


@dataclass(frozen=True, kw_only=True)
class PiModel(ConsistencyMethod):
    """The student is its own teacher, and both sides are trained (App. B.1)."""

    one_sided: bool = False
    """Take the second pass as a constant: Mean Teacher with a decay of 0."""

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        logits, matched = self.outputs(student(batch.views["student"]))
        other = class_output(student(batch.views["teacher"]))
        target = other.detach() if self.one_sided else other
        return self.step_output(logits, matched, target, batch, step)
