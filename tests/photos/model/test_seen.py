"""A model knows again what it has learnt from, by the pixels alone."""

import numpy as np
from numpy.typing import NDArray

from meanteacher.photos.folder.duplicates import digest
from meanteacher.photos.model.bundle import Seen, seen_by

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
DIGESTS = [digest(image) for image in IMAGES]


def rows(*k: int) -> NDArray[np.int64]:
    return np.array(k, dtype=np.int64)


def kinds(seen: Seen) -> list[str]:
    return seen.kinds(DIGESTS).tolist()


def test_images_are_known_with_their_label_without_it_or_not_at_all():
    seen = seen_by(DIGESTS, labelled=rows(0, 3), unlabelled=rows(1))
    assert kinds(seen) == ["training", "unlabelled", "new", "training", "new", "new"]
    assert (seen.n_labelled, seen.n_unlabelled) == (2, 1)
    assert kinds(Seen()) == ["new"] * 6


def test_an_image_with_and_without_a_label_was_seen_with_it():
    seen = seen_by([*DIGESTS[:2], DIGESTS[0]], labelled=rows(0), unlabelled=rows(1, 2))
    assert (seen.n_labelled, seen.n_unlabelled) == (1, 1)
    assert kinds(seen) == ["training", "unlabelled", "new", "new", "new", "new"]


def test_the_order_of_the_images_leaves_no_trace():
    one = seen_by(DIGESTS, labelled=rows(0, 3, 4), unlabelled=rows(1, 2))
    other = seen_by(DIGESTS, labelled=rows(4, 0, 3, 0), unlabelled=rows(2, 1))
    assert one == other


def test_one_pixel_makes_another_image_and_the_layout_in_memory_does_not():
    image = IMAGES[0]
    assert digest(np.asfortranarray(image)) == digest(image)
    changed = image.copy()
    changed[2, 7, 7] ^= 1
    assert digest(changed) != digest(image)
    assert len(digest(image)) == 16
