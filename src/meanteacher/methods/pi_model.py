"""The Pi model and pseudo-ensembles: two passes of one network must agree."""

from dataclasses import dataclass

from torch import nn

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.passes import class_output, untracked, without_dropout
from meanteacher.teacher import Teacher


@dataclass(frozen=True, kw_only=True)
class PiModel(ConsistencyMethod[Teacher]):
    """The Pi model (Laine & Aila 2017): two noisy passes of one network must agree.

    The student is its own teacher, and both sides are trained (App. B.1).
    """

    one_sided: bool = False
    """Detach the second pass: Mean Teacher with a decay of 0."""

    def init(self, student: nn.Module, problem: Problem) -> Teacher:
        return Teacher(student, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        other = class_output(student(batch.views["teacher"]))
        target = other.detach() if self.one_sided else other
        return self.step_output(logits, consistency_logits, target, batch, step)


@dataclass(frozen=True, kw_only=True)
class PseudoEnsemble(ConsistencyMethod[Teacher]):
    """Pseudo-Ensemble Agreement (Bachman et al. 2014): a noisy child must agree with its noiseless parent.

    The parent is the network without dropout, the child the same with it; both are trained.

    Of the original's penalties at every layer this is the one at the output, which is the semi-supervised one.
    Give the role `teacher` a view without noise.
    """

    def init(self, student: nn.Module, problem: Problem) -> Teacher:
        return Teacher(student, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        with without_dropout(student):
            parent = class_output(untracked(student, batch.views["teacher"]))
        return self.step_output(logits, consistency_logits, parent, batch, step)
