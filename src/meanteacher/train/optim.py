"""Descriptions of optimisers: Adam and SGD of the paper, and Muon. Parameters are schedules or numbers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from meanteacher.core import Scheduled
from meanteacher.schedules import as_schedule, fix_schedules


@runtime_checkable
class OptimSpec(Protocol):
    """The part of a recipe that builds the optimiser of a network."""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer: ...

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the scheduled parameters, which are functions of the step alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class AdamSpec:
    """Adam with ramped learning rate, beta1 and beta2 (App. B.1)."""

    learning_rate: Scheduled
    beta1: Scheduled
    beta2: Scheduled
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        fix_schedules(self)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, eps=self.epsilon, fused=True)

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = as_schedule(self.learning_rate)(step)
            group["betas"] = (as_schedule(self.beta1)(step), as_schedule(self.beta2)(step))


@dataclass(frozen=True, kw_only=True)
class SgdSpec:
    """Stochastic gradient descent with Nesterov momentum and L2 weight decay (App. B.2)."""

    learning_rate: Scheduled
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        fix_schedules(self)

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
            group["lr"] = as_schedule(self.learning_rate)(step)


@dataclass(frozen=True, kw_only=True)
class MuonSpec:
    """Muon for convolutions (Jordan et al. 2024), SGD with Nesterov momentum for everything else.

    Updates are orthogonal matrices: with equal singular values, every direction of a layer moves equally. Training
    takes a third of the steps. torch's own Muon takes matrices only.
    """

    learning_rate: Scheduled
    """Learning rate of the convolutions. Each update has a spectral norm of about one."""
    sgd_learning_rate: Scheduled
    """Learning rate of the other parameters: the last layer, and scales and shifts of normalisation."""
    momentum: float = 0.9
    weight_decay: float = 0.0
    """Added to the gradients of the other parameters."""
    matrix_decay: float = 0.0
    """The convolutions shrink by learning rate times this in every step."""

    def __post_init__(self) -> None:
        fix_schedules(self)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        every = list(parameters)
        return _MuonOptimizer([p for p in every if p.ndim == 4], [p for p in every if p.ndim != 4], spec=self)

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        matrices, others = optimizer.param_groups
        matrices["lr"] = as_schedule(self.learning_rate)(step)
        others["lr"] = as_schedule(self.sgd_learning_rate)(step)


@dataclass(frozen=True)
class TorchOptim:
    """An optimiser of torch by a function of the parameters, such as `partial(torch.optim.AdamW, lr=1e-3)`."""

    factory: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.factory(parameters)

    def set_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Nothing is scheduled."""


class _MuonOptimizer(torch.optim.Optimizer):
    """Two groups: matrices, and the others."""

    def __init__(self, matrices: list[nn.Parameter], others: list[nn.Parameter], *, spec: MuonSpec) -> None:
        groups: list[dict[str, Any]] = [
            {"params": matrices, "decay": spec.matrix_decay},
            {"params": others, "decay": spec.weight_decay},
        ]
        super().__init__(groups, {"lr": 0.0, "momentum": spec.momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        matrices, others = self.param_groups
        for parameter in matrices["params"]:
            if parameter.grad is not None:
                average = self._momentum(parameter)
                average.lerp_(parameter.grad, 1 - matrices["momentum"])
                update = orthogonal(parameter.grad.lerp(average, matrices["momentum"]).flatten(1))
                parameter.mul_(1 - matrices["lr"] * matrices["decay"])
                # A tall matrix spreads the same norm over more outputs.
                tall = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
                parameter.add_(update.view_as(parameter), alpha=-matrices["lr"] * tall)
        moved = [p for p in others["params"] if p.grad is not None]
        if moved:
            gradients = torch._foreach_add([p.grad for p in moved], moved, alpha=others["decay"])
            sums = [self._momentum(p) for p in moved]
            torch._foreach_mul_(sums, others["momentum"])
            torch._foreach_add_(sums, gradients)
            torch._foreach_add_(gradients, sums, alpha=others["momentum"])
            torch._foreach_add_(moved, gradients, alpha=-others["lr"])

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


def orthogonal(matrix: Tensor, iterations: int = 3) -> Tensor:
    """A matrix with the same singular vectors and singular values near one, by Newton and Schulz's iteration.

    The polynomial's coefficients are those of Jordan et al.: they trade exactness for few iterations: singular values
    end between about 0.7 and 1.2.

    >>> bool((torch.linalg.svdvals(orthogonal(torch.diag(torch.tensor([3.0, 2.0])))) - 1).abs().max() < 0.35)
    True
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x: Tensor = wide / (wide.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
