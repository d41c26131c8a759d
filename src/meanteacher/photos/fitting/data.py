"""What a fit learns from, and what it has learned."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from meanteacher.core import UNLABELLED, InputError
from meanteacher.models import ModelSpec
from meanteacher.photos.features.backbones import Backbone
from meanteacher.photos.fitting.estimate import OutOfFold
from meanteacher.photos.fitting.work import Work
from meanteacher.photos.folder.cache import Decoded, decode_all
from meanteacher.photos.folder.duplicates import Duplicates, find_duplicates
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.groups import find_groups
from meanteacher.photos.folder.tables import NONE_OF_THESE
from meanteacher.photos.model.predict import Known


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FitData:
    """The photos as a fit learns from them."""

    photos: Photos
    decoded: Decoded
    duplicates: Duplicates
    left_out: dict[int, str]
    """position -> why the photo is left out: it cannot be read, or it belongs to none of the classes"""
    labels: NDArray[np.int64]
    """[N], `UNLABELLED` where unknown or left out."""
    taken: NDArray[np.float64]
    """[N], the time of each shot by its header, NaN if unknown."""
    group_by: str | None

    @property
    def usable(self) -> NDArray[np.int64]:
        """Positions of the photos that are learned from, with or without a label."""
        return np.setdiff1d(np.arange(len(self.photos)), np.array(sorted(self.left_out), dtype=np.int64))

    @property
    def labelled(self) -> NDArray[np.int64]:
        """Positions of the usable photos with a label."""
        return np.flatnonzero(self.labels != UNLABELLED)

    @property
    def size(self) -> int:
        return int(self.decoded.images.shape[-1])

    def groups(self, features: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """[N], equal for photos that belong together, such as copies and bursts: they are tested together."""
        return find_groups(self.photos, self.duplicates.near, self.taken, features, group_by=self.group_by)

    def pixels_digest(self) -> str:
        """Digest of all pixels in their order."""
        return hashlib.sha256(b"".join(self.duplicates.digests)).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Fingerprint of the names, labels and pixels, which must be unchanged to resume."""
        names = (*self.photos.class_names, *self.photos.names, self.pixels_digest())
        digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape"))
        digest.update(self.photos.labels.tobytes() + bytes(str(sorted(self.photos.none_of_these)), "ascii"))
        return digest.hexdigest()[:16]


def read_photos(photos: Photos, work: Work, size: int, *, taken: NDArray[np.float64], group_by: str | None) -> FitData:
    """Decode the photos, and leave out those that cannot be read or have no class.

    Raises:
        InputError: no labelled photo of a class can be read.
    """
    decoded = decode_all(photos, size, work.cache, progress=work.reading())
    labels = photos.labels.copy()
    labels[list(decoded.unreadable)] = UNLABELLED
    if missing := [name for k, name in enumerate(photos.class_names) if not (labels == k).any()]:
        raise InputError(
            f"No labelled image of {', '.join(missing)} can be read. Label another one, or leave the class out."
        )
    return FitData(
        photos=photos,
        decoded=decoded,
        duplicates=find_duplicates(decoded.images),
        left_out=decoded.unreadable | dict.fromkeys(photos.none_of_these, NONE_OF_THESE),
        labels=labels,
        taken=taken,
        group_by=group_by,
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Learned:
    """A model that learned from all labels, and everything that a report says about it."""

    network: nn.Module
    normalise: nn.Module
    spec: ModelSpec
    logits: NDArray[np.float32]
    """[N, n_classes] of all photos by this model; NaN for `missing` ones."""
    out_of_fold: OutOfFold
    """Answers of the same recipe for labelled photos that it did not learn from."""
    baseline: OutOfFold | None
    """The same for the labels alone; None if that was not tested."""
    missing: dict[int, str]
    """position -> why there is no answer"""
    title: str
    """Title of the network."""
    features: NDArray[np.float32] | None = None
    """[N, D]"""
    backbones: tuple[Backbone, ...] = ()
    n_views: int = 1
    known: Known | None = None
    """Labelled photos that others are compared with."""
    doubts: NDArray[np.float64] | None = None
    """[N], by how much another class is more probable than the label; None if that is not known."""
