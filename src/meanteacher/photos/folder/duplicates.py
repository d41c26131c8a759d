"""Duplicates: exact copies, and images that were saved again, resized or slightly retouched.

Everything is computed from the decoded squares in whole numbers, so the same images give the same groups on every
machine. No step compares all pairs: time grows like N log N, memory by about 300 bytes per image.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Two [P] of positions."""

_PIXELS = 1 << 20
"""Pixels compared at a time, which limits the memory for images of any size."""
_THUMBNAIL = 8
"""Cells per side of the thumbnails that are compared."""
_MARGIN = 2
"""Grey levels by which a cell must be brighter than its neighbour to set a bit, so that noise sets none."""
_MAX_BITS = 10
"""Largest number of differing bits in the 64-bit hashes of near duplicates."""
_ROTATION, _WINDOW = 4, 48
"""Bits per rotation of the hashes, and number of next hashes that each is compared with after a rotation and sort."""
_MIN_CONTRAST = 2.0
"""Smallest contrast of images that can be near duplicates; plainer images have only exact copies."""
_COARSE, _CELL, _FINE = 0.2, 0.5, 0.35
"""Largest differences of near duplicates, as fractions of their contrast: the mean over the thumbnails, the largest of
the cells (a small bird before the same sky makes another picture), and the mean over all pixels. They were chosen by
eye on 50,000 training images of CIFAR-10 and 50,000 of SVHN: pairs within these limits show the same photograph."""


@dataclass(frozen=True, slots=True, eq=False)
class Duplicates:
    """Groups of N images that show the same picture, for the check, the folds and the model's file."""

    digests: tuple[bytes, ...]
    exact: NDArray[np.int64]
    """Index of the first image with the same pixels, [N]."""
    near: NDArray[np.int64]
    """Index of the first exact or near duplicate, [N]. Groups are transitive: the frames of a film can form a chain."""


def digest(image: NDArray[np.uint8]) -> bytes:
    """The digest of an image's pixels [3, S, S], which does not depend on its file."""
    return hashlib.blake2b(image.tobytes(), digest_size=DIGEST_BYTES).digest()


def find_duplicates(images: NDArray[np.uint8]) -> Duplicates:
    """Group images, uint8 [N, 3, S, S], by the picture they show.

    Near duplicates are found by a hash of 64 bits, one for each pair of neighbouring cells of a grid of 9 by 8. Two
    hashes that differ in few bits agree in a long run of bits. If all hashes are rotated to begin with that run and
    sorted, the two are close to each other.
    """
    digests = tuple(map(digest, np.asarray(images)))
    first: dict[bytes, int] = {}
    exact = np.array([first.setdefault(one, k) for k, one in enumerate(digests)], np.int64)
    return Duplicates(digests, exact, _near_groups(images, exact))


def _near_groups(images: NDArray[np.uint8], exact: NDArray[np.int64]) -> NDArray[np.int64]:
    rows = np.flatnonzero(exact == np.arange(len(exact)))
    features = _features(images, rows)
    every = group = np.arange(len(rows))
    for first, second in _candidates(features.hashes):
        is_new = group[first] != group[second]
        a, b = first[is_new], second[is_new]
        if (same := features.same_picture(a, b)).any():
            group = joined(len(rows), [(every, group), (a[same], b[same])])
    near = np.arange(len(exact))
    near[rows] = rows[group]
    return near[exact]


def same_picture(images: NDArray[np.uint8], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask [P] of the pairs of images, given as two [P] of indices, that are near duplicates of each other."""
    rows, position = np.unique(np.stack([first, second]), return_inverse=True)
    return _features(images, rows).same_picture(*position)


@dataclass(frozen=True, slots=True, eq=False)
class _Features:
    """Features for the comparison of R images."""

    images: NDArray[np.uint8]
    rows: NDArray[np.int64]
    """Positions in `images`, [R]."""
    hashes: NDArray[np.uint64]
    """[R]"""
    thumbnails: NDArray[np.uint8]
    """[R, 3, 8, 8]"""
    quarters: NDArray[np.uint8]
    """Means of the thumbnails' quarters, [R, 3, 2, 2], in which most pairs differ already."""
    contrast: NDArray[np.float64]
    """Mean absolute deviation of a thumbnail's cells from their mean, [R]."""

    def same_picture(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the pairs of positions in `rows` that show the same picture. Cheap comparisons come first."""
        limit = np.minimum(self.contrast[first], self.contrast[second])
        same = limit > _MIN_CONTRAST
        for part in _slices(len(same), self.images.shape[-1]):
            left = part.start + np.flatnonzero(same[part])
            quarters = _differences(self.quarters, first[left], second[left])
            same[left] &= quarters.mean(axis=(1, 2, 3)) < _COARSE * limit[left] + 1
            left = left[same[left]]
            cells = _differences(self.thumbnails, first[left], second[left])
            same[left] &= cells.mean(axis=(1, 2, 3)) < _COARSE * limit[left]
            same[left] &= cells.mean(axis=1).max(axis=(1, 2)) < _CELL * limit[left]
            left = left[same[left]]
            pixels = _differences(self.images, self.rows[first[left]], self.rows[second[left]])
            same[left] &= pixels.mean(axis=(1, 2, 3)) < _FINE * limit[left]
        return same


def _features(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> _Features:
    size = images.shape[-1]
    wide, high, small = _overlaps(9, size), _overlaps(8, size), _overlaps(_THUMBNAIL, size)
    hashes = np.empty(len(rows), dtype=np.uint64)
    thumbnails = np.empty((len(rows), 3, _THUMBNAIL, _THUMBNAIL), dtype=np.uint8)
    contrast = np.empty(len(rows))
    for part in _slices(len(rows), size):
        # All values are whole numbers below 2**53, so the products are exact in any order of addition.
        pixels = images[rows[part]].astype(np.float64)
        cells = high @ (77 * pixels[:, 0] + 150 * pixels[:, 1] + 29 * pixels[:, 2]) @ wide.T
        bits = cells[:, :, 1:] - cells[:, :, :-1] > _MARGIN * 256 * size**2
        hashes[part] = np.packbits(bits.reshape(len(bits), 64), axis=1).view(np.uint64)[:, 0]
        thumbnails[part] = small @ pixels @ small.T // size**2
        means = np.rint(thumbnails[part].mean(axis=(2, 3), keepdims=True))
        contrast[part] = np.abs(thumbnails[part] - means).mean(axis=(1, 2, 3))
    quarters = thumbnails.reshape(-1, 3, 2, _THUMBNAIL // 2, 2, _THUMBNAIL // 2).mean(axis=(3, 5)).astype(np.uint8)
    return _Features(images, rows, hashes, thumbnails, quarters, contrast)


def _slices(n: int, size: int) -> list[slice]:
    step = max(1, _PIXELS // size**2)
    return [slice(at, at + step) for at in range(0, n, step)]


def _overlaps(n_cells: int, size: int) -> NDArray[np.float64]:
    """Overlap of each cell with each pixel [n_cells, size], in units of 1 / `n_cells` of a pixel."""
    cells, pixels = np.arange(n_cells)[:, None] * size, np.arange(size) * n_cells
    return (np.minimum(cells + size, pixels + n_cells) - np.maximum(cells, pixels)).clip(min=0).astype(np.float64)


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[Pairs]:
    """Pairs of positions whose hashes differ in few bits. A pair may be yielded more than once."""
    last = np.uint64((1 << _ROTATION) - 1)
    for shift in range(0, 64, _ROTATION):
        rotated = hashes << np.uint64(shift) | hashes >> np.uint64((64 - shift) % 64)
        order = np.argsort(rotated, kind="stable")
        rotated = rotated[order]
        for ahead in range(1, min(_WINDOW, len(order) - 1) + 1):
            differing = rotated[ahead:] ^ rotated[:-ahead]
            # A pair is yielded at the shift at which its run of equal bits begins, where the two are closest.
            begins = (differing & last > 0) | (differing == 0 if shift == 0 else False)
            close = np.flatnonzero(begins & (np.bitwise_count(differing) <= _MAX_BITS))
            yield order[close], order[close + ahead]


def _differences(images: NDArray[np.uint8], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int16]:
    """Absolute differences of the pixels of P pairs [P, 3, H, W], after their means are made equal."""
    difference = images[first].astype(np.int16) - images[second]
    difference -= np.rint(difference.mean(axis=(1, 2, 3), keepdims=True)).astype(np.int16)
    np.abs(difference, out=difference)
    return difference


def joined(n: int, pairs: Iterable[Pairs]) -> NDArray[np.int64]:
    """The groups that pairs of n positions connect, [n], each by its first position."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(n, n))
    _, component = connected_components(graph, directed=False)
    _, start, which = np.unique(component, return_index=True, return_inverse=True)
    return np.asarray(start[which], np.int64)
