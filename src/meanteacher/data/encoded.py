"""Images decoded when they are needed: the data set is a list of encoded images and their labels."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from meanteacher.core import Images, InputError
from meanteacher.data.dataset import BrokenImages, check_labels
from meanteacher.distributed import own_cores
from meanteacher.files.images import REDUCING_GAP, DecodedImage, UnreadableError, decode_whole
from meanteacher.seeding import generator

AREA = (0.08, 1.0)
"""The share of the image's area that a random crop covers, uniform."""
ASPECT = (3 / 4, 4 / 3)
"""Its width over its height, log-uniform."""
TRIES = 10
"""Boxes drawn for a crop. The first that fits into the image is taken."""

MAX_INSTEAD = 1000
"""Images that are tried in the place of a broken one."""

_SAMPLE = 4096
_CHANNELS = 3


class Files(Protocol):
    """N encoded images: the files of a folder, or whatever else has bytes for each of them."""

    @property
    def names(self) -> Sequence[str]:
        """One per image, the same wherever the data set lies: "n01440764/n01440764_10026.JPEG"."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Size of each encoded image in bytes."""
        ...

    def read(self, position: int) -> bytes:
        """The encoded image. Called by several threads at once."""
        ...

    def where(self, position: int) -> str:
        """Names the image in a message."""
        ...


class BrokenImageError(InputError):
    """An image was read but cannot be decoded."""


@dataclass(frozen=True, eq=False)
class EncodedDataset:
    """N encoded images and their labels, `UNLABELLED` if a label is unknown.

    Nothing is kept in memory but names and labels: an image is read and decoded by a thread each time it is needed,
    and becomes RGB whatever its mode, over white if it is transparent. Training sees random crops of it, drawn for
    each role, and evaluation its centre; both are [3, `size`, `size`] as uint8. An orientation in EXIF data is ignored,
    as is usual on ImageNet.
    """

    files: Files
    labels: Tensor
    """[N], int64."""
    class_names: tuple[str, ...]
    resize: int = 256
    """The shorter side of the image of which evaluation sees the centre."""
    size: int = 224
    """Height and width of what training and evaluation see."""
    threads: int = field(default_factory=own_cores)
    """They decode. Their number changes no pixel."""
    broken: BrokenImages = field(default_factory=BrokenImages)
    """What is done about an image that cannot be decoded: by default it is an error."""

    def __post_init__(self) -> None:
        check_labels(self.labels, n_images=len(self.files.names), n_classes=len(self.class_names))
        if not 1 <= self.size <= self.resize:
            raise InputError(
                f"size={self.size} and resize={self.resize}: evaluation resizes the shorter side to `resize` pixels "
                "and shows a centre of `size`, which is at least 1 and not larger."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def images(self) -> Images:
        """What evaluation sees: the shorter side resized to `resize`, then the centre."""
        return _Centres(self)

    def on(self, device: torch.device) -> "EncodedDataset":
        """Itself: batches are decoded on the CPU and moved one by one."""
        return self

    def to_fit(self, index: Tensor | None) -> Tensor:
        """The positions that a normalisation is fitted to: 4,096 of those at `index`, or of all, whatever the seed."""
        positions = torch.arange(len(self)) if index is None else index
        drawn = torch.randperm(len(positions), generator=generator(0, "normalise/sample"))[:_SAMPLE]
        return positions[drawn.sort().values]

    def fingerprint(self) -> str:
        """Sixteen hex digits of the names, the sizes in bytes and the labels. No image is read."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.class_names).encode())
        digest.update(self.labels.numpy().tobytes())
        for name, size in zip(self.files.names, self.files.sizes, strict=True):
            digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:16]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, thread_name_prefix="decode")

    def begin_crops(
        self,
        index: Tensor,
        draws: Mapping[str, torch.Generator],
        rows: slice = slice(None),
        instead: Callable[[int], Iterator[int]] = lambda row: iter(()),
    ) -> Callable[[], tuple[Tensor, dict[str, Tensor]]]:
        """Start decoding random crops of the images at `index` [B], each image once for all roles.

        The crops of a role depend on its own generator in `draws` alone. They are drawn for all rows, and decoded for
        `rows`. The first readable position of `instead(row)` takes the place of a broken image. The returned function
        waits; it returns `index` with the positions that took the place of others, and role -> uint8 [rows, 3, S, S].
        """
        # Drawn before anything is decoded, so that neither threads nor images change what is drawn.
        uniform = {
            role: torch.rand(len(index), TRIES, 4, generator=draw, dtype=torch.float64).numpy()
            for role, draw in draws.items()
        }
        place = {row: i for i, row in enumerate(range(len(index))[rows])}  # of a row among those that are decoded
        out = {role: self._empty(len(place)) for role in draws}
        rows_of: dict[int, list[int]] = {}
        for row in place:
            rows_of.setdefault(int(index[row]), []).append(row)

        def decode(position: int, shown_in: list[int]) -> None:
            whole = self._decoded(position, self._training_reduction)
            for role, pixels in out.items():
                for row in shown_in:
                    box = random_box(*whole.size, uniform[role][row])
                    pixels[place[row]] = _channels_first(whole.resized((self.size, self.size), box))

        jobs = [(self._pool.submit(decode, *image), *image) for image in rows_of.items()]

        def wait() -> tuple[Tensor, dict[str, Tensor]]:
            decoded = index.clone()
            for job, position, shown_in in jobs:
                try:
                    job.result()
                except BrokenImageError as error:
                    self._note(position, error)
                    for row in shown_in:
                        decoded[row] = self._first_readable(instead(row), partial(decode, shown_in=[row]))
            return decoded, {role: torch.from_numpy(pixels) for role, pixels in out.items()}

        return wait

    def _note(self, position: int, error: BrokenImageError) -> None:
        if not self.broken.most:
            raise error
        self.broken.positions.add(position)
        self.broken.note(self.files.where(position), str(error.__cause__))

    def _first_readable(self, positions: Iterator[int], decode: Callable[[int], object]) -> int:
        for position in islice(positions, MAX_INSTEAD):
            try:
                decode(position)
            except BrokenImageError as error:
                self._note(position, error)
            else:
                return position
        raise InputError(f"No image can take the place of a broken one: {'; '.join(self.broken.described())}.")

    def centres(self, index: Tensor) -> Tensor:
        """[B, 3, size, size] as uint8: what evaluation sees of the images at `index`.

        A broken image shows the next readable one. Who counts errors leaves its row out: `broken.positions`.
        """
        out = self._empty(len(index))

        def decode(row: int, position: int) -> None:
            whole = self._decoded(position, lambda *sides: min(sides) / (REDUCING_GAP * self.resize))
            box = centre_box(*whole.size, resize=self.resize, size=self.size)
            out[row] = _channels_first(whole.resized((self.size, self.size), box))

        jobs = [(self._pool.submit(decode, *image), *image) for image in enumerate(index.tolist())]
        for job, row, position in jobs:
            try:
                job.result()
            except BrokenImageError as error:
                self._note(position, error)
                others = (other % len(self) for other in range(position + 1, position + len(self)))
                self._first_readable(others, partial(decode, row))
        return torch.from_numpy(out)

    def _empty(self, n: int) -> NDArray[np.uint8]:
        return np.empty((n, _CHANNELS, self.size, self.size), np.uint8)

    def _training_reduction(self, width: int, height: int) -> float:
        # The smallest crops must not become larger than they are in the file. The actual crop does not decide:
        # the pixels of one role would depend on the crop of another.
        return math.sqrt(AREA[0] * ASPECT[0] * width * height) / self.size

    def _decoded(self, position: int, reduction: Callable[[int, int], float]) -> DecodedImage:
        """The image; an InputError if it cannot be read at present, a BrokenImageError if it cannot be decoded."""
        try:
            return decode_whole(self.files.read(position), reduction)
        except (OSError, UnreadableError) as error:
            kind = BrokenImageError if isinstance(error, UnreadableError) else InputError
            raise kind(
                f"{self.files.where(position)} cannot be decoded ({error}). Replace it by an intact copy, then resume "
                "the run."
            ) from error


class _Centres:
    """The centres of all images, decoded on demand."""

    def __init__(self, dataset: EncodedDataset) -> None:
        self.dataset = dataset

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), _CHANNELS, self.dataset.size, self.dataset.size)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Tensor | slice, /) -> Tensor:
        return self.dataset.centres(torch.arange(len(self))[index])


def random_box(width: int, height: int, draws: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The box of a random-resized crop (Szegedy et al., 2015; App. B.2.2 of the paper).

    Its share of the area is uniform, its width over its height log-uniform, its place uniform among those inside the
    image. Of several draws [tries, 4], uniform in [0, 1), the first box that fits is taken. If none does, as in a very
    long image, it is the largest box in the middle that keeps to the ratios.
    """
    narrowest, widest = ASPECT
    for area, shape, across, down in draws.tolist():
        n_pixels = width * height * (AREA[0] + (AREA[1] - AREA[0]) * area)
        ratio = narrowest * (widest / narrowest) ** shape
        box_width, box_height = round(math.sqrt(n_pixels * ratio)), round(math.sqrt(n_pixels / ratio))
        if 1 <= box_width <= width and 1 <= box_height <= height:
            left, top = int(across * (width - box_width + 1)), int(down * (height - box_height + 1))
            return left, top, left + box_width, top + box_height
    box_width, box_height = min(width, round(height * widest)), min(height, round(width / narrowest))
    left, top = (width - box_width) // 2, (height - box_height) // 2
    return left, top, left + box_width, top + box_height


def centre_box(width: int, height: int, *, resize: int, size: int) -> tuple[float, float, float, float]:
    """The box of an image that is its centre of `size` pixels after its shorter side was resized to `resize`.

    The box is cut first, because the whole of a long, narrow image would become very large.

    >>> centre_box(512, 256, resize=128, size=64)
    (192.0, 64.0, 320.0, 192.0)
    """
    edges = []
    for side in (width, height):
        resized = side * resize // min(width, height)
        first = round((resized - size) / 2)
        edges.append((first * side / resized, (first + size) * side / resized))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def _channels_first(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image).transpose(2, 0, 1)
