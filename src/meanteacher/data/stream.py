"""The batch of step t: rows drawn, labels hidden, images normalised, one random view per role."""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from itertools import count

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, Augment, Batch
from meanteacher.data.dataset import Dataset
from meanteacher.data.encoded import EncodedDataset
from meanteacher.data.split import Sampler
from meanteacher.devices import CPU
from meanteacher.passes import to_channels_last
from meanteacher.seeding import RowGenerator, generator

ALL = slice(None)
_AHEAD = 3
"""Batches that are decoded ahead of the one that trains: decoding may take longer for some than for others."""


@dataclass(eq=False)
class ImageStream:
    """Batches of a data set, each a pure function of (seed, step)."""

    dataset: Dataset | EncodedDataset
    """From one that decodes its images, every role gets its own random crops."""
    sampler: Sampler
    _: KW_ONLY
    views: Mapping[str, Augment]
    """role -> what it sees"""
    labelled_view: Augment | None = None
    """What the student sees of the rows that show their label; None for `views["student"]`."""
    normalise: Callable[[Tensor], Tensor]
    """Applied before the views."""
    seed: int
    device: torch.device | str = CPU
    rows: slice = field(default_factory=lambda: ALL)
    """The rows that the views hold if several processes share a batch. Views are drawn for all rows and applied to
    these, so they are those of the whole batch."""
    _begun: dict[int, Callable[[], tuple[Tensor, dict[str, Tensor]]]] = field(default_factory=dict, init=False)
    """step -> the crops that are being decoded for it."""

    def __getitem__(self, step: int) -> Batch:
        index, shows_label = self.sampler.draw(step)
        index, images = self._images(index, step)
        labels = torch.where(shows_label, self.dataset.labels[index], UNLABELLED)
        return Batch(
            views={role: to_channels_last(self._seen(role, images[role], shows_label, step)) for role in self.views},
            labels=labels.to(self.device),
            index=index.to(self.device),
        )

    def _images(self, index: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The positions that are shown, and role -> the normalised images of which its view is drawn."""
        if isinstance(self.dataset, EncodedDataset):
            index, crops = self._crops(self.dataset, step)
            return index, {role: self.normalise(self._moved(own)) for role, own in crops.items()}
        if self.dataset.on_disk:
            read_ahead(self.dataset.images, self.sampler.draw(step + 1)[0][self.rows])
        return index, dict.fromkeys(self.views, self.normalise(self._rows(self.dataset.images, index[self.rows])))

    def _crops(self, dataset: EncodedDataset, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Positions, and role -> its crops of them. Those of later steps are decoded while this one computes."""
        # A batch depends on its step alone, so one that was begun earlier, or in vain, changes nothing.
        due = range(step, step + 1 + _AHEAD)
        self._begun = {each: self._begun.get(each) or self._begin(dataset, each) for each in due}
        return self._begun.pop(step)()

    def _begin(self, dataset: EncodedDataset, step: int) -> Callable[[], tuple[Tensor, dict[str, Tensor]]]:
        draws = {role: generator(self.seed, f"crop/{role}", step) for role in self.views}
        return dataset.begin_crops(self.sampler.draw(step)[0], draws, self.rows, partial(self._later_rows, step))

    def _later_rows(self, step: int, row: int) -> Iterator[int]:
        """Positions of the rows after this one that show their label like it, or hide it, in the order of training.

        One of them takes the place of a broken image: a position with a label of its own, which may be shown, or one
        without, and never an image that is kept apart for validation.
        """
        shows = self.sampler.draw(step)[1][row]
        for later in count(step):
            index, shows_label = self.sampler.draw(later)
            first = row + 1 if later == step else 0
            yield from index[first:][shows_label[first:] == shows].tolist()

    def _rows(self, images: Tensor, index: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return images[index.to(images.device)]
        return self._moved(images[index])

    def _moved(self, rows: Tensor) -> Tensor:
        if torch.device(self.device).type == "cuda":
            # From pinned memory they are copied while the previous step is still computing.
            return rows.pin_memory().to(self.device, non_blocking=True)
        return rows.to(self.device)

    def _seen(self, role: str, images: Tensor, shows_label: Tensor, step: int) -> Tensor:
        if role != "student" or self.labelled_view is None:
            return self._drawn(self.views[role], role, images, torch.ones_like(shows_label), step)
        # The rows are found on the CPU, where the labels are, so as not to wait for the device.
        shown, hidden = (rows[self.rows].nonzero().flatten() for rows in (shows_label, ~shows_label))
        both = [
            self._drawn(self.labelled_view, "labelled", images[shown.to(self.device)], shows_label, step),
            self._drawn(self.views[role], role, images[hidden.to(self.device)], ~shows_label, step),
        ]
        return torch.cat(both)[torch.cat([shown, hidden]).argsort().to(self.device)]

    def _drawn(self, view: Augment, purpose: str, images: Tensor, among: Tensor, step: int) -> Tensor:
        """A view of images of this process, which are its rows among those of the batch that the mask [B] has."""
        plain = generator(self.seed, f"view/{purpose}", step, self.device)
        if self.rows == ALL:
            return view(images, plain)
        own = torch.zeros_like(among)
        own[self.rows] = True
        rows = own[among].nonzero().flatten().to(self.device)
        if getattr(view, "by_rows", False):
            draws = RowGenerator(self.device)
            draws.set_state(plain.get_state())
            draws.n_rows, draws.rows = int(among.sum()), rows
            return view(images, draws)
        whole = images.new_zeros(int(among.sum()), *images.shape[1:])
        whole[rows] = images
        return view(whole, plain)[rows]


def read_ahead(images: Tensor, index: Tensor) -> None:
    """Ask the system to read these rows of contiguous images on the CPU from the disk in the background.

    It takes microseconds per row, and no thread that would compete with the training step. Nothing happens for rows
    that are in memory already, or on a system without such a request.
    """
    if not hasattr(mmap, "MADV_WILLNEED"):
        return
    advise = _advise()
    n_bytes = images[0].numel() * images.element_size()
    for row in index.tolist():
        start = images.data_ptr() + row * n_bytes
        page = start - start % mmap.PAGESIZE
        advise(page, start + n_bytes - page, mmap.MADV_WILLNEED)


@cache
def _advise() -> "ctypes._NamedFuncPointer":
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
