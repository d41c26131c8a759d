"""What every part agrees on: a batch, a step's output, and the shapes of the things that plug in."""

from __future__ import annotations  # torch is for the reader here: checking a folder should not wait for it

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

UNLABELLED = -1
"""The label of a row whose label is hidden or unknown: scikit-learn's convention."""

Schedule = Callable[[int], float]
"""step -> value"""

ADDED_LATER: Mapping[str, bool] = {"added later": True}
"""Metadata of a dataclass field that recipes did not always have: at its default it is left out of a recipe's
description, so that older records and runs keep their fingerprint."""

Augment = Callable[["Tensor", "torch.Generator"], "Tensor"]
"""A whole batch of images and a source of randomness -> the batch as one role sees it."""


class InputError(ValueError):
    """Something the caller gave is wrong. The message says what, and what to do about it."""


class DivergedError(RuntimeError):
    """Training produced a value that is not finite; the last good checkpoint is untouched."""


class Interrupted(Exception):  # noqa: N818 - not an error: everything is saved
    """The user stopped a run or a fit, which can be resumed."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        InputError: names the choices.
    """
    if value not in choices:
        raise InputError(f"{name} is one of {', '.join(choices)}; got {value!r}.")


@dataclass(frozen=True, slots=True)
class Problem:
    """What a network and a method may know about the data they are built for."""

    n_classes: int
    n_examples: int
    input_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on. A hidden label never enters it."""

    views: Mapping[str, Tensor]
    """role -> [B, ...]: the same images as each role sees them."""
    labels: Tensor
    """[B], `UNLABELLED` where hidden."""
    index: Tensor
    """[B], positions in the training set."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a method makes of a batch."""

    costs: Mapping[str, Tensor]
    """Named and already weighted; their sum is what is minimised."""
    logits: Tensor
    """[B, n_classes], the student's."""
    weights: Mapping[str, float | Tensor] = field(default_factory=dict)
    """The factor already inside each cost, 1 where not named. A cost of weight zero may rest; any other
    cost that moves nothing is an alarm. Where it depends on the batch it stays on the device, as the costs do:
    reading it would make the step wait."""


class Method(Protocol):
    """A way to learn from labelled and unlabelled rows.

    A method is a frozen value: everything that changes during training lives in the student and in
    the memory that `init` returns, and is saved and restored with them.
    """

    roles: ClassVar[tuple[str, ...]]

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        """The method's memory at step 0, for instance a teacher."""
        ...

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        """The costs of one step. Writes nothing but what the networks' own layers write."""
        ...

    def after_step(self, student: nn.Module, memory: nn.Module, batch: Batch, output: StepOutput, step: int) -> None:
        """The only place that writes the memory, after the optimiser has moved the student."""
        ...

    def predictor(self, student: nn.Module, memory: nn.Module) -> nn.Module:
        """The network that is evaluated and shipped."""
        ...


class Stream(Protocol):
    """The batches of a run: batch t is a pure function of (seed, t)."""

    def __getitem__(self, step: int) -> Batch: ...


@runtime_checkable
class InitialisesFromData(Protocol):
    """A network whose first weights depend on a batch of training images."""

    def initialise_from(self, images: Tensor) -> None: ...
