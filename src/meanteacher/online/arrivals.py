"""What arrives in an on-line run: the protocol of its sources, any iterator as one, and the labels that are kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError, Problem, check_choice, labelled_rows
from meanteacher.data.dataset import check_labels
from meanteacher.data.mapstyle import as_image, example
from meanteacher.seeding import generator
from meanteacher.train.checkpoint import SavedReplay

Position = Any
"""Where a source stands, in plain values that a checkpoint can hold. None before the first example."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """The next examples, and where the source stands after them."""

    images: Tensor
    """[B, ...], bytes or floating point."""
    labels: Tensor
    """[B], or [B, ...] with a label per place, `UNLABELLED` where unknown."""
    position: Position


@runtime_checkable
class Arrivals(Protocol):
    """A source of examples. Each is read once, in an order that does not depend on where reading was interrupted."""

    def read(self, position: Position = None) -> Iterator[Arrived]:
        """The examples after this position."""
        ...

    def release(self, position: Position) -> None:
        """A checkpoint holds this position: what was read before it will not be asked for again."""
        ...


class Examples:
    """The examples or batches of an iterator. The next batch is taken when it is asked for: nothing is queued.

    Args:
        source: an iterable of (image, label), such as a data set of torchvision or Hugging Face, or a function that is
            given how many of them were read before and returns an iterable of the rest: with it a run can be resumed.
            Rows may be mappings, too, or images alone. A label of -1 or None is unknown
        batch_size: examples per batch, fewer in the last one; None where the iterator has batches of its own,
            (images [B, ...], labels [B]), such as a DataLoader
        live: the iterator goes on by itself where it stopped, like a camera: a resumed run takes what comes next

    >>> stream = Examples([(torch.zeros(2), 1), (torch.ones(2), None)], batch_size=2)
    >>> next(stream.read()).labels
    tensor([ 1, -1])
    """

    def __init__(
        self,
        source: Callable[[int], Iterable[Any]] | Iterable[Any],
        *,
        batch_size: int | None = None,
        live: bool = False,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise InputError(f"A batch needs at least one row, got batch_size={batch_size}.")
        self.source, self.batch_size, self.live = source, batch_size, live

    def read(self, position: Position = None) -> Iterator[Arrived]:
        """The batches after the first `position` examples; or batches, where the iterator has them.

        Raises:
            InputError: the iterator cannot be moved to that position.
        """
        n_read = position or 0
        if not isinstance(n_read, int) or n_read < 0:
            raise InputError(f"A position is the number of examples that were read, got {position!r}.")
        if callable(self.source):
            rest = iter(self.source(n_read))
        elif n_read and not self.live:
            raise InputError(
                f"{n_read:,} examples were read before, and an iterator cannot be moved to the next one. Give a "
                "function of the number of examples to leave out, or live=True if it goes on by itself."
            )
        else:
            rest = iter(self.source)
        while items := [example(item) for item in islice(rest, self.batch_size or 1)]:
            n_read += len(items)
            if self.batch_size is None:
                ((images, labels),) = items
                yield Arrived(to_images(images), to_labels(labels, len(images)), n_read)
            else:
                images = joined([as_image(image)[None] for image, _ in items])
                known = [torch.as_tensor(label) for _, label in items if label is not None]
                unknown = torch.full_like(known[0], UNLABELLED) if known else torch.tensor(UNLABELLED)
                labels = torch.stack([unknown if label is None else torch.as_tensor(label) for _, label in items])
                yield Arrived(images, to_labels(labels, len(items)), n_read)

    def release(self, position: Position) -> None:
        """Nothing is kept of an iterator."""


def to_images(images: Any) -> Tensor:
    """An array or a tensor as bytes or float32. The range of other numbers is not known: they are refused."""
    return as_image(torch.as_tensor(images))


def to_labels(labels: Any, n: int) -> Tensor:
    """One int64 for each of n images or each of their places; all of them `UNLABELLED` if there are none."""
    if labels is None:
        return torch.full((n,), UNLABELLED)
    tensor = torch.as_tensor(labels)
    if tensor.shape[:1] != (n,) or tensor.is_floating_point() or tensor.is_complex():
        raise InputError(
            f"Labels are one whole number per image, {UNLABELLED} where it is unknown; got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)} for {n} images."
        )
    return tensor.long()


def checked(images: Any, labels: Any, problem: Problem, ignore_index: int = UNLABELLED) -> tuple[Tensor, Tensor]:
    """Images and labels of this problem as tensors, on the CPU."""
    shown = to_images(images).cpu()
    if shown.shape[1:] != problem.input_shape or len(shown) == 0:
        sides = ", ".join(map(str, problem.input_shape))
        raise InputError(f"Expected images of shape [B, {sides}], got {list(shown.shape)}.")
    given = to_labels(labels, len(shown)).cpu()
    given = given.where(given != ignore_index, UNLABELLED)
    wanted = (len(shown), *problem.label_shape)
    if given.ndim == 1 and not labelled_rows(given).any():
        given = torch.full(wanted, UNLABELLED)
    if given.shape != wanted:
        raise InputError(
            f"Expected labels of shape {list(wanted)} for {len(shown)} images, got {list(given.shape)}. For a label "
            "per place, as in segmentation, give the trainer its label_shape."
        )
    check_labels(given.flatten(), n_images=given.numel(), n_classes=problem.n_classes)
    return shown, given


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Images of several origins as one tensor. Where some are bytes and some are not, bytes become 0 to 1.

    >>> joined([torch.tensor([[255]], dtype=torch.uint8), torch.tensor([[0.5]])])
    tensor([[1.0000],
            [0.5000]])
    """
    if len({part.dtype for part in parts}) > 1:
        parts = [part if part.is_floating_point() else part.float() / 255 for part in parts]
    return torch.cat(list(parts))


Rows = tuple[Tensor, Tensor, Tensor]
"""Images, labels, and how many examples had arrived before each of them."""


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """One after the other."""
    images, labels, index = zip(*parts, strict=True)
    return joined(images), torch.cat(labels), torch.cat(index)


class EveryRow:
    """A sampler that draws all rows in their order; those with a label show it."""

    exact = False

    def __init__(self, labels: Tensor) -> None:
        self.shows_label = labelled_rows(labels)
        self.labelled_share = float(self.shows_label.float().mean())

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        return torch.arange(len(self.shows_label)), self.shows_label


Keep = Literal["recent", "uniform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Labelled examples that are kept and shown again, because labels are rare. Unlabelled ones are never kept.

    >>> Replay(size=64, rows=8).keep
    'recent'
    """

    size: int = 256
    """The most that are kept."""
    rows: int = 16
    """Kept examples in every step, beside those that have just arrived."""
    keep: Keep = "recent"
    """"recent": the last ones, for a stream that drifts. "uniform": a uniform sample of all there were."""

    def __post_init__(self) -> None:
        check_choice("keep", self.keep, get_args(Keep))
        if not 1 <= self.rows <= self.size:
            raise InputError(f"Replay shows 1 to size={self.size} kept examples in a step; got rows={self.rows}.")


class Store:
    """What a `Replay` keeps. Which examples it keeps and shows is a function of (seed, step) and what arrived."""

    def __init__(self, replay: Replay, seed: int) -> None:
        self.replay, self.seed = replay, seed
        self._kept: list[Rows] = []
        self._n_offered = 0

    def __len__(self) -> int:
        return len(self._kept)

    def draw(self, step: int) -> Rows:
        """Some of the kept examples, no more than there are and none twice."""
        order = torch.randperm(len(self._kept), generator=generator(self.seed, "replay", step))
        return joined_rows([self._kept[row] for row in order[: self.replay.rows].tolist()])

    def add(self, images: Tensor, labels: Tensor, index: Tensor) -> None:
        """Keep those that have a label, as far as there is room."""
        for row in labelled_rows(labels).nonzero().flatten().tolist():
            example = (images[row : row + 1].clone(), labels[row : row + 1].clone(), index[row : row + 1].clone())
            self._n_offered += 1
            if self.replay.keep == "recent" or len(self._kept) < self.replay.size:
                self._kept = [*self._kept, example][-self.replay.size :]
                continue
            # Reservoir sampling: the n-th example takes a place with probability size / n (Vitter 1985).
            draw = generator(self.seed, "replay/keep", self._n_offered)
            place = int(torch.randint(self._n_offered, (1,), generator=draw))
            if place < self.replay.size:
                self._kept[place] = example

    def state(self) -> SavedReplay:
        """Everything that a checkpoint needs."""
        return {"n_offered": self._n_offered, "kept": list(self._kept)}

    def load(self, state: SavedReplay, problem: Problem) -> None:
        """Continue with what `state` returned; a ValueError is raised for rows that no `Store` keeps."""
        kept: list[Rows] = [(*checked(image, label, problem), index) for image, label, index in state["kept"]]
        for _, label, index in kept:
            if len(label) != 1 or not labelled_rows(label).all() or index.dtype != torch.int64 or index.shape != (1,):
                raise ValueError("a kept example is not one labelled image")
        if len(kept) > min(self.replay.size, state["n_offered"]):
            raise ValueError(f"{len(kept)} examples are kept of {state['n_offered']} that were offered")
        self._n_offered, self._kept = state["n_offered"], kept
