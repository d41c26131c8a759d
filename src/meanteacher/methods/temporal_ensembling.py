"""Temporal Ensembling (Laine & Aila 2017): consistency with the average of past predictions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.teacher import Memory


class EnsembleTable(nn.Module):
    """The predictions for every training example, averaged over epochs.

    It holds two numbers per example, class and place. For dense predictions it is soon larger than the images.
    """

    average: Tensor
    latest: Tensor
    visited: Tensor
    n_updates: Tensor

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        n, shape = problem.n_examples, (problem.n_classes, *problem.label_shape)
        self.register_buffer("average", torch.zeros(n, *shape))
        self.register_buffer("latest", torch.zeros(n, *shape))
        self.register_buffer("visited", torch.zeros(n, dtype=torch.bool))
        self.register_buffer("n_updates", torch.zeros(n))

    def target(self, index: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
        """Bias-corrected predictions as logits [B, C, ...], and a mask [B] of the rows that have any yet."""
        known = self.n_updates[index] > 0
        correction = 1 - momentum ** self.n_updates[index].clamp_min(1)
        correction = correction.view(-1, *[1] * (self.average.ndim - 1))
        return (self.average[index] / correction).clamp_min(1e-30).log(), known

    def note(self, index: Tensor, predictions: Tensor) -> None:
        """Store the predictions [B, C, ...] until the end of the epoch."""
        self.latest[index] = predictions
        self.visited[index] = True

    def end_epoch(self, momentum: float) -> None:
        """Update the averages with the predictions of the epoch.

        Rows that were not visited keep their target. The original code counts the predictions of an incomplete last
        batch as zero, which shrinks their targets.
        """
        rows = self.visited
        self.average[rows] = momentum * self.average[rows] + (1 - momentum) * self.latest[rows]
        self.n_updates[rows] += 1
        self.visited.zero_()


@dataclass(frozen=True, kw_only=True)
class TemporalEnsembling(ConsistencyMethod[Memory[EnsembleTable]]):
    """Temporal Ensembling (Laine & Aila 2017): consistency with the average of past predictions.

    The target of an example is the average of the network's predictions for it in earlier epochs.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> weight = SigmoidRampUp(value=10.0, steps=100)
    >>> TemporalEnsembling(decay=Constant(0.99), buffers="average", weight=weight, epoch_steps=500).roles
    ('student',)
    """

    momentum: float = 0.6
    epoch_steps: int
    """Length of an epoch: the steps between two updates of the targets."""
    roles: ClassVar[tuple[str, ...]] = ("student",)

    def init(self, student: nn.Module, problem: Problem) -> Memory[EnsembleTable]:
        return Memory(self.new_teacher(student, problem), EnsembleTable(problem))

    def forward(self, student: nn.Module, memory: Memory[EnsembleTable], batch: Batch, step: int) -> StepOutput:
        logits, consistency_logits = self.outputs(student(batch.views["student"]))
        target, known = memory.own.target(batch.index.to(memory.own.average.device), self.momentum)
        # No row is known in the first epoch, so the cost is inactive.
        return self.step_output(logits, consistency_logits, target, batch, step, rows=known)

    def after_step(
        self, student: nn.Module, memory: Memory[EnsembleTable], batch: Batch, output: StepOutput, step: int
    ) -> None:
        super().after_step(student, memory, batch, output, step)
        memory.own.note(batch.index.to(memory.own.average.device), output.logits.detach().softmax(1))
        if (step + 1) % self.epoch_steps == 0:
            memory.own.end_epoch(self.momentum)
