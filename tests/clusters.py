"""Features of photos whose classes are known."""

import numpy as np

from meanteacher.core import UNLABELLED


def clusters(
    n_classes: int, n: int, *, spread: float = 1.0, n_views: int = 1, counts: tuple[int, ...] = (), seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features [n_views, n, 40] of photos of each class around a point of its own, and the classes.

    There are equally many of each class, or `counts`. Each view differs a little from the others.
    """
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(9).uniform(0, 2, (n_classes, 40))
    truth = draws.permutation(np.repeat(np.arange(n_classes), counts) if counts else np.arange(n) % n_classes)
    photos = centres[truth] + spread * draws.normal(size=(len(truth), 40))
    views = photos + 0.3 * spread * draws.normal(size=(n_views, *photos.shape))
    return views.clip(0).astype(np.float32), truth


def shown(truth: np.ndarray, n_labels: int) -> np.ndarray:
    """The labels of the first photos of each class."""
    labels = np.full(len(truth), UNLABELLED)
    for k in np.unique(truth):
        labels[np.flatnonzero(truth == k)[:n_labels]] = k
    return labels
