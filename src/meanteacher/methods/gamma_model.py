"""The Gamma model (Rasmus et al. 2015): undo the noise, and arrive at the clean prediction."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.passes import class_output, untracked, without_dropout
from meanteacher.teacher import Buffers, Teacher


class Denoiser(nn.Module):
    """ẑ = (z̃ - μ(u)) ν(u) + μ(u), with μ and ν of the form a₁ sigmoid(a₂ u + a₃) + a₄ u + a₅, a unit each.

    u is the noisy prediction itself, normalised over the batch. It starts as the identity.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        start = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])[:, None].repeat(1, n_classes)
        self.mean = nn.Parameter(start.clone())
        self.gain = nn.Parameter(start + torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])[:, None])

    def forward(self, noisy: Tensor) -> Tensor:
        u = (noisy - noisy.mean(0)) / (noisy.var(0, correction=0) + 1e-5).sqrt()
        mean, gain = (a[0] * torch.sigmoid(a[1] * u + a[2]) + a[3] * u + a[4] for a in (self.mean, self.gain))
        return (noisy - mean) * gain + mean


class GammaMemory(Teacher):
    """The weight average that is evaluated, and the denoiser, which is trained with the student."""

    def __init__(self, student: nn.Module, n_classes: int, *, buffers: Buffers) -> None:
        super().__init__(student, buffers=buffers)
        self.denoise = Denoiser(n_classes)


@dataclass(frozen=True, kw_only=True)
class GammaModel(ConsistencyMethod):
    """The Gamma model (Rasmus et al. 2015): undo the noise, and arrive at the clean prediction.

    The student is noisy, the teacher is the same network without noise, taken as a constant.

    Give the role `teacher` a view without noise.
    """

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return GammaMemory(student, problem.n_classes, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        assert isinstance(memory, GammaMemory)
        logits = class_output(student(batch.views["student"]))
        with torch.no_grad(), without_dropout(student):
            clean = class_output(untracked(student, batch.views["teacher"]))
        return self.step_output(logits, memory.denoise(logits), clean, batch, step)
