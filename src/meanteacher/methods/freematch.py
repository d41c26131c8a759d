"""FreeMatch (Wang et al. 2023): FixMatch with thresholds that follow the network's own certainty."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Problem, StepOutput
from meanteacher.costs import classification_cost
from meanteacher.methods.fixmatch import FixMatch
from meanteacher.teacher import Buffers, Teacher


class Certainty(Teacher):
    """Running averages: how certain the network is, of each class, and how often it says each."""

    overall: Tensor
    per_class: Tensor
    frequency: Tensor

    def __init__(self, student: nn.Module, n_classes: int, *, buffers: Buffers) -> None:
        super().__init__(student, buffers=buffers)
        uniform = torch.full((n_classes,), 1 / n_classes)
        self.register_buffer("overall", uniform[0].clone())
        self.register_buffer("per_class", uniform.clone())
        self.register_buffer("frequency", uniform.clone())

    def threshold(self) -> Tensor:
        """[C]: the overall certainty, lower for classes that are harder at present."""
        return self.overall * self.per_class / self.per_class.max()

    def note(self, probabilities: Tensor, momentum: float) -> None:
        confidence, guess = probabilities.max(1)
        counts = torch.bincount(guess, minlength=len(self.frequency)).to(self.frequency)
        self.overall.lerp_(confidence.mean(), 1 - momentum)
        self.per_class.lerp_(probabilities.mean(0), 1 - momentum)
        self.frequency.lerp_(counts / counts.sum(), 1 - momentum)


@dataclass(frozen=True, kw_only=True)
class FreeMatch(FixMatch):
    """`threshold` is where it starts from below: the learned ones never ask for more than that."""

    threshold: float = 1.0
    momentum: float = 0.999
    fairness: float = 0.01
    """Weight of the cost that keeps the predictions from settling on few classes."""
    roles: ClassVar[tuple[str, ...]] = ("student", "strong")

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return Certainty(student, problem.n_classes, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        assert isinstance(memory, Certainty)
        weak, strong = self.both_views(student, batch)
        confidence, guess = weak.detach().softmax(1).max(1)
        certain = (confidence >= memory.threshold()[guess].clamp_max(self.threshold)) & (batch.labels == UNLABELLED)
        weight = self.weight(step)
        learns = bool(certain.any())
        costs = {
            "classification": classification_cost(weak, batch.labels),
            "pseudo-label": weight * self.pseudo_label_cost(strong, guess, certain, batch),
            "fairness": weight * self.fairness * _unfairness(strong, certain, memory),
        }
        weights = {"pseudo-label": weight if learns else 0.0, "fairness": weight * self.fairness if learns else 0.0}
        return StepOutput(costs, weak, weights)

    def after_step(self, student: nn.Module, memory: nn.Module, batch: Batch, output: StepOutput, step: int) -> None:
        assert isinstance(memory, Certainty)
        super().after_step(student, memory, batch, output, step)
        unlabelled = output.logits.detach()[batch.labels == UNLABELLED]
        if len(unlabelled):
            memory.note(unlabelled.softmax(1), self.momentum)


def _unfairness(strong: Tensor, certain: Tensor, memory: Certainty) -> Tensor:
    """Negative cross-entropy from the expected to the present distribution of the certain predictions.

    Both are divided by how often each class is said, so that a class that is said too often is held back.
    """
    rows = certain.float()[:, None]
    probabilities = strong.softmax(1)
    said = torch.nn.functional.one_hot(strong.detach().argmax(1), strong.shape[1]).float()
    n_certain = rows.sum().clamp_min(1)
    present = (probabilities * rows).sum(0) / n_certain
    frequency = (said * rows).sum(0) / n_certain
    expected = _normalised(memory.per_class / memory.frequency.clamp_min(1e-6))
    now = _normalised(present / torch.where(frequency > 0, frequency, 1.0))
    return (expected * (now + 1e-12).log()).sum()


def _normalised(x: Tensor) -> Tensor:
    return x / x.sum().clamp_min(1e-12)
