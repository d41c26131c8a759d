"""Which examples form batch t: the two schemes of the paper, each a pure function of (seed, t)."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from meanteacher.core import InputError, check_choice
from meanteacher.data.split import Split
from meanteacher.seeding import generator


class Sampler(Protocol):
    """Draws the rows of a batch."""

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """Positions [B] in the training set, and whether each row may show its label [B]."""
        ...

    @property
    def labelled_share(self) -> float:
        """The declared share of labelled rows, which the live vitals hold the batches to."""
        ...

    @property
    def exact(self) -> bool:
        """Whether every batch has exactly that share, or only the average batch."""
        ...


class BatchSpec(Protocol):
    """How batches are composed: the part of a recipe that becomes a sampler once the split is known."""

    @property
    def size(self) -> int: ...

    def sampler(self, split: Split, seed: int) -> Sampler: ...


@dataclass(slots=True, eq=False)
class ShuffledPool:
    """An endless sequence: all of a pool in random order, then all again in another order, and so on.

    Position p belongs to pass p // len(pool), whose order is a function of (seed, purpose, pass). The last pass is
    cached, which only saves time.
    """

    pool: Tensor
    seed: int
    purpose: str
    _pass: int = -1
    _order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def take(self, start: int, count: int) -> Tensor:
        """Entries start .. start + count of the sequence."""
        taken = []
        while count > 0:
            number, offset = divmod(start, len(self.pool))
            piece = self._ordered(number)[offset : offset + count]
            taken.append(piece)
            start, count = start + len(piece), count - len(piece)
        return torch.cat(taken) if taken else self.pool[:0]

    def _ordered(self, number: int) -> Tensor:
        if number != self._pass:
            shuffle = generator(self.seed, self.purpose, number)
            self._order = self.pool[torch.randperm(len(self.pool), generator=shuffle)]
            self._pass = number
        return self._order


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Labelled and unlabelled examples treated equally: the labelled count varies (CIFAR-10, App. B.1.1)."""

    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)

    def sampler(self, split: Split, seed: int) -> Sampler:
        _check_labelled(split)
        return _MixedSampler(self.size, split, seed)


class _MixedSampler:
    exact = False

    def __init__(self, size: int, split: Split, seed: int) -> None:
        self.size = size
        all_rows = torch.cat([split.labelled, split.unlabelled])
        self.pool = ShuffledPool(all_rows, seed, "order")
        self.shows_label = torch.zeros(split.n_examples, dtype=torch.bool)
        self.shows_label[split.labelled] = True
        self.labelled_share = len(split.labelled) / len(all_rows)

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        index = self.pool.take(step * self.size, self.size)
        return index, self.shows_label[index]


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A fixed number of labelled examples in every batch (SVHN: 1 of 100; ResNet: 124 of 512).

    Either pool is shuffled and used again when it is used up, within a batch if it is smaller than its
    share. Without unlabelled data every row is a labelled one.
    """

    size: int
    labelled: int
    unlabelled_pool: Literal["all", "unlabelled"]
    """Whether the rows without label are drawn from all images, as the authors' TensorFlow code does, or
    from those outside the labelled set only, as their PyTorch code does."""

    def __post_init__(self) -> None:
        _check_size(self.size)
        if not 1 <= self.labelled <= self.size:
            raise InputError(
                f"labelled={self.labelled} rows do not fit a batch of size={self.size}. "
                f"Take 1 to {self.size} labelled rows, or a larger batch."
            )
        check_choice("unlabelled_pool", self.unlabelled_pool, ("all", "unlabelled"))

    def sampler(self, split: Split, seed: int) -> Sampler:
        _check_labelled(split)
        return _FixedSampler(self, split, seed)


class _FixedSampler:
    exact = True

    def __init__(self, spec: Fixed, split: Split, seed: int) -> None:
        others = split.unlabelled
        if spec.unlabelled_pool == "all":
            others = torch.cat([split.labelled, split.unlabelled])
        self.n_labelled = spec.labelled if len(others) else spec.size
        self.n_unlabelled = spec.size - self.n_labelled
        self.labelled = ShuffledPool(split.labelled, seed, "order/labelled")
        self.unlabelled = ShuffledPool(others, seed, "order/unlabelled")
        self.shows_label = torch.arange(spec.size) < self.n_labelled
        self.labelled_share = self.n_labelled / spec.size

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        index = torch.cat(
            [
                self.labelled.take(step * self.n_labelled, self.n_labelled),
                self.unlabelled.take(step * self.n_unlabelled, self.n_unlabelled),
            ]
        )
        return index, self.shows_label


def _check_size(size: int) -> None:
    if size < 1:
        raise InputError(f"A batch needs at least one row, got size={size}.")


def _check_labelled(split: Split) -> None:
    if len(split.labelled) == 0:
        raise InputError("No image is labelled: there is nothing to learn the classes from. Label a few first.")
