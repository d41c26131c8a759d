"""Which images of a data set are labelled, and which of them form the batch of step t.

Both are functions of the seed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError, check_choice
from meanteacher.files import read_regular, write_atomic
from meanteacher.seeding import generator

_HEADER = "meanteacher split 1"
_MAX_BYTES = 1 << 28
_MAX_EXAMPLES = 1 << 28
_MAX_ROWS = 1 << 20
"""Rows of a batch, far more than any memory holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The training set in three disjoint parts of positions, each sorted."""

    labelled: Tensor
    unlabelled: Tensor
    validation: Tensor
    """Kept apart: neither its images nor its labels are trained on."""

    @property
    def n_examples(self) -> int:
        return len(self.labelled) + len(self.unlabelled) + len(self.validation)

    def to_text(self) -> str:
        """A few lines that determine the split: images that are not listed are unlabelled."""
        lines = [_HEADER, f"examples {self.n_examples}"]
        for name in ("labelled", "validation"):
            lines.append(" ".join([name, *map(str, getattr(self, name).tolist())]))
        return "\n".join(lines) + "\n"

    def fingerprint(self) -> str:
        return hashlib.sha256(self.to_text().encode()).hexdigest()[:16]

    def save(self, path: Path) -> None:
        write_atomic(path, self.to_text())

    @staticmethod
    def load(path: Path) -> "Split":
        """Read a file that `save` wrote, or raise an InputError if it is not a split."""
        try:
            header, examples, labelled, validation = read_regular(path, _MAX_BYTES).decode().splitlines()
            if header != _HEADER:
                raise ValueError(f"its first line is {header[:40]!r}")
            (n_examples,) = _values(examples, "examples")
            return _assemble(n_examples, _values(labelled, "labelled"), _values(validation, "validation"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not a split written by meanteacher ({error}). Delete it and draw the split again."
            ) from error


def make_split(labels: Tensor, *, n_classes: int, n_labelled: int | None, seed: int, validation: float = 0.0) -> Split:
    """Draw a split in which every class has the same number of labels, or raise an InputError if there are too few.

    The paper keeps a share of 0.1 of the labelled data apart for validation. All labels are kept if `n_labelled` is
    None.

    >>> split = make_split(torch.arange(100) % 10, n_classes=10, n_labelled=20, seed=0)
    >>> len(split.labelled), len(split.unlabelled), len(split.validation)
    (20, 80, 0)
    """
    if not 0 <= validation < 1:
        raise InputError(f"validation is a share of the training data from 0 to below 1, got {validation}.")
    known = (labels != UNLABELLED).nonzero().flatten()
    order = known[torch.randperm(len(known), generator=generator(seed, "split"))]
    n_validation = round(validation * len(known))
    kept_apart, rest = order[:n_validation], order[n_validation:]
    chosen = rest if n_labelled is None else _balanced(rest, labels[rest], n_classes, n_labelled)
    return _assemble(len(labels), chosen.tolist(), kept_apart.tolist())


def read_label_list(path: Path, *, names: Sequence[str], labels: Tensor, class_names: Sequence[str]) -> Split:
    """The split in which exactly the listed images are labelled, such as the authors' lists for ImageNet.

    Each line is the name of a file, without its folders, and of its class: "n01440764_10026.JPEG n01440764". `names`
    are those of the training images, with folders before a slash. An InputError names a line that cannot be read, an
    image that is listed twice, is not there, has another class or none.
    """
    try:
        lines = read_regular(path, _MAX_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}). Give a text file with one image per line.") from error
    wanted: dict[tuple[str, str], int | None] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)
        if len(words) != 2:
            raise InputError(f"{path}, line {number}: {line.strip()!r}, expected the name of a file and of its class.")
        key = words[0].strip(), words[1]
        if key in wanted:
            raise InputError(f"{path}, line {number}: {key[0]} is listed twice. Remove one of the lines.")
        wanted[key] = None
    listed, actual = {name for name, _ in wanted}, {}
    for position, (name, label) in enumerate(zip(names, labels.tolist(), strict=True)):
        file = name.rpartition("/")[2]
        if file in listed and label != UNLABELLED:
            actual[file] = class_name = class_names[label]
            if (file, class_name) in wanted:
                wanted[file, class_name] = position
    for (file, class_name), found in wanted.items():
        if found is None and file in actual:
            raise InputError(f"{path} lists {file} as {class_name}, but its class is {actual[file]}. Correct the list.")
        if found is None:
            raise InputError(
                f"{path} lists {file}, which is no training image with a class. Is it the list of another data set?"
            )
    return _assemble(len(labels), [position for position in wanted.values() if position is not None], [])


def _balanced(candidates: Tensor, labels: Tensor, n_classes: int, n_labelled: int) -> Tensor:
    if n_labelled <= 0 or n_labelled % n_classes:
        nearest = max(n_classes, n_labelled // n_classes * n_classes)
        raise InputError(
            f"n_labelled={n_labelled} cannot be shared equally by {n_classes} classes. "
            f"Take a multiple of {n_classes}, for instance {nearest}."
        )
    each = n_labelled // n_classes
    counts = torch.bincount(labels, minlength=n_classes)
    if int(counts.min()) < each:
        scarce = int(counts.argmin())
        most = int(counts[scarce]) * n_classes
        raise InputError(
            f"n_labelled={n_labelled} needs {each} labels in every class, but class {scarce} has "
            f"{int(counts[scarce])}. {f'Take at most {most}.' if most else 'Label some of it first.'}"
        )
    return torch.cat([candidates[labels == c][:each] for c in range(n_classes)])


def _assemble(n_examples: int, labelled: list[int], validation: list[int]) -> Split:
    if not 0 <= n_examples <= _MAX_EXAMPLES:
        raise ValueError(f"there cannot be {n_examples} examples")
    listed = [*labelled, *validation]
    if len(set(listed)) != len(listed):
        raise ValueError("a position is listed twice")
    if listed and not 0 <= min(listed) <= max(listed) < n_examples:
        raise ValueError(f"a position lies outside the {n_examples} examples")
    rest = torch.ones(n_examples, dtype=torch.bool)
    rest[listed] = False
    return Split(
        labelled=torch.tensor(sorted(labelled), dtype=torch.int64),
        unlabelled=rest.nonzero().flatten(),
        validation=torch.tensor(sorted(validation), dtype=torch.int64),
    )


def _values(line: str, name: str) -> list[int]:
    first, *values = line.split(" ")
    if first != name:
        raise ValueError(f"expected the line {name!r}, found {first[:40]!r}")
    return [int(value) for value in values]


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
    if not 1 <= size <= _MAX_ROWS:
        raise InputError(f"A batch needs at least one row and at most {_MAX_ROWS:,}, got size={size}.")


def _check_labelled(split: Split) -> None:
    if len(split.labelled) == 0:
        raise InputError("No image is labelled: there is nothing to learn the classes from. Label a few first.")
