"""What `meanteacher check` says: everything about the images and labels that is better known before than after."""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.formats import count
from meanteacher.photos.cache import Decoded
from meanteacher.photos.find import Photos, printable
from meanteacher.photos.findings import (
    SEVERITIES,
    Finding,
    Severity,
    copy_findings,
    listed,
    named,
    shape_findings,
    shapes_of,
)
from meanteacher.photos.mirror import mirroring

__all__ = ["Finding", "check", "shapes_of"]

_CHUNK = 1024
_LEVELS = 8
"""Levels of 0 to 255 that a plain area or a grey pixel may vary by, as JPEG makes them."""
_ENOUGH = 5
_UNEQUAL = 10


def check(
    photos: Photos, decoded: Decoded, shapes: NDArray[np.int64] | None = None, *, flip: bool | None = None
) -> tuple[Finding, ...]:
    """All findings, problems first.

    Args:
        photos: names and labels
        decoded: pixels, or why there are none
        shapes: [N, 2] of `shapes_of`; None where all images are of one shape
        flip: whether images are mirrored during training; None to decide by the names of the classes
    """
    readable = np.setdiff1d(np.arange(len(photos)), np.fromiter(decoded.unreadable, np.int64))
    is_plain, is_grey = _looks(decoded.images)
    findings = [
        *_unreadable(photos, decoded),
        *_classes(photos, readable),
        *copy_findings(photos, decoded.images, readable[~is_plain[readable]]),
        *_plain(photos, readable[is_plain[readable]]),
        *(shape_findings(photos, readable, shapes, decoded.images.shape[-1]) if shapes is not None else []),
        *_colours(photos, readable[~is_plain[readable]], is_grey),
        *_amounts(photos, readable),
        *_flip(photos.class_names, flip),
    ]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _unreadable(photos: Photos, decoded: Decoded) -> list[Finding]:
    by_reason = defaultdict(list)
    for k, reason in sorted(decoded.unreadable.items()):
        by_reason[reason.split(":")[0]].append(printable(photos.names[k]))
    findings = []
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        is_huge = reason == "too large"
        side = decoded.images.shape[-1]
        advice = (
            f"A smaller copy will do: {side} by {side} pixels are used of each image."
            if is_huge
            else "Replace or delete what is broken."
        )
        sentence = f"{count(len(names))} cannot be read ({reason}) and will be left out: {listed(names)}. {advice}"
        findings.append(Finding("huge" if is_huge else "unreadable", "problem", sentence, tuple(names)))
    return findings


def _classes(photos: Photos, readable: NDArray[np.int64]) -> list[Finding]:
    """Classes with too few labels; images that cannot be read do not count."""
    labels = photos.labels[readable]
    counts = np.bincount(labels[labels != UNLABELLED], minlength=len(photos.class_names))
    most = counts.max(initial=0)

    def about(is_meant: NDArray[np.bool_], kind: str, severity: Severity, fact: str, advice: str) -> list[Finding]:
        names = tuple(printable(photos.class_names[k]) for k in np.flatnonzero(is_meant))
        classes = "the class" if len(names) == 1 else "each of the classes"
        sentence = f"{fact} {classes} {listed([_quoted(name) for name in names])}: {advice}"
        return [Finding(kind, severity, sentence, names, "class")] if names else []

    return [
        *about(
            counts == 0,
            "no-label-class",
            "problem",
            "There is no readable image with the label of",
            "what has no example cannot be learned. Label some images so, or leave the class out.",
        ),
        *about(
            counts == 1,
            "tiny-class",
            "problem",
            "There is only one labelled image of",
            f"it cannot both teach the class and test whether it was learned. Label at least {_ENOUGH}.",
        ),
        *about(
            (counts > 1) & (counts < _ENOUGH),
            "tiny-class",
            "warning",
            f"There are fewer than {_ENOUGH} labelled images of",
            "too few to learn much from, or to test it. Label more.",
        ),
        *about(
            (counts > 0) & (counts * _UNEQUAL < most),
            "unequal-classes",
            "warning",
            f"The most common class has {most:,} labelled images, and there is not a tenth of that of",
            "what is rare among the labels is recognised less well. Label more of it.",
        ),
    ]


def _looks(images: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which images are of one plain colour, and which are without any colour ([N] each)."""
    is_plain, is_grey = np.empty(len(images), bool), np.empty(len(images), bool)
    for at in range(0, len(images), _CHUNK):
        pixels = np.asarray(images[at : at + _CHUNK])
        is_plain[at : at + _CHUNK] = (np.ptp(pixels, axis=(2, 3)) <= _LEVELS).all(axis=1)
        is_grey[at : at + _CHUNK] = (np.ptp(pixels, axis=1) <= _LEVELS).all(axis=(1, 2))
    return is_plain, is_grey


def _plain(photos: Photos, rows: NDArray[np.int64]) -> list[Finding]:
    if not len(rows):
        return []
    names = named(photos, rows)
    sentence = (
        f"{count(len(rows), 'image shows', 'images show')} nothing but one plain colour: {listed(names)}. "
        "Delete what does not belong here."
    )
    return [Finding("plain", "warning", sentence, names)]


def _colours(photos: Photos, rows: NDArray[np.int64], is_grey: NDArray[np.bool_]) -> list[Finding]:
    grey, coloured = rows[is_grey[rows]], rows[~is_grey[rows]]
    if not len(grey) or not len(coloured):
        return []
    few, look, others = (
        (grey, "without colour", "with it") if len(grey) <= len(coloured) else (coloured, "with colour", "without it")
    )
    names = named(photos, few)
    sentence = (
        f"{count(len(few), 'image is', 'images are')} {look} among {len(rows) - len(few):,} {others}: "
        f"{listed(names)}. That does no harm unless one class has more of them than another, "
        "which would be learned in place of what the images show."
    )
    return [Finding("grey", "note", sentence, names)]


def _amounts(photos: Photos, readable: NDArray[np.int64]) -> list[Finding]:
    findings = []
    n_labelled = int((photos.labels[readable] != UNLABELLED).sum())
    n_unlabelled = len(readable) - n_labelled
    if n_unlabelled < n_labelled:
        there = f"{count(n_unlabelled)} without a label" if n_unlabelled else "no image without a label"
        sentence = (
            f"There {'is' if n_unlabelled < 2 else 'are'} {there}, beside {n_labelled:,} with one: little can be "
            "gained from so few. Add images; they need no labels."
        )
        findings.append(Finding("few-unlabelled", "note", sentence))
    if photos.n_ignored:
        sentence = (
            f"{count(photos.n_ignored, 'file is', 'files are')} passed over, being no "
            f"{'image' if photos.n_ignored == 1 else 'images'} by the end of the name. Images of other kinds, such as "
            ".heic, must be saved as .jpg or .png first."
        )
        findings.append(Finding("ignored", "note", sentence))
    return findings


def _flip(class_names: tuple[str, ...], wish: bool | None) -> list[Finding]:
    """What is decided about mirroring, why, and how to decide otherwise."""
    told = mirroring(class_names)
    against = tuple(map(printable, told.against))
    name, speak = ("name", "speaks") if len(against) == 1 else ("names", "speak")
    said = (
        f"the {name} of {len(against):,} of {told.n_classes:,} classes {speak} of writing or of left and right: "
        f"{listed([_quoted(each) for each in against])}"
    )
    is_shown = told.is_safe if wish is None else wish
    advice = (
        " If left and right matter, as in writing, add --no-flip."
        if is_shown
        else " If a mirrored image is still of the same class, add --flip: that helps to learn."
    )
    if wish is not None:
        reason = f"as --{'' if wish else 'no-'}flip asks"
        advice = f" Note that {said}." if wish and not told.is_safe else ""
    elif told.pairs:
        one, other = (_quoted(printable(each)) for each in told.pairs[0])
        more = f", and likewise {count(len(told.pairs) - 1, 'more pair')}" if len(told.pairs) > 1 else ""
        reason = f"since a mirror turns {one} into {other}{more}"
    elif not is_shown:
        reason = f"since {said}"
    elif against:
        reason = f"although {said}. The other classes gain from it"
    else:
        reason = "since no name of a class speaks against it"
    decision = "are also shown mirrored" if is_shown else "are not mirrored"
    return [Finding("flip", "note", f"Images {decision} during training, {reason}.{advice}", against, "class")]


def _quoted(name: str) -> str:
    return f'"{name}"'
