"""What is said about images that are there more than once, and worse: with different labels."""

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.fit.duplicates import alike, duplicate_groups, exact_groups
from meanteacher.fit.finding import Finding, listed, named
from meanteacher.fit.photos import Photos, printable
from meanteacher.formats import count

_TOLD_ALONE = 5
"""Conflicts with a sentence of their own; the rest share one."""
_NEXT = 100
"""Labelled images of a group that each is compared with: a long film must not take all pairs of its frames."""


def copy_findings(photos: Photos, images: NDArray[np.uint8], rows: NDArray[np.int64]) -> list[Finding]:
    """Conflicts, exact copies and near copies among the images in `rows`."""
    exact, group = exact_groups(images), duplicate_groups(images)
    conflicts = _conflicts(photos.labels, images, rows, exact, group)
    in_conflict = np.concatenate([*conflicts, np.empty(0, np.int64)])
    rest = rows[~np.isin(group[rows], group[in_conflict])]
    # One of each exact copy stands for all of them, so that nothing is told twice.
    _, first = np.unique(exact[rest], return_index=True)
    return [
        *_conflict_findings(photos, exact, conflicts),
        *_repeated(
            photos,
            _together(rest, exact),
            "duplicate",
            ("is an exact copy of another", "are exact copies of others"),
            "Copies teach nothing new: all but one of each may be deleted.",
        ),
        *_repeated(
            photos,
            _together(rest[np.sort(first)], group),
            "near-duplicate",
            ("looks almost the same as another", "look almost the same as others"),
            "They teach little that is new: all but one of each may be deleted.",
        ),
    ]


def _together(rows: NDArray[np.int64], group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows that share a group with another, group by group."""
    order = rows[np.argsort(group[rows], kind="stable")]
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return [part for part in parts if len(part) > 1]


def _conflicts(
    labels: NDArray[np.int64],
    images: NDArray[np.uint8],
    rows: NDArray[np.int64],
    exact: NDArray[np.int64],
    group: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """Images that show the same picture and carry different labels, group by group.

    Groups are chains, whose ends may look different, so each pair is looked at itself.
    """
    labelled = rows[labels[rows] != UNLABELLED]
    order = labelled[np.argsort(group[labelled], kind="stable")]
    guilty: list[NDArray[np.int64]] = []
    for ahead in range(1, min(_NEXT, len(order) - 1) + 1):
        a, b = order[:-ahead], order[ahead:]
        together = group[a] == group[b]
        if not together.any():
            break
        differ = together & (labels[a] != labels[b])
        a, b = a[differ], b[differ]
        same = (exact[a] == exact[b]) | alike(images, a, b)
        guilty += [a[same], b[same]]
    return _together(np.unique(np.concatenate([*guilty, np.empty(0, np.int64)])), group)


def _conflict_findings(photos: Photos, exact: NDArray[np.int64], conflicts: list[NDArray[np.int64]]) -> list[Finding]:
    findings = []
    for part in conflicts[:_TOLD_ALONE]:
        said = listed(_with_labels(photos, part))
        if (exact[part] == exact[part[0]]).all():
            sentence = f"{said} are the very same picture with different labels. Correct or delete the wrong ones."
        else:
            sentence = (
                f"{said} look almost the same but have different labels. Look at them, and correct what is wrong."
            )
        findings.append(Finding("conflict", "problem", sentence, named(photos, part)))
    if rest := conflicts[_TOLD_ALONE:]:
        said = listed([each for part in rest for each in _with_labels(photos, part)])
        findings.append(
            Finding(
                "conflict",
                "problem",
                f"{count(len(rest), 'more picture is', 'more pictures are')} there several times with different "
                f"labels: {said}. Look at them, and correct what is wrong.",
                named(photos, np.concatenate(rest)),
            )
        )
    return findings


def _with_labels(photos: Photos, part: NDArray[np.int64]) -> list[str]:
    """Names with their labels; the first of each label before the others, to be among those that are shown."""
    _, first = np.unique(photos.labels[part], return_index=True)
    order = [*np.sort(first), *np.setdiff1d(np.arange(len(part)), first)]
    return [f'{printable(photos.names[k])} ("{printable(photos.class_names[photos.labels[k]])}")' for k in part[order]]


def _repeated(
    photos: Photos, parts: list[NDArray[np.int64]], kind: str, is_are: tuple[str, str], advice: str
) -> list[Finding]:
    if not parts:
        return []
    n = sum(len(part) - 1 for part in parts)
    example = "" if len(parts) == 1 else "for instance "
    sentence = f"{count(n)} {is_are[n > 1]}: {example}{listed(named(photos, parts[0]))}. {advice}"
    return [Finding(kind, "note", sentence, named(photos, np.concatenate(parts)))]
