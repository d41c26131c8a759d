"""Temporal Ensembling (Laine & Aila 2017): agree with the average of one's past predictions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.teacher import Buffers, Teacher


class EnsembleTable(Teacher):
    """The predictions of every training example, averaged over epochs. Its size grows with the data set."""

    average: Tensor
    latest: Tensor
    visited: Tensor
    n_updates: Tensor

    def __init__(self, student: nn.Module, problem: Problem, *, buffers: Buffers) -> None:
        super().__init__(student, buffers=buffers)
        n, n_classes = problem.n_examples, problem.n_classes
        self.register_buffer("average", torch.zeros(n, n_classes))
        self.register_buffer("latest", torch.zeros(n, n_classes))
        self.register_buffer("visited", torch.zeros(n, dtype=torch.bool))
        self.register_buffer("n_updates", torch.zeros(n))

    def target(self, index: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
        """Bias-corrected predictions as logits [B, C], and which rows have any yet [B]."""
        known = self.n_updates[index] > 0
        correction = 1 - momentum ** self.n_updates[index].clamp_min(1)
        return (self.average[index] / correction[:, None]).clamp_min(1e-30).log(), known

    def note(self, index: Tensor, predictions: Tensor) -> None:
        self.latest[index] = predictions
        self.visited[index] = True

    def end_epoch(self, momentum: float) -> None:
        """Take the epoch's predictions into the average.

        Rows that were not visited keep their target: taking them for zero, as the original code does with the
        incomplete last batch, shrinks it.
        """
        rows = self.visited
        self.average[rows] = momentum * self.average[rows] + (1 - momentum) * self.latest[rows]
        self.n_updates[rows] += 1
        self.visited.zero_()


@dataclass(frozen=True, kw_only=True)
class TemporalEnsembling(ConsistencyMethod):
    """Temporal Ensembling (Laine & Aila 2017): agree with the average of one's past predictions.

    The target of an example is the average of what the network said of it in earlier epochs.
    """

    momentum: float = 0.6
    epoch_steps: int
    """Steps between two updates of the targets: as many as one pass over the training set takes."""
    roles: ClassVar[tuple[str, ...]] = ("student",)

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return EnsembleTable(student, problem, buffers=self.buffers)

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        assert isinstance(memory, EnsembleTable)
        logits, matched = self.outputs(student(batch.views["student"]))
        target, known = memory.target(batch.index.to(memory.average.device), self.momentum)
        result = self.step_output(logits, matched, target, batch, step, rows=known)
        # The first epoch has nothing to agree with.
        weight = result.weights["consistency"] * known.any()
        return StepOutput(result.costs, result.logits, {**result.weights, "consistency": weight})

    def after_step(self, student: nn.Module, memory: nn.Module, batch: Batch, output: StepOutput, step: int) -> None:
        assert isinstance(memory, EnsembleTable)
        super().after_step(student, memory, batch, output, step)
        memory.note(batch.index.to(memory.average.device), output.logits.detach().softmax(1))
        if (step + 1) % self.epoch_steps == 0:
            memory.end_epoch(self.momentum)
