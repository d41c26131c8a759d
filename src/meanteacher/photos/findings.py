"""One thing that was noticed about the images; what is said about odd shapes and about copies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.formats import count
from meanteacher.photos.decode import UnreadableError, header
from meanteacher.photos.duplicates import alike, duplicate_groups, exact_groups
from meanteacher.photos.find import Photos, printable

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""What is wrong and should be mended; what may make the result worse; what is good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What `meanteacher check` says about one thing. Nothing found stops a fit."""

    kind: str
    """A word for programs, for instance "duplicate"."""
    severity: Severity
    sentence: str
    """Understandable alone; says what to do, if there is anything to do."""
    names: tuple[str, ...] = ()
    """All that the sentence is about, printable."""
    about: Literal["image", "class"] = "image"
    """What they are names of."""


def named(photos: Photos, rows: NDArray[np.int64]) -> tuple[str, ...]:
    """The printable names of the images in `rows`."""
    return tuple(printable(photos.names[k]) for k in rows)


def listed(names: Sequence[str]) -> str:
    """The first three, and the number of the rest.

    >>> listed(["a.jpg", "b.jpg"])
    'a.jpg and b.jpg'
    >>> listed(["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"])
    'a.jpg, b.jpg, c.jpg and 2 more'
    """
    shown = list(names[:3])
    if len(names) > 3:
        shown.append(f"{len(names) - 3:,} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


_MOST_LOOKED_AT = 20_000
_HUGE = 50_000_000
_FEW = 0.2


def shapes_of(photos: Photos) -> NDArray[np.int64]:
    """[N, 2], width and height as displayed, from the files' headers; zeros where unknown.

    Of more than 20,000 files only so many are looked at, evenly spread over the names: the other rows are zeros.
    """
    shapes = np.zeros((len(photos), 2), np.int64)
    if photos.arrays is not None:
        shapes[:] = photos.arrays.shape[2], photos.arrays.shape[1]
        return shapes
    for k in np.linspace(0, len(photos) - 1, min(len(photos), _MOST_LOOKED_AT)).round().astype(int).tolist():
        try:
            shapes[k] = header(photos.path(k))[:2]
        except UnreadableError:
            continue
    return shapes


def shape_findings(photos: Photos, readable: NDArray[np.int64], shapes: NDArray[np.int64], size: int) -> list[Finding]:
    """Images that are huge, too small for the square of `size` pixels a side, or of another form than most."""
    rows = readable[shapes[readable].min(axis=1) > 0]
    if not len(rows):
        return []
    of = "" if len(rows) == len(readable) else f"Of {len(rows):,} images that were looked at, "
    width, height = shapes[rows].T
    short, form = np.minimum(width, height), np.log(width / height)
    # One that there is: between wide and narrow halves lies a shape that no image has.
    middle = float(np.quantile(form, 0.5, method="nearest"))
    typical = float(np.median(short))

    findings = []
    if huge := named(photos, rows[width * height > _HUGE]):
        findings.append(
            Finding(
                "huge",
                "note",
                f"{of}{_have(huge)} more than {_HUGE // 1_000_000} million pixels, which takes "
                f"long to read: {listed(huge)}. Smaller copies will do: {size} by {size} pixels are used of each.",
                huge,
            )
        )
    if small := named(photos, rows[(short < size) & (short < typical / 4)]):
        findings.append(
            Finding(
                "small",
                "warning",
                f"{of}{_have(small)} fewer than {size} pixels on the shorter side, where most have about "
                f"{typical:.0f}, and must be blown up: {listed(small)}. Give larger versions, or delete what is but an "
                "icon or a preview.",
                small,
            )
        )
    odd = named(photos, rows[np.abs(form - middle) > np.log(2)])
    if len(odd) > _FEW * len(rows):
        findings.append(
            Finding(
                "shape",
                "note",
                "The images have very different shapes, from wide to narrow. Each is squeezed into a square, which "
                "distorts some more than others; cutting them to one shape may help.",
                odd,
            )
        )
    elif odd:
        findings.append(
            Finding(
                "shape",
                "warning",
                f"{of}{_have(odd)} another shape than most, which are {_form(middle)}: "
                f"{listed(odd)}. Each image is squeezed into a square, which distorts another shape in another way. "
                "Cut to the shape of the others, or delete what does not belong here.",
                odd,
            )
        )
    return findings


def _have(names: tuple[str, ...]) -> str:
    return count(len(names), "image has", "images have")


def _form(log_ratio: float) -> str:
    ratio = np.exp(abs(log_ratio))
    if ratio < 1.05:
        return "about as wide as high"
    return f"about {ratio:.1f} times as {'wide as high' if log_ratio > 0 else 'high as wide'}"


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
