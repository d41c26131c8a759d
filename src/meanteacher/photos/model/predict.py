"""Predictions of a model for any number of images in constant memory, and predictions.csv."""

import csv
import io
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.devices import CPU
from meanteacher.files import atomic_file
from meanteacher.files.images import UnreadableError
from meanteacher.formats import certainty, escape_name, listed
from meanteacher.passes import class_output, to_channels_last
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.folder.tables import NONE_OF_THESE
from meanteacher.photos.model.images import Images
from meanteacher.photos.model.sorting import UNSURE, How, Sorted, sort_photos
from meanteacher.photos.pages.contact_sheet import contact_sheet, thumbnail
from meanteacher.report.page import render

if TYPE_CHECKING:
    from meanteacher.photos.model.bundle import Classifier


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Labelled photos that others are compared with: a photo unlike all of them may be of none of the classes."""

    features: Tensor
    """[n, D], each of unit length."""
    strange_above: float
    """1 - cosine to the most similar one from which a photo is strange."""

    def strangeness(self, similarity: NDArray[Any]) -> NDArray[np.float32]:
        """How strange photos are with this cosine to the most similar one: above 1 if it is of none of the classes."""
        return np.asarray((1 - similarity) / self.strange_above, np.float32)


class ClassifierModule(nn.Module):
    """The whole classifier, from bytes [B, 3, size, size] to probabilities [B, n_classes], as it is exported.

    With `known` photos the cosine of the pooled features to those of the most similar one is a last column.
    """

    def __init__(
        self, normalise: nn.Module, network: nn.Module, temperature: float, known: Known | None = None
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.network = network
        self.temperature = temperature
        self.known = None if known is None else nn.Parameter(known.features.T.contiguous(), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        pixels = to_channels_last(self.normalise(images))
        if self.known is None:
            return torch.softmax(class_output(self.network(pixels)) / self.temperature, 1)
        *layers, head = cast(nn.Sequential, self.network)
        for layer in layers:
            pixels = layer(pixels)
        probabilities = torch.softmax(head(pixels) / self.temperature, 1)
        length = torch.linalg.vector_norm(pixels, dim=1, keepdim=True).clamp_min(_SHORTEST)
        return torch.cat([probabilities, (pixels / length @ self.known).amax(1, keepdim=True)], 1)


_SHORTEST = 1e-6
"""Length of features below which they have no direction."""


_CHUNK = 128
"""Images per chunk. More are not faster on a CPU, and progress is reported after each chunk."""
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The probabilities of consecutive images."""

    index: Sequence[int]
    probabilities: Tensor
    """[n, n_classes]; the rows of unreadable images have no meaning."""
    strangeness: NDArray[np.float32]
    """[n]; NaN if the model does not know any photos to compare with."""
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
    compute = computing(model.module(model.known), (3, size, size), np.uint8, device)
    n_classes = len(model.class_names)

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
        found = torch.from_numpy(compute(batch))
        if not bool(found.isfinite().all()):
            raise InputError(
                "The model's probabilities are not finite, because its weights are too large. Download or copy the "
                "model again, or fit it again."
            )
        strange = np.full(len(chunk), np.nan, np.float32)
        if model.known is not None:
            strange = model.known.strangeness(found[:, n_classes].numpy())
        return Chunk(chunk, found[:, :n_classes], strange, unreadable, digests)

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
    images: Images
    """The images themselves."""
    strangeness: NDArray[np.float32]
    """How little each image resembles any labelled one, [N]: above 1 it may be of none of them; NaN if unknown."""
    unsure_below: float | None = None
    """Confidence below which a label is unsure; None if none is."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of images with each label, by class."""
        n = np.bincount(self.classes[self.classes != UNLABELLED], minlength=len(self.class_names))
        return dict(zip(self.class_names, n.tolist(), strict=True))

    @property
    def is_unsure(self) -> NDArray[np.bool_]:
        """Mask [N] of the images whose confidence is below `unsure_below`."""
        # NaN is below nothing.
        return np.asarray(self.confidence < (-1 if self.unsure_below is None else self.unsure_below))

    @property
    def is_strange(self) -> NDArray[np.bool_]:
        """Mask [N] of the images that may be of none of the classes."""
        return np.asarray(self.strangeness > 1)

    @property
    def apart(self) -> list[str]:
        """The folder in which each image is kept apart, `NONE_OF_THESE` or `UNSURE`; empty for the others."""
        masks = zip(self.is_strange.tolist(), self.is_unsure.tolist(), strict=True)
        return [NONE_OF_THESE if strange else UNSURE if unsure else "" for strange, unsure in masks]

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

    def to_frame(self) -> Any:
        """A pandas data frame with the columns path, guess, confidence, unsure, strangeness and problem.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("A data frame needs pandas: install it with `pip install pandas`.") from error
        return pandas.DataFrame(
            {
                "path": [escape_name(name) for name in self.names],
                "guess": self[:],
                "confidence": self.confidence,
                "unsure": self.is_unsure,
                "strangeness": self.strangeness,
                "problem": [self.problems.get(name, "") for name in self.names],
            }
        )

    def sort_into(
        self,
        folder: str | PathLike[str],
        *,
        how: How = "copy",
        progress: Progress = lambda done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Sorted:
        """Put each photo into a folder of its label below `folder`; `unsure` and `none of these` there hold the others.

        "copy" copies, "link" makes symbolic links, "move" moves and writes undo.sh there. No file is ever replaced: of
        equal names all but the first get a number. Unreadable photos stay where they are.

        Raises:
            InputError: the images are not files, or `folder` is among them or cannot be written.

        Example: `model.predict("photos/", unsure_below=0.8).sort_into("sorted/")`
        """
        pictures = [self.images.picture(k) for k in range(len(self))]
        files = [picture if isinstance(picture, Path) else None for picture in pictures]
        if not any(files):
            raise InputError("These images are not files, so they cannot be sorted into folders: give files.")
        return sort_photos(
            files,
            self[:],
            self.apart,
            Path(folder),
            root=self.images.root,
            how=how,
            progress=progress,
            should_stop=should_stop,
        )

    def contact_sheet(self, title: str = "") -> str:
        """An offline HTML page of thumbnails with label and confidence, by class, unsure and strange ones apart."""
        root = self.images.root
        return contact_sheet(
            self.names,
            self[:],
            self.confidence,
            self.images.picture,
            title=title or escape_name("these images" if root is None else root.resolve().name),
            problems=[(escape_name(name), reason) for name, reason in self.problems.items()],
            is_strange=self.is_strange.tolist(),
            unsure_below=self.unsure_below,
        )

    def _summary(self) -> str:
        most = sorted(self.counts.items(), key=lambda item: -item[1])
        parts = [listed([f"{n:,} {escape_name(name)}" for name, n in most if n], _N_CLASSES)]
        parts += [f"{self.apart.count(kind):,} {kind}" for kind in (UNSURE, NONE_OF_THESE) if kind in self.apart]
        parts += [f"{len(self.problems):,} cannot be read"] if self.problems else []
        return "; ".join([*filter(None, parts), f"{len(self):,} in all"])

    def __repr__(self) -> str:
        rows = [
            f"  {escape_name(name)}: {label} {certainty(confidence)}" if label else f"  {escape_name(name)}: not read"
            for name, label, confidence in zip(self.names[:_N_ROWS], self[:_N_ROWS], self.confidence, strict=False)
        ]
        more = [f"  … and {len(self) - _N_ROWS:,} more"] if len(self) > _N_ROWS else []
        return "\n".join([f"Predictions: {self._summary()}", *rows, *more])

    def _repr_html_(self) -> str:
        """Thumbnails with label and confidence, as a notebook shows them."""
        rows = range(min(len(self), _N_THUMBNAILS))
        shown = [
            (escape_name(self.names[k]), self[k], self.confidence[k], thumbnail(self.images.picture(k), _SMALL))
            for k in rows
        ]
        return render("predictions.html.jinja", summary=self._summary(), shown=shown, n_more=len(self) - len(shown))


_N_CLASSES, _N_ROWS, _N_THUMBNAILS = 8, 5, 12
"""Classes, rows and thumbnails in a representation, which a notebook keeps."""
_SMALL = 96


@contextmanager
def prediction_file(out: Path | None, *, unsure: bool = False) -> Iterator[Callable[[str], object] | None]:
    """A function that appends text to `out`, which is created when the block ends without an error; None for None."""
    if out is None:
        yield None
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as file:
            file.write((BOM + _header(unsure=unsure)).encode("utf-8"))
            yield lambda text: file.write(text.encode("utf-8"))
    except OSError as error:
        raise InputError(f"Cannot write {out} ({error}). Free disk space, or give another file.") from error


BOM = "\ufeff"
"""The first character of a table; without it Excel does not take the others for UTF-8."""
GUESSES = ("guess", "confidence", "second", "second_confidence", "third", "third_confidence")
"""Columns of the three most probable classes."""
_FORMULA = ("=", "+", "-", "@")


def cell(text: str) -> str:
    """The text as a cell of a table: printable, and never a formula in a spreadsheet.

    >>> cell("=1+1.jpg"), cell("a=b.jpg")
    ("'=1+1.jpg", 'a=b.jpg')
    """
    text = escape_name(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def number(strangeness: float) -> str:
    """Strangeness as a cell of a table; empty if it is unknown."""
    return "" if np.isnan(strangeness) else f"{strangeness:.2f}"


def guesses(labels: Sequence[str], probabilities: NDArray[Any] | None) -> list[str]:
    """The cells of `GUESSES`: the most probable labels and their probabilities; empty without any."""
    found: list[str] = []
    if probabilities is not None:
        for k in np.argsort(-probabilities, kind="stable")[: len(GUESSES) // 2]:
            found += [labels[k], f"{probabilities[k]:.4f}"]
    return found + [""] * (len(GUESSES) - len(found))  # two classes have no third guess


def _header(*, unsure: bool = False) -> str:
    columns = ["path", *GUESSES[:2], *(["unsure"] if unsure else []), *GUESSES[2:], "strangeness", "problem"]
    return ",".join(columns) + "\n"


def rows_of(
    names: Sequence[str],
    probabilities: Tensor,
    class_names: Sequence[str],
    unreadable: Mapping[int, str],
    strangeness: NDArray[np.float32],
    *,
    unsure_below: float | None = None,
) -> str:
    """Rows of predictions.csv without its header; the column `unsure` exists if there is a threshold."""
    labels = [cell(name) for name in class_names]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for row, (name, p) in enumerate(zip(names, probabilities.numpy(), strict=True)):
        is_read = row not in unreadable
        best = guesses(labels, p if is_read else None)
        unsure = [] if unsure_below is None else [("yes" if p.max() < unsure_below else "no") if is_read else ""]
        strange = number(strangeness[row]) if is_read else ""
        table.writerow([cell(name), *best[:2], *unsure, *best[2:], strange, cell(unreadable.get(row, ""))])
    return text.getvalue()
