"""The two optimisers of the paper, every parameter of theirs a schedule or a number."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from meanteacher.core import Schedule


class OptimSpec(Protocol):
    """The part of a recipe that becomes an optimiser once there is a network."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer: ...

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Give the optimiser its parameters for this step: a function of the step alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam with ramped learning rate, beta1 and beta2 (App. B.1)."""

    learning_rate: Schedule
    beta1: Schedule
    beta2: Schedule
    epsilon: float = 1e-8

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, eps=self.epsilon, fused=True)

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
            group["betas"] = (self.beta1(step), self.beta2(step))


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent with Nesterov momentum and L2 weight decay (App. B.2)."""

    learning_rate: Schedule
    momentum: float = 0.9
    weight_decay: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters,
            lr=0.0,
            momentum=self.momentum,
            nesterov=self.momentum > 0,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
