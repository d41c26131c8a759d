"""The features of every photo: what the frozen layers of a pretrained network return, computed once per view."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from meanteacher.core import Augment, InputError, Interrupted, Progress
from meanteacher.devices import CPU
from meanteacher.files import make_own, open_regular, remove, write_json
from meanteacher.files.typed import AnyText, Count, Positive, RecordError, read_json
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.seeding import generator
from meanteacher.views import Chain, Crop, Cutout, Flip, RandAugment

MAX_VIEWS = 8
"""More hardly lower the error (docs/experiments/backbones.md)."""
_CHUNK = 32
_SAVE_SECONDS = 5.0
_SEED = 0


def feature_views(size: int, n_views: int, *, flip: bool) -> tuple[tuple[Augment, ...], int]:
    """The views of each photo of `size` pixels, and the number of weak views; the first view is the photo itself.

    A teacher sees the weak views, which come first. The student sees the others, or the same if there are no others.
    """
    moved = (Flip(),) if flip else ()
    weak: tuple[Augment, ...] = (
        Chain(),
        mirrored if flip else Crop(scale=(0.7, 1.0)),
        Chain((*moved, Crop(scale=(0.6, 1.0)))),
    )
    strong = Chain((*moved, Crop(scale=(0.3, 1.0)), RandAugment(), Cutout(size // 4)))
    n_weak = n_weak_views(n_views)
    return (*weak[:n_weak], *[strong] * (n_views - n_weak)), n_weak


def n_weak_views(n_views: int) -> int:
    return min(n_views, 2 if n_views < 5 else 3)


def mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """All of them, while `Flip` mirrors half."""
    return images.flip(3)


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of all photos; those of unreadable photos are zeros."""

    values: Tensor
    """[N, n_views, ...], half precision, mapped from a file."""
    n_weak: int
    seconds_per_image: float
    """That the slowest view took."""

    @property
    def n_views(self) -> int:
        return int(self.values.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The JSON file beside the features: what the file of features holds so far."""

    key: AnyText = ""
    done: Count = 0
    """Chunks that are complete, view after view."""
    n_views: Count | None = None
    """The number of views, once the file is complete."""
    seconds: Positive = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Extraction:
    """Computes features into a file. What an interrupted extraction has written is not computed again."""

    images: NDArray[np.uint8]
    """[N, 3, size, size]"""
    normalise: nn.Module
    front: nn.Module
    """The frozen layers, in evaluation mode."""
    n_views: int
    flip: bool
    file: Path
    key: str
    """Digest of everything that determines the features."""
    device: torch.device = CPU
    progress: Progress = lambda done, total: None
    should_stop: Callable[[], bool] = lambda: False
    ends: float = float("inf")
    """After this, by `time.perf_counter`, no further view is begun."""

    def run(self) -> Features:
        """All views, or fewer if the time runs out; the first one in any case."""
        shape = self._shape()
        try:
            self._make_file((len(self.images), self.n_views, *shape))
            saved = self._saved()
            n_views, seconds = saved.n_views, saved.seconds
            if n_views is None:
                with self.file.open("r+b") as out:
                    n_views, seconds = self._fill(out, shape)
                self._save(n_views * len(self._chunks()), n_views, seconds)
        except OSError as error:
            raise InputError(
                f"Cannot write the features of the photos to {self.file} ({error.strerror}). Free some space, or give "
                "another folder as out (--out)."
            ) from error
        # Not "r": torch takes no array that is read-only.
        values = torch.from_numpy(np.lib.format.open_memmap(self.file, mode="c"))
        return Features(values[:, :n_views], n_weak_views(n_views), seconds / len(self.images))

    def delete(self) -> None:
        """Remove the file, which is large and can be computed again."""
        for path in (self._about, self.file):
            path.unlink(missing_ok=True)

    def _fill(self, out: BinaryIO, shape: tuple[int, ...]) -> tuple[int, float]:
        """Write the missing values. Returns the number of complete views, and the seconds of the slowest of them."""
        views, _ = feature_views(self.images.shape[-1], self.n_views, flip=self.flip)
        chunks, n = self._chunks(), len(self.images)
        n_bytes = int(np.prod(shape)) * np.dtype(np.float16).itemsize
        header = out.seek(0, os.SEEK_END) - len(views) * n * n_bytes
        compute = computing(self.front, self.images.shape[1:], np.float32, self.device)
        done, took, saved = self._saved().done, 0.0, time.perf_counter()

        def values_of(view: int, chunk: range) -> NDArray[np.float16]:
            with torch.inference_mode():
                pixels = self.normalise(torch.from_numpy(self.images[chunk.start : chunk.stop]))
                seen = views[view](pixels, generator(_SEED, f"features/{view}", chunk.start))
                # Half precision ends at 65,504. No feature of a sensible network comes near it.
                return compute(seen.numpy()).clip(-60000, 60000).astype(np.float16)

        with one_network_per_thread() as (pool, _):
            for view in range(done // len(chunks), len(views)):
                began = time.perf_counter()
                if view and began + took > self.ends:
                    return view, took
                left = chunks[done % len(chunks) :]
                for chunk, values in zip(left, pool.map(partial(values_of, view), left), strict=True):
                    for row, value in zip(chunk, values, strict=True):
                        out.seek(header + (row * len(views) + view) * n_bytes)
                        out.write(value.data)
                    done += 1
                    self.progress(view * n + chunk.stop, len(views) * n)
                    stops = self.should_stop()
                    if stops or done % len(chunks) == 0 or time.perf_counter() - saved > _SAVE_SECONDS:
                        out.flush()
                        os.fsync(out.fileno())
                        self._save(done)
                        saved = time.perf_counter()
                    if stops:
                        raise Interrupted(
                            "The fit was stopped while it computed features. Continue it with resume=True (--resume)."
                        )
                took = max(took, time.perf_counter() - began)
        return len(views), took

    def _chunks(self) -> list[range]:
        n = len(self.images)
        return [range(start, min(start + _CHUNK, n)) for start in range(0, n, _CHUNK)]

    def _shape(self) -> tuple[int, ...]:
        with torch.inference_mode():
            return tuple(self.front(torch.zeros(1, *self.images.shape[1:])).shape[1:])

    def _make_file(self, shape: tuple[int, ...]) -> None:
        """Create the file in its final size, unless it exists."""
        with suppress(OSError, ValueError), open_regular(self.file, follow=False):
            values = np.lib.format.open_memmap(self.file, mode="r")
            if self._saved().key == self.key and values.shape == shape and values.dtype == np.float16:
                return
        make_own(self.file.parent)
        for path in (self._about, self.file):
            remove(path)
        np.lib.format.open_memmap(self.file, mode="w+", dtype=np.float16, shape=shape)
        self._save(0)

    @property
    def _about(self) -> Path:
        return self.file.with_suffix(".json")

    def _saved(self) -> _Progress:
        try:
            return read_json(self._about, _Progress)
        except RecordError:
            return _Progress()

    def _save(self, done: int, n_views: int | None = None, seconds: float = 0.0) -> None:
        write_json(self._about, asdict(_Progress(key=self.key, done=done, n_views=n_views, seconds=seconds)))
