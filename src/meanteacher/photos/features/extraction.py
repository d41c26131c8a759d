"""The features of photos: the pooled output of a frozen network for one view of each photo, computed once and kept."""

import os
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meanteacher.core import Augment, InputError, Interrupted, Progress
from meanteacher.devices import CPU
from meanteacher.files import make_own, remove
from meanteacher.files.arrays import mapped_array
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.seeding import generator
from meanteacher.views import Chain, Crop, Cutout, Flip, RandAugment
from meanteacher.views.normalise import per_channel

VIEWS = ("plain", "mirrored", "crop", "strong-1", "strong-2", "strong-3")
"""Views of each photo in the order of their use. More hardly lower the error (docs/experiments/backbones.md)."""
_CHUNK = 16
_SEED = 0
_CHECK = 2
"""Numbers at the end of each row of the file that hold its checksum."""

Features = NDArray[np.float16]
"""[N, D]; the rows of photos that are not computed are NaN."""


def views(*, flip: bool) -> tuple[str, ...]:
    """The names of the views; without the mirrored one if a mirrored photo may be of another class."""
    return tuple(name for name in VIEWS if flip or name != "mirrored")


def _view(name: str, size: int, *, flip: bool) -> Augment:
    moved = (Flip(),) if flip else ()
    if name == "plain":
        return Chain()
    if name == "mirrored":
        return lambda images, generator: images.flip(3)
    if name == "crop":
        return Chain((*moved, Crop(scale=(0.6, 1.0))))
    return Chain((*moved, Crop(scale=(0.3, 1.0)), RandAugment(), Cutout(size // 4)))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Extraction:
    """Computes one view of photos with one network into a file. A stopped extraction continues where it was."""

    images: NDArray[np.uint8]
    """[N, 3, size, size]"""
    backbone: Backbone
    view: str
    """One of `VIEWS`."""
    flip: bool
    file: Path
    """Its name identifies the pixels of the photos; network and view are added."""
    order: NDArray[np.int64]
    """Positions of the photos to compute, the most important first."""
    device: torch.device = CPU

    @property
    def path(self) -> Path:
        size = self.images.shape[-1]
        about = f"{self.backbone.sha256[:8]}-{self.view}-{size}{'-flip' if self.flip else ''}"
        return self.file.with_name(f"{self.file.name}-{about}.npy")

    def run(
        self,
        *,
        progress: Progress = lambda done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
        ends: float = float("inf"),
    ) -> Features:
        """Compute what the file does not have yet, until it is complete or `ends`, by `time.perf_counter`, has passed.

        Raises:
            Interrupted: `should_stop` returned True; what was computed is kept.
        """
        try:
            rows = self._open()
            self._fill(rows, progress, should_stop, ends)
        except OSError as error:
            raise InputError(
                f"Cannot write the features of the photos to {self.path} ({error.strerror}). Free some space, or give "
                "another folder as out (--out)."
            ) from error
        return rows[:, :-_CHECK]

    def _fill(self, rows: Features, progress: Progress, should_stop: Callable[[], bool], ends: float) -> None:
        # A chunk is computed as a whole, so that a stopped extraction ends with the same bits.
        chunks = [self.order[start : start + _CHUNK] for start in range(0, len(self.order), _CHUNK)]
        missing = [chunk for chunk in chunks if not computed(rows[chunk, :-_CHECK]).all()]
        done, total = sum(map(len, chunks)) - sum(map(len, missing)), len(self.order)
        progress(done, total)
        if not missing:
            return
        normalise = per_channel(self.backbone.mean, self.backbone.deviation)
        size = self.images.shape[-1]
        view = _view(self.view, size, flip=self.flip)
        compute = computing(self.backbone.network(), (3, size, size), np.float32, self.device)

        def values_of(chunk: NDArray[np.int64]) -> Features | None:
            if time.perf_counter() > ends or should_stop():
                return None
            with torch.inference_mode():
                pixels: Tensor = normalise(torch.from_numpy(self.images[chunk]))
                # The draws of a photo depend on nothing else, so that no other photo changes its features.
                seen = [
                    view(pixels[[k]], generator(_SEED, f"features/{self.view}", int(row)))
                    for k, row in enumerate(chunk)
                ]
                # Half precision ends at 65,504. No feature of a sensible network comes near it.
                found = compute(torch.cat(seen).numpy()).clip(-60000, 60000).astype(np.float16)
            if not found.any():
                raise InputError(
                    f"All features of {self.backbone.name} are zero in half precision, so every photo looks the same. "
                    "Take another network (--backbone), or leave the choice to the fit."
                )
            return found

        with one_network_per_thread() as (pool, _):
            for chunk, found in zip(missing, pool.map(values_of, missing), strict=True):
                if found is not None:
                    rows[chunk] = np.hstack([found, _checks(found)])
                    done += len(chunk)
                    progress(done, total)
        rows.flush()  # type: ignore[attr-defined]
        if should_stop():
            raise Interrupted(
                "The fit was stopped while it computed features. Continue it with resume=True (--resume)."
            )

    def _open(self) -> Features:
        """The rows of the file, each with its checksum; new and damaged ones are NaN."""
        shape = (len(self.images), self.backbone.n_features + _CHECK)
        with suppress(OSError, ValueError):
            rows = mapped_array(self.path, shape, np.float16, "r+")
            damaged = (_checks(rows[:, :-_CHECK]).view(np.uint16) != rows[:, -_CHECK:].view(np.uint16)).any(1)
            rows[damaged] = np.nan
            return rows
        make_own(self.path.parent)
        part = self.path.with_name(f".writing-{self.path.name}")
        for path in (self.path, part):
            remove(path)
        # Written, not mapped: a full disk is then an error, and later writes need no more room.
        with part.open("xb") as file:
            np.lib.format.write_array(file, np.full(shape, np.nan, np.float16))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)
        return mapped_array(self.path, shape, np.float16, "r+")


def _checks(values: Features) -> Features:
    """[N, 2], the checksum of each row in the bits of two numbers."""
    sums = [zlib.crc32(row) for row in np.ascontiguousarray(values)]
    return np.array(sums, np.uint32).view(np.float16).reshape(-1, _CHECK)


def computed(values: Features) -> NDArray[np.bool_]:
    """[N], which rows are there."""
    return np.asarray(~np.isnan(values).any(1))
