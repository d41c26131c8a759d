"""The Pi model, pseudo-ensembles and the Gamma model: two passes of one network must agree."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.passes import Logits, class_output, untracked, without_dropout
from meanteacher.teacher import Memory, Teacher


@dataclass(frozen=True, kw_only=True)
class PiModel(ConsistencyMethod[Teacher]):
    """The Pi model (Laine & Aila 2017): two noisy passes of one network must agree.

    The student is its own teacher, and both sides are trained (App. B.1).

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> PiModel(decay=Constant(0.99), buffers="average", weight=SigmoidRampUp(value=10.0, steps=100)).roles
    ('student', 'teacher')
    """

    one_sided: bool = False
    """Whether the second pass is detached, which is Mean Teacher with a decay of 0."""

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        other = class_output(student(batch.views["teacher"]))
        target = other.detach() if self.one_sided else other
        return self.step_output(logits, consistency_logits, target, batch, step)


@dataclass(frozen=True, kw_only=True)
class PseudoEnsemble(ConsistencyMethod[Teacher]):
    """Pseudo-Ensemble Agreement (Bachman et al. 2014): a noisy child must agree with its noiseless parent.

    The parent is the network without dropout, the child the same with it; both are trained.

    The original penalises every layer. This is its penalty at the output, which it uses for semi-supervised learning.
    Give the role `teacher` a view without noise.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> PseudoEnsemble(decay=Constant(0.99), buffers="average", weight=SigmoidRampUp(value=10.0, steps=100)).roles
    ('student', 'teacher')
    """

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        with without_dropout(student):
            parent = class_output(untracked(student, batch.views["teacher"]))
        return self.step_output(logits, consistency_logits, parent, batch, step)


class Denoiser(nn.Module):
    """ẑ = (z̃ - μ(u)) ν(u) + μ(u), with μ and ν of the form a₁ sigmoid(a₂ u + a₃) + a₄ u + a₅ per class.

    u is the noisy prediction z̃, normalised over the batch, and over the places if there is a prediction per place. The
    denoiser starts as the identity.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        start = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])[:, None].repeat(1, n_classes)
        self.mean = nn.Parameter(start.clone())
        self.gain = nn.Parameter(start + torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])[:, None])

    def forward(self, noisy: Tensor) -> Tensor:
        all_but_classes = [axis for axis in range(noisy.ndim) if axis != 1]
        deviation = (noisy.var(all_but_classes, correction=0, keepdim=True) + 1e-5).sqrt()
        u = (noisy - noisy.mean(all_but_classes, keepdim=True)) / deviation
        shape = (5, -1, *[1] * (noisy.ndim - 2))
        mean, gain = (
            a[0] * torch.sigmoid(a[1] * u + a[2]) + a[3] * u + a[4]
            for a in (self.mean.view(shape), self.gain.view(shape))
        )
        return (noisy - mean) * gain + mean


@dataclass(frozen=True, kw_only=True)
class GammaModel(ConsistencyMethod[Memory[Denoiser]]):
    """The Gamma model (Rasmus et al. 2015): a denoiser maps the noisy prediction to the clean one.

    The student is noisy. The target is the same network without noise, detached.

    Give the role `teacher` a view without noise.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> GammaModel(decay=Constant(0.99), buffers="average", weight=SigmoidRampUp(value=10.0, steps=100)).roles
    ('student', 'teacher')
    """

    def checked(self, output: Logits) -> Tensor:
        return class_output(output)

    def init(self, student: nn.Module, problem: Problem) -> Memory[Denoiser]:
        return Memory(self.new_teacher(student, problem), Denoiser(problem.n_classes))

    def forward(self, student: nn.Module, memory: Memory[Denoiser], batch: Batch, step: int) -> StepOutput:
        logits = class_output(student(batch.views["student"]))
        with torch.no_grad(), without_dropout(student):
            clean = class_output(untracked(student, batch.views["teacher"]))
        return self.step_output(logits, memory.own(logits), clean, batch, step)
