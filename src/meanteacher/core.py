"""The types that all parts share: a batch, the output of a step, and the protocols of methods and streams."""

from __future__ import annotations  # torch is imported late: checking a folder should not wait for it

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

UNLABELLED = -1
"""The label of a row whose label is hidden or unknown: scikit-learn's convention."""

Schedule = Callable[[int], float]
"""step -> value"""

Scheduled = Schedule | float
"""A schedule, or a number for a constant one."""

LOCATION: Mapping[str, bool] = {"location": True}
"""Metadata of a dataclass field that says where a file lies. It is left out of a recipe's description: a folder may be
moved, and another field holds the digest of the content."""

Augment = Callable[["Tensor", "torch.Generator"], "Tensor"]
"""A whole batch of images and a source of randomness -> the batch as one role sees it."""

Progress = Callable[[int, int], None]
"""Called as work goes on, with the images or bytes so far and in total."""


Resume = bool | Literal["auto"]
"""Whether to continue what was started in a folder; "auto" continues if anything was, and starts otherwise."""


class InputError(ValueError):
    """An argument, option or file is wrong. The message says what was expected and what to do.

    >>> import meanteacher as mt
    >>> try:
    ...     mt.run("digits/mean-techer")
    ... except mt.InputError as error:
    ...     print(error)
    There is no recipe 'digits/mean-techer'. Did you mean digits/mean-teacher...
    """

    exit_code: ClassVar[int] = 2
    """Exit code of a command that ends with this error."""


class MissingBackboneError(InputError):
    """Pretrained weights, or the library that has them, are not installed or cannot be reached."""


class MissingExtraError(InputError, ImportError):
    """A package that an extra of `meanteacher` brings is not installed.

    >>> print(MissingExtraError("mt.fit", "onnx", extra="photos"))
    mt.fit needs the package onnx, which is not installed. Install it with: pip install 'meanteacher[photos]'
    """

    def __init__(self, user: str, package: str, *, extra: str) -> None:
        super().__init__(
            f"{user} needs the package {package}, which is not installed. Install it with: "
            f"pip install 'meanteacher[{extra}]'"
        )


def imported(module: str, user: str, *, extra: str) -> Any:
    """A module of a package that is not part of the core, or a `MissingExtraError` that names the extra.

    >>> imported("json", "This example", extra="train").loads("3")
    3
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(user, (error.name or module).partition(".")[0], extra=extra) from error


class DivergedError(RuntimeError):
    """Training produced a value that is not finite; the last good checkpoint is untouched.

    >>> try:
    ...     raise DivergedError("The cost 'consistency' is nan.")
    ... except RuntimeError as error:
    ...     print(error)
    The cost 'consistency' is nan.
    """

    exit_code: ClassVar[int] = 3


class LostRankError(RuntimeError):
    """Another process of the run did not answer in time. The last checkpoint is intact."""

    exit_code: ClassVar[int] = 1


class FirstRankError(InputError):
    """Rank 0 has refused something and said so; the other processes of the run end with it."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """A callback's `should_stop` ended the work. Everything is saved, and the folder can be resumed.

    >>> import meanteacher as mt
    >>> from tempfile import mkdtemp
    >>> try:
    ...     mt.run("moons/supervised", out=f"{mkdtemp()}/run", callbacks=[mt.StopWhen(lambda: True)])
    ... except mt.Interrupted as stopped:
    ...     print(stopped)
    Interrupted after step 1; nothing is lost.
    """

    exit_code: ClassVar[int] = 75


def labelled_rows(labels: Tensor) -> Tensor:
    """Bool [B]: which rows have a label; of dense labels [B, ...], in any place."""
    return (labels != UNLABELLED)[..., None].flatten(1).any(1)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        *first, last = choices
        raise InputError(f"{name} has to be {', '.join(first)} or {last}; got {value!r}.")


class Images(Protocol):
    """N images of one size: a tensor [N, ...], or an object that decodes the images it is asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice, /) -> Tensor:
        """The images at these positions, as evaluation shows them."""
        ...


def parts(images: Images, index: Tensor | None, size: int) -> Iterator[Tensor]:
    """`size` images at a time, all of them or those at `index`, without a copy of all."""
    if index is None:
        for start in range(0, max(1, len(images)), size):
            yield images[start : start + size]
    else:
        for part in index.split(size):
            yield images[part]


@dataclass(frozen=True, slots=True)
class Problem:
    """What a network and a method may know about the data they are built for.

    >>> Problem(n_classes=10, n_examples=50_000, input_shape=(3, 32, 32)).n_classes
    10
    """

    n_classes: int
    n_examples: int
    input_shape: tuple[int, ...]
    label_shape: tuple[int, ...] = ()
    """Shape of one example's label: () for one class per example, (H, W) for one per pixel, (T,) for one per token. The
    network returns logits [B, n_classes, *label_shape]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on. Hidden labels are not part of it.

    >>> images = torch.zeros(3, 1, 8, 8)
    >>> batch = Batch({"student": images, "teacher": images}, torch.tensor([1, UNLABELLED, 0]), torch.arange(3))
    >>> int((batch.labels != UNLABELLED).sum())
    2
    """

    views: Mapping[str, Tensor]
    """role -> [B, ...]: the same images as each role sees them."""
    labels: Tensor
    """[B] or [B, ...], `UNLABELLED` where hidden."""
    index: Tensor
    """[B], positions in the training set."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost and the weight inside it.

    >>> Cost(10.0 * torch.tensor(0.5), weight=10.0).value
    tensor(5.)
    """

    value: Tensor
    """A scalar, already multiplied by the weight."""
    weight: float | Tensor | None = None
    """None for a cost without one. Zero means that the cost is inactive, for instance before its ramp-up or without a
    confident row. An active cost without a gradient is an alarm. A weight that depends on the batch
    stays on the device: reading it would make the step wait."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a method computes from a batch.

    >>> costs = {"classification": Cost(torch.tensor(1.0)), "consistency": Cost(torch.tensor(0.5), weight=10.0)}
    >>> StepOutput(costs, logits=torch.zeros(4, 2)).total
    tensor(1.5000)
    """

    costs: Mapping[str, Cost]
    logits: Tensor
    """[B, n_classes] or [B, n_classes, ...], the student's."""

    @property
    def total(self) -> Tensor:
        """The sum of the costs: what is minimised."""
        import torch

        return torch.stack([cost.value for cost in self.costs.values()]).sum()


class Method(Protocol):
    """A way to learn from labelled and unlabelled rows.

    A method is a frozen value. Everything that changes during training is in the student and in the memory, which
    `init` returns and the other functions take; both are saved and restored. Each method types its own memory.

    >>> from meanteacher.methods import METHODS
    >>> METHODS["fixmatch"].roles
    ('student', 'strong')
    """

    roles: ClassVar[tuple[str, ...]]

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        """The memory at step 0, for instance a teacher."""
        ...

    def forward(self, student: nn.Module, memory: Any, batch: Batch, step: int) -> StepOutput:
        """The costs of one step. Writes nothing but what the networks' own layers write."""
        ...

    def after_step(self, student: nn.Module, memory: Any, batch: Batch, output: StepOutput, step: int) -> None:
        """Update the memory, after the optimiser has moved the student. Nothing else writes it."""
        ...

    def predictor(self, student: nn.Module, memory: Any) -> nn.Module:
        """The network that is evaluated and shipped, in evaluation mode. The student's mode stays as it is."""
        ...


class Stream(Protocol):
    """The batches of a run: batch t is a pure function of (seed, t)."""

    def __getitem__(self, step: int) -> Batch: ...


@runtime_checkable
class InitialisesFromData(Protocol):
    """A network whose first weights depend on a batch of training images."""

    def initialise_from(self, images: Tensor) -> None: ...
