"""Which photos the labelling page asks about next, chosen in the background while a person labels."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import MissingBackboneError
from meanteacher.files.images import UnreadableError, decode
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.features.compute import computing
from meanteacher.photos.fitting.heads import logistic_regression
from meanteacher.photos.fitting.label_next import label_next, most_diverse
from meanteacher.photos.folder.tables import DIVERSE, NEXT, NONE_OF_THESE
from meanteacher.photos.label.session import Question, Session

_BACKBONE = "lite0"
_MOST_LABELLED, _MOST = 1000, 4000
"""Photos that are looked at: a random part represents a larger folder."""
_ENOUGH = 100
"""Unlabelled photos that are looked at before the first choice among them."""
_FEW, _AT_ONCE = 3, 10
"""With fewer questions left, so many are chosen. They cannot take the answers to each other into account."""
_CHUNK = 16
_COLOURS = 8
"""Pixels per side of the thumbnails that replace features if no network is installed."""
_PAUSE = 0.3

Look = Callable[[Sequence[NDArray[np.uint8]]], NDArray[np.float32]]


def keep_choosing(session: Session, should_stop: Callable[[], bool]) -> None:
    """Supply the session with questions until it ends: photos unlike the labelled ones that represent many others.

    As soon as two classes have labels, a linear classifier of the features adds its guesses, and photos that it is
    unsure about come first.
    """
    n_before = -1
    for rows, features in _looked_at(session, should_stop):
        if should_stop():
            return
        n_labels = session.n_answered
        if session.n_planned < _FEW and n_labels != n_before:
            session.offer(_questions(session.labels(), rows, features))
            n_before = n_labels


def _looked_at(
    session: Session, should_stop: Callable[[], bool]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """The photos looked at so far and their features, after every part and then again and again."""
    paths, known = session.photos.path, session.labels()
    draws = np.random.default_rng(0)
    labelled, others = (
        draws.permutation(np.array([k for k in range(len(session.photos)) if (k in known) == wanted], dtype=np.int64))
        for wanted in (True, False)
    )
    order = np.concatenate([labelled[:_MOST_LABELLED], others])[:_MOST]
    n_first = min(len(labelled[:_MOST_LABELLED]) + _ENOUGH, len(order))
    size, look = _look()
    rows: list[int] = []
    found: list[NDArray[np.float32]] = []
    for start in range(0, len(order), _CHUNK):
        if should_stop():
            return
        images = {
            int(k): image for k in order[start : start + _CHUNK] if (image := _decoded(paths(int(k)), size)) is not None
        }
        if images:
            rows += images
            found.append(look(list(images.values())))
        if found and start + _CHUNK >= n_first:
            yield np.array(rows), np.concatenate(found)
    while found:
        yield np.array(rows), np.concatenate(found)
        time.sleep(_PAUSE)


def _look() -> tuple[int, Look]:
    """The size of the images, and a function that returns their features, or without a network their colours."""
    try:
        backbone = find_backbone(_BACKBONE)
    except MissingBackboneError:
        return _COLOURS, lambda images: (np.stack(images).reshape(len(images), -1) / np.float32(255)).astype(np.float32)
    size = backbone.size
    compute = computing(backbone.network(), (3, size, size), np.float32)
    mean, deviation = (np.array(each, np.float32) for each in (backbone.mean, backbone.deviation))
    return size, lambda images: compute(
        np.ascontiguousarray(((np.stack(images) / np.float32(255) - mean) / deviation).transpose(0, 3, 1, 2))
    )


def _decoded(path: Path, size: int) -> NDArray[np.uint8] | None:
    try:
        return decode(path, size)
    except UnreadableError:
        return None


def _questions(labels: dict[int, str], rows: NDArray[np.int64], features: NDArray[np.float32]) -> list[Question]:
    """The next questions among the photos `rows`, whose features are [len(rows), D]."""
    given = [labels.get(int(k), "") for k in rows]
    seen = np.array([k for k, label in enumerate(given) if label], dtype=np.int64)
    candidates = np.array([k for k, label in enumerate(given) if not label], dtype=np.int64)
    known = np.array([k for k in seen if given[k].casefold() != NONE_OF_THESE], dtype=np.int64)
    names = sorted({given[k] for k in known})
    if len(names) < 2:
        diverse = most_diverse(features, candidates, labelled=seen, n=_AT_ONCE)
        return [Question(int(rows[each.index]), DIVERSE, reason=each.reason) for each in diverse]
    head = logistic_regression(features[known], np.array([names.index(given[k]) for k in known]), len(names))
    p = head.probabilities(features)
    chosen = label_next(p, candidates, np.arange(len(rows)), names, n=_AT_ONCE, features=features, labelled=seen)
    return [
        Question(int(rows[k]), NEXT, names[int(p[k].argmax())], float(p[k].max()), each.reason)
        for each in chosen
        for k in [each.index]
    ]
