"""FreeMatch (Wang et al. 2023): FixMatch with thresholds that follow the network's own certainty."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Problem, StepOutput
from meanteacher.methods.fixmatch import FixMatch
from meanteacher.teacher import Buffers, Teacher


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
    """The threshold starts at 1 / n_classes and rises with the network's certainty, to `threshold` at most.

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
