"""Predictions of a model for any number of images in constant memory, and predictions.csv."""

import csv
import io
import reprlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError
from meanteacher.devices import CPU
from meanteacher.files import atomic_file
from meanteacher.files.images import UnreadableError
from meanteacher.formats import escape_name
from meanteacher.passes import class_output, to_channels_last
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.model.images import Images

if TYPE_CHECKING:
    from meanteacher.photos.model.bundle import Classifier


class ClassifierModule(nn.Module):
    """The whole classifier, from bytes [B, 3, size, size] to probabilities [B, n_classes], as it is exported."""

    def __init__(self, normalise: nn.Module, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.normalise = normalise
        self.network = network
        self.temperature = temperature

    def forward(self, images: Tensor) -> Tensor:
        logits = class_output(self.network(to_channels_last(self.normalise(images))))
        return torch.softmax(logits / self.temperature, 1)


_CHUNK = 128
"""Images per chunk. More are not faster on a CPU, and progress is reported after each chunk."""
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The probabilities of consecutive images."""

    index: Sequence[int]
    probabilities: Tensor
    """[n, n_classes]; the rows of unreadable images have no meaning."""
    unreadable: dict[int, str]
    """row of the chunk -> reason"""
    digests: Sequence[bytes]
    """Digests of the pixels; empty unless requested."""


def classify(
    model: "Classifier",
    images: Images,
    index: Sequence[int] | None = None,
    *,
    device: torch.device = CPU,
    with_digests: bool = False,
) -> Generator[Chunk, None, None]:
    """The probabilities of the images at these positions, or of all, chunk by chunk in their order.

    Each thread decodes a chunk and then computes the network on it alone. No thread waits for another within a layer,
    and decoding and computing overlap, so two cores are twice as fast as one. A GPU computes for all threads.
    """
    index = range(len(images)) if index is None else index
    size = model.size
    compute = computing(model.module(), (3, size, size), np.uint8, device)

    def work(chunk: Sequence[int]) -> Chunk:
        # The channels are last, as decoding returns them.
        pixels = np.zeros((len(chunk), size, size, 3), np.uint8)
        unreadable = {}
        for row, k in enumerate(chunk):
            try:
                pixels[row] = images.pixels(k, size)
            except UnreadableError as error:
                unreadable[row] = str(error)
        batch = pixels.transpose(0, 3, 1, 2)
        digests = [digest(image) for image in batch] if with_digests else []
        probabilities = torch.from_numpy(compute(batch))
        if not bool(probabilities.isfinite().all()):
            raise InputError(
                "The model's probabilities are not finite, because its weights are too large. Download or copy the "
                "model again, or fit it again."
            )
        return Chunk(chunk, probabilities, unreadable, digests)

    length = max(1, min(_CHUNK, _CHUNK_BYTES // (3 * size * size)))
    with one_network_per_thread() as (pool, n_threads):
        waiting: deque[Future[Chunk]] = deque()
        for start in range(0, len(index), length):
            waiting.append(pool.submit(work, index[start : start + length]))
            # Each thread has one chunk waiting, so that it never idles.
            if len(waiting) == 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions(Sequence[str]):
    """The label of every image, in order. The label of an unreadable image is empty."""

    names: Sequence[str]
    """Names of the images: paths below the folder, names of an .npz, paths as given, or `image 0`, `image 1`, ..."""
    confidence: NDArray[np.float32]
    """Probability of each label, [N]; NaN for an unreadable image."""
    problems: Mapping[str, str]
    """name -> reason, for unreadable images"""
    complete: bool
    """Whether all images were predicted. Otherwise these are the first ones, and no file was written."""
    classes: NDArray[np.int64]
    """Position of each label in `class_names`, [N]; `UNLABELLED` (-1) for an unreadable image."""
    class_names: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of images with each label, by class."""
        n = np.bincount(self.classes[self.classes != UNLABELLED], minlength=len(self.class_names))
        return dict(zip(self.class_names, n.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.classes)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        if isinstance(position, slice):
            return [self._label(k) for k in self.classes[position]]
        return self._label(self.classes[position])

    def _label(self, k: int) -> str:
        return "" if k == UNLABELLED else self.class_names[k]

    def __repr__(self) -> str:
        return f"Predictions({reprlib.repr(self[:7])}, {len(self):,} in all)"


@contextmanager
def prediction_file(out: Path | None) -> Iterator[Callable[[str], object] | None]:
    """A function that appends text to `out`, which is created when the block ends without an error; None for None."""
    if out is None:
        yield None
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as file:
            file.write(HEADER.encode("utf-8"))
            yield lambda text: file.write(text.encode("utf-8"))
    except OSError as error:
        raise InputError(f"Cannot write {out} ({error}). Free disk space, or give another file.") from error


HEADER = "path,label,confidence,second,second_confidence,third,third_confidence,problem\n"
_N_GUESSES = 3
_FORMULA = ("=", "+", "-", "@")


def cell(text: str) -> str:
    """The text as a cell of a table: printable, and never a formula in a spreadsheet.

    >>> cell("=1+1.jpg"), cell("a=b.jpg")
    ("'=1+1.jpg", 'a=b.jpg')
    """
    text = escape_name(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def prediction_rows(
    names: Sequence[str],
    probabilities: NDArray[np.floating],
    class_names: Sequence[str],
    unreadable: Mapping[int, str],
) -> str:
    """The content of predictions.csv for probabilities [N, n_classes]. `unreadable` maps a row to a reason."""
    return HEADER + rows_of(names, torch.from_numpy(probabilities), class_names, unreadable)


def rows_of(
    names: Sequence[str], probabilities: Tensor, class_names: Sequence[str], unreadable: Mapping[int, str]
) -> str:
    """Rows of predictions.csv without its header."""
    labels = [cell(name) for name in class_names]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    best = probabilities.topk(min(_N_GUESSES, len(labels)))
    empty = [""] * 2 * (_N_GUESSES - best.indices.shape[1])  # two classes have no third guess
    for row, (name, ks, ps) in enumerate(zip(names, best.indices.tolist(), best.values.tolist(), strict=True)):
        if row in unreadable:
            table.writerow([cell(name), *[""] * 2 * _N_GUESSES, cell(unreadable[row])])
            continue
        guesses = [value for k, p in zip(ks, ps, strict=True) for value in (labels[k], f"{p:.4f}")]
        table.writerow([cell(name), *guesses, *empty, ""])
    return text.getvalue()
