"""Images that show the same picture: exact copies, and copies that were saved again, resized or a little retouched.

Everything is computed from the decoded squares and in whole numbers, so that the same images give the same groups
on every machine. No step compares all pairs: time grows like N log N, memory by some 250 bytes an image.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PIXELS = 1 << 20
"""Compared at a time, for memory to stay small whatever the size of an image."""
_SMALL = 8
"""Cells a side of the thumbnails that are compared."""
_MARGIN = 2
"""Grey levels by which a cell must outshine its neighbour to set a bit: noise in a plain area must not."""
_BITS = 10
"""Of the 64 bits of two hashes, at most this many differ between near duplicates."""
_TURN, _WINDOW = 4, 48
"""After every turn of the hashes by so many bits, each is compared with so many that follow it in order."""
_PLAIN = 2.0
"""Images with less contrast than this hold too little to be told apart: only exact copies count."""
_COARSE, _CELL, _FINE = 0.2, 0.5, 0.35
"""Largest differences of near duplicates, as shares of their contrast: the mean over the thumbnails, the largest of
the cells (a small bird before the same sky makes another picture), and the mean over all pixels. Chosen by eye on
50,000 training images of CIFAR-10 and as many of SVHN, where what passes is the same photograph."""


DIGEST_BYTES = 16


def digest(image: NDArray[np.uint8]) -> bytes:
    """Of the pixels of one image, [3, S, S]: the same for the very same picture, whatever file it came from."""
    return hashlib.blake2b(image.tobytes(), digest_size=DIGEST_BYTES).digest()


def exact_groups(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For every image, the index of the first one with the very same pixels ([N] int64)."""
    first: dict[bytes, int] = {}
    group = np.empty(len(images), dtype=np.int64)
    for part in _parts(len(images), images.shape[-1]):
        for i, image in enumerate(np.ascontiguousarray(images[part]), start=part.start):
            group[i] = first.setdefault(digest(image), i)
    return group


def duplicate_groups(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For every image ([N, 3, S, S] uint8), the index of the first one that shows the same picture ([N] int64).

    Joins exact and near duplicates. Being alike is passed on: two frames of a film share a group where the frames
    between them lead from one to the other.

    Near duplicates are found by a hash of 64 bits, one for each pair of neighbouring cells of a grid of 9 by 8. Two
    hashes that differ in few bits agree in a long stretch somewhere: when all hashes are turned to begin with that
    stretch, and sorted, the two stand close together.
    """
    group = exact_groups(images)
    rows = np.flatnonzero(group == np.arange(len(group)))
    prints = _prints(images, rows)
    leader = np.arange(len(rows))
    for a, b in _candidates(prints.hashes):
        apart = leader[a] != leader[b]
        pairs = np.stack([a[apart], b[apart]])
        _join(leader, pairs[:, prints.alike(*pairs)])
    whole = np.arange(len(group))
    whole[rows] = rows[leader]
    return whole[group]


def alike(images: NDArray[np.uint8], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For pairs of images (two [P] of indices), whether they show the same picture themselves ([P] bool)."""
    rows, place = np.unique(np.stack([first, second]), return_inverse=True)
    return _prints(images, rows).alike(*place)


@dataclass(frozen=True, slots=True, eq=False)
class _Prints:
    """What is compared of R of the images."""

    images: NDArray[np.uint8]
    rows: NDArray[np.int64]
    """[R], which of the images."""
    hashes: NDArray[np.uint64]
    """[R] uint64"""
    thumbs: NDArray[np.uint8]
    """[R, 3, 8, 8] uint8"""
    corners: NDArray[np.uint8]
    """[R, 3, 2, 2] uint8, the thumbnails' own: most pairs differ in these already."""
    contrast: NDArray[np.float64]
    """[R], mean distance of a thumbnail's cells from their mean."""

    def alike(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For pairs of places in `rows`, whether the two show the same picture; cheap looks first."""
        limit = np.minimum(self.contrast[first], self.contrast[second])
        same = limit > _PLAIN
        for part in _parts(len(same), self.images.shape[-1]):
            left = part.start + np.flatnonzero(same[part])
            corners = _differences(self.corners, first[left], second[left])
            same[left] &= corners.mean(axis=(1, 2, 3)) < _COARSE * limit[left] + 1
            left = left[same[left]]
            cells = _differences(self.thumbs, first[left], second[left])
            same[left] &= cells.mean(axis=(1, 2, 3)) < _COARSE * limit[left]
            same[left] &= cells.mean(axis=1).max(axis=(1, 2)) < _CELL * limit[left]
            left = left[same[left]]
            pixels = _differences(self.images, self.rows[first[left]], self.rows[second[left]])
            same[left] &= pixels.mean(axis=(1, 2, 3)) < _FINE * limit[left]
        return same


def _prints(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> _Prints:
    size = images.shape[-1]
    wide, high, small = _shares(9, size), _shares(8, size), _shares(_SMALL, size)
    hashes = np.empty(len(rows), dtype=np.uint64)
    thumbs = np.empty((len(rows), 3, _SMALL, _SMALL), dtype=np.uint8)
    contrast = np.empty(len(rows))
    for part in _parts(len(rows), size):
        # Whole numbers below 2**53: the products are exact, in whatever order a machine adds them up.
        pixels = images[rows[part]].astype(np.float64)
        cells = high @ (77 * pixels[:, 0] + 150 * pixels[:, 1] + 29 * pixels[:, 2]) @ wide.T
        bits = cells[:, :, 1:] - cells[:, :, :-1] > _MARGIN * 256 * size**2
        hashes[part] = np.packbits(bits.reshape(len(bits), 64), axis=1).view(np.uint64)[:, 0]
        thumbs[part] = small @ pixels @ small.T // size**2
        means = np.rint(thumbs[part].mean(axis=(2, 3), keepdims=True))
        contrast[part] = np.abs(thumbs[part] - means).mean(axis=(1, 2, 3))
    corners = thumbs.reshape(-1, 3, 2, _SMALL // 2, 2, _SMALL // 2).mean(axis=(3, 5)).astype(np.uint8)
    return _Prints(images, rows, hashes, thumbs, corners, contrast)


def _parts(n: int, size: int) -> list[slice]:
    step = max(1, _PIXELS // size**2)
    return [slice(at, at + step) for at in range(0, n, step)]


def _shares(n_cells: int, size: int) -> NDArray[np.float64]:
    """[n_cells, size]: how much of each pixel lies in each cell, in units of a pixel's `n_cells`th part."""
    cells, pixels = np.arange(n_cells)[:, None] * size, np.arange(size) * n_cells
    return (np.minimum(cells + size, pixels + n_cells) - np.maximum(cells, pixels)).clip(min=0).astype(np.float64)


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of places whose hashes differ in few bits; the same pair may come again."""
    last = np.uint64((1 << _TURN) - 1)
    for turn in range(0, 64, _TURN):
        turned = hashes << np.uint64(turn) | hashes >> np.uint64((64 - turn) % 64)
        order = np.argsort(turned, kind="stable")
        turned = turned[order]
        for ahead in range(1, min(_WINDOW, len(order) - 1) + 1):
            differing = turned[ahead:] ^ turned[:-ahead]
            # A pair's turn is where a stretch begins that the two share; before, they would stand further apart.
            begins = (differing & last > 0) | (differing == 0 if turn == 0 else False)
            close = np.flatnonzero(begins & (np.bitwise_count(differing) <= _BITS))
            yield order[close], order[close + ahead]


def _differences(images: NDArray[np.uint8], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int16]:
    """[P, 3, H, W]: how far each pixel of two images lies apart, when both are equally bright on the whole."""
    difference = images[first].astype(np.int16) - images[second]
    difference -= np.rint(difference.mean(axis=(1, 2, 3), keepdims=True)).astype(np.int16)
    np.abs(difference, out=difference)
    return difference


def _join(leader: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
    """Let the smallest place of each group lead all of it, in place."""
    for pair in pairs.T.tolist():
        a, b = (_top(leader, i) for i in pair)
        leader[max(a, b)] = min(a, b)
    while not np.array_equal(leader, leader[leader]):
        leader[:] = leader[leader]


def _top(leader: NDArray[np.int64], i: int) -> int:
    while leader[i] != i:
        leader[i] = leader[leader[i]]
        i = int(leader[i])
    return i
