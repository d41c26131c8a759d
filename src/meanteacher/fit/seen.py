"""Which images a model has learnt from, known again by their pixels.

What a model makes of images that taught it says nothing about others: it has learnt their labels by heart. So it keeps
a digest of each, of the pixels as they are decoded at the model's size. A copy is known again under any name, in any
folder, in another format without loss, with other metadata; one that was compressed, resized or retouched again is
another image. No image can be made from a digest.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meanteacher.fit.duplicates import DIGEST_BYTES, digest


@dataclass(frozen=True, slots=True)
class Seen:
    """Digests in order, one after the other: all that a model has learnt from."""

    labelled: bytes = b""
    """Of images whose labels taught it."""
    unlabelled: bytes = b""
    """Of images that it learnt from without their labels."""
    complete: bool = True
    """False where it went on from a model that does not say what it has seen."""

    @property
    def n_labelled(self) -> int:
        return len(self.labelled) // DIGEST_BYTES

    @property
    def n_unlabelled(self) -> int:
        return len(self.unlabelled) // DIGEST_BYTES

    def kinds(self, digests: Iterable[bytes]) -> NDArray[np.str_]:
        """For each digest "training", "unlabelled" or "new"."""
        labelled, unlabelled = _split(self.labelled), _split(self.unlabelled)
        return np.array(
            ["training" if one in labelled else "unlabelled" if one in unlabelled else "new" for one in digests],
            dtype=np.str_,
        )


def seen_by(
    images: NDArray[np.uint8], *, labelled: NDArray[np.int64], unlabelled: NDArray[np.int64], earlier: Seen
) -> Seen:
    """What a model has seen that was trained on these rows of `images` ([N, 3, S, S]) after it had seen `earlier`."""
    with_label = _split(earlier.labelled) | {digest(images[k]) for k in labelled}
    without = (_split(earlier.unlabelled) | {digest(images[k]) for k in unlabelled}) - with_label
    return Seen(b"".join(sorted(with_label)), b"".join(sorted(without)), earlier.complete)


def _split(digests: bytes) -> set[bytes]:
    return {digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)}
