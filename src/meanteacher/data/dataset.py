"""Images and labels in memory, checked once; the parts of a benchmark and its source."""

import copy
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.devices import free_bytes

if TYPE_CHECKING:
    from meanteacher.data.encoded import EncodedDataset  # which imports this module

_PART_BYTES = 1 << 26
_NAMED = 10


@dataclass(eq=False)
class BrokenImages:
    """Images that cannot be used: counted, named, and left out as long as there are at most `most`."""

    most: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    """Which image -> why."""
    positions: set[int] = field(default_factory=set)
    """Positions in the data set of images that could not be decoded."""

    def note(self, image: str, reason: str) -> None:
        """Leave one more image out, or raise an InputError that names the first ones if these are too many."""
        self.reasons[image] = reason
        if len(self.reasons) > self.most:
            raise InputError(
                f"{len(self.reasons):,} images are broken, and at most {self.most:,} may be (max_broken): "
                f"{'; '.join(self.described())}. Replace them by intact copies, or allow more."
            )

    def described(self) -> list[str]:
        """The first ones and their reasons."""
        return [f"{image}: {reason}" for image, reason in list(self.reasons.items())[:_NAMED]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """N examples and their labels, `UNLABELLED` if a label is unknown.

    Images stay bytes for as long as possible: they are converted to float one batch at a time, so that a large set is
    never copied as a whole. Runs may share a data set, and nobody changes its tensors.
    """

    images: Tensor
    """[N, C, H, W] as uint8, or [N, ...] as floating point."""
    labels: Tensor
    """[N], int64."""
    class_names: tuple[str, ...]
    on_disk: bool = False
    """Whether the images are a file mapped into memory, of which each batch is read when it is needed."""

    def __post_init__(self) -> None:
        check_labels(self.labels, n_images=len(self.images), n_classes=len(self.class_names))
        if self.images.is_floating_point():
            finite = torch.cat([torch.isfinite(part.flatten(1)).all(dim=1) for part in in_parts(self.images)])
            if not bool(finite.all()):
                bad = (~finite).nonzero().flatten().tolist()
                raise InputError(
                    f"{len(bad)} of {len(self.images)} images hold NaN or infinite values, the first at "
                    f"index {bad[0]}. Remove or repair them."
                )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def broken(self) -> BrokenImages:
        """None: images in memory are decoded already."""
        return BrokenImages()

    def on(self, device: torch.device) -> "Dataset":
        """The same with its images on the device, still as bytes, if they take at most half of its free memory.

        If they do not fit, it is returned as it is, and its rows are moved batch by batch. Labels stay on the CPU, on
        which batches are put together.
        """
        if device.type == "cpu" or self.images.numel() * self.images.element_size() > free_bytes(device) / 2:
            return self
        moved = copy.copy(self)  # not a new one, which would check again what was checked
        object.__setattr__(moved, "images", self.images.to(device))
        object.__setattr__(moved, "on_disk", False)
        return moved

    def to_fit(self, index: Tensor | None) -> Tensor | None:
        """The positions that a normalisation is fitted to: all at `index`."""
        return index

    def fingerprint(self) -> str:
        """Sixteen hex digits of the labels and pixels: two sets that differ in one byte differ here."""
        return self._fingerprint

    @cached_property  # it reads every pixel
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr((tuple(self.images.shape), str(self.images.dtype))).encode())
        digest.update(self.labels.numpy().tobytes())
        for part in in_parts(self.images):
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def check_labels(labels: Tensor, *, n_images: int, n_classes: int) -> None:
    """Raise an InputError if number, type or range of the labels does not fit the images."""
    if n_images != len(labels):
        raise InputError(
            f"{n_images} images but {len(labels)} labels: give one label per image, {UNLABELLED} if it is unknown."
        )
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise InputError(f"Labels are one int64 per image, got {labels.dtype} of shape {tuple(labels.shape)}.")
    if n_images == 0:
        raise InputError("The data set is empty: give at least one image.")
    low, high = int(labels.min()), int(labels.max())
    if low < UNLABELLED or high >= n_classes:
        raise InputError(
            f"Labels run from {low} to {high}, but there are {n_classes} classes: "
            f"expected 0 to {n_classes - 1}, or {UNLABELLED} for unlabelled."
        )


def in_parts(images: Tensor) -> tuple[Tensor, ...]:
    """A few images at a time, so that a copy of a part takes little memory."""
    parts: tuple[Tensor, ...] = images.split(max(1, _PART_BYTES // max(1, images[0].numel() * images.element_size())))
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class TrainTest:
    """The two official parts of a benchmark."""

    train: "Dataset | EncodedDataset"
    test: "Dataset | EncodedDataset"
    official: bool | None = None
    """Whether the files were compared with the official ones; None for a source without a known sha256."""


class Source(Protocol):
    """Where a benchmark comes from. A frozen value, so that it can be part of a recipe."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Read the files in `folder`, downloading missing ones first; `progress` follows the download."""
        ...
