"""The check of images and labels before a fit, which `meanteacher check` reports."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.formats import count, escape_name, listed
from meanteacher.photos.folder.cache import Decoded
from meanteacher.photos.folder.duplicates import Duplicates, find_duplicates
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.findings import (
    N_SHOWN,
    SEVERITIES,
    Finding,
    Severity,
    copy_findings,
    image_names,
    shape_findings,
)
from meanteacher.photos.folder.flip import flip_evidence

_CHUNK = 1024
_LEVELS = 8
"""Largest variation of a plain area or a grey pixel, in levels of 0 to 255; JPEG adds this much."""
_FEW_LABELS = 5
_UNEQUAL = 10


def check(
    photos: Photos,
    decoded: Decoded,
    shapes: NDArray[np.int64] | None = None,
    *,
    duplicates: Duplicates | None = None,
    flip: bool | None = None,
) -> tuple[Finding, ...]:
    """All findings, problems first.

    Args:
        photos: names and labels
        decoded: pixels, and the reasons why images cannot be read
        shapes: [N, 2] from `shapes_of`; None if all images have one shape
        duplicates: duplicates of `decoded.images`, if they are known already
        flip: whether images are mirrored during training; None to decide by the class names
    """
    readable = np.setdiff1d(np.arange(len(photos)), np.fromiter(decoded.unreadable, np.int64))
    is_plain, is_grey = _plain_and_grey(decoded.images)
    plain, other = readable[is_plain[readable]], readable[~is_plain[readable]]
    findings = [
        *_unreadable(photos, decoded),
        *_classes(photos, readable),
        *copy_findings(photos, decoded.images, duplicates or find_duplicates(decoded.images), other),
        *_plain(photos, plain),
        *(shape_findings(photos, readable, shapes, decoded.images.shape[-1]) if shapes is not None else []),
        *_colours(photos, other, is_grey),
        *_amounts(photos, readable),
        _flip(photos.class_names, flip),
    ]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _unreadable(photos: Photos, decoded: Decoded) -> list[Finding]:
    by_reason = defaultdict(list)
    for k, reason in sorted(decoded.unreadable.items()):
        by_reason[reason.split(":")[0]].append(escape_name(photos.names[k]))
    findings = []
    side = decoded.images.shape[-1]
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        kind, advice = (
            ("huge", f"Use smaller copies: only {side} by {side} pixels of each image are used.")
            if reason == "too large"
            else ("unreadable", "Replace or delete broken files.")
        )
        shown = listed(names, N_SHOWN)
        sentence = f"{count(len(names))} cannot be read ({reason}) and will be left out: {shown}. {advice}"
        findings.append(Finding(kind, "problem", sentence, tuple(names)))
    return findings


def _classes(photos: Photos, readable: NDArray[np.int64]) -> list[Finding]:
    """Findings about classes with too few labels; unreadable images do not count."""
    labels = photos.labels[readable]
    counts = np.bincount(labels[labels != UNLABELLED], minlength=len(photos.class_names))
    most = counts.max(initial=0)
    findings = []

    def add(kind: str, severity: Severity, is_found: NDArray[np.bool_], fact: str, advice: str) -> None:
        if names := tuple(escape_name(photos.class_names[k]) for k in np.flatnonzero(is_found)):
            classes = "the class" if len(names) == 1 else "each of the classes"
            sentence = f"{fact} {classes} {_quoted(names)}: {advice}"
            findings.append(Finding(kind, severity, sentence, names, "class"))

    add(
        "no-label-class",
        "problem",
        counts == 0,
        "A readable labelled image is missing for",
        "a class without examples cannot be learned. Label some images of it, or remove the class.",
    )
    add(
        "tiny-class",
        "problem",
        counts == 1,
        "There is only one labelled image for",
        f"it cannot serve both to learn the class and to test the model. Label at least {_FEW_LABELS}.",
    )
    add(
        "tiny-class",
        "warning",
        (counts > 1) & (counts < _FEW_LABELS),
        f"There are fewer than {_FEW_LABELS} labelled images for",
        "too few to learn the class well, or to test it. Label more.",
    )
    add(
        "unequal-classes",
        "warning",
        (counts > 0) & (counts * _UNEQUAL < most),
        f"The most common class has {most:,} labelled images, more than {_UNEQUAL} times as many as",
        "classes with few labels are recognised less well. Label more images of them.",
    )
    return findings


def _plain_and_grey(images: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks [N] of the images with one plain colour and of the images without colour."""
    is_plain, is_grey = np.empty(len(images), bool), np.empty(len(images), bool)
    for at in range(0, len(images), _CHUNK):
        pixels = np.asarray(images[at : at + _CHUNK])
        is_plain[at : at + _CHUNK] = (np.ptp(pixels, axis=(2, 3)) <= _LEVELS).all(axis=1)
        is_grey[at : at + _CHUNK] = (np.ptp(pixels, axis=1) <= _LEVELS).all(axis=(1, 2))
    return is_plain, is_grey


def _plain(photos: Photos, rows: NDArray[np.int64]) -> list[Finding]:
    if not len(rows):
        return []
    names = image_names(photos, rows)
    shows = count(len(rows), "image shows", "images show")
    sentence = f"{shows} only one plain colour: {listed(names, N_SHOWN)}. Delete those that do not belong here."
    return [Finding("plain", "warning", sentence, names)]


def _colours(photos: Photos, rows: NDArray[np.int64], is_grey: NDArray[np.bool_]) -> list[Finding]:
    grey, coloured = rows[is_grey[rows]], rows[~is_grey[rows]]
    if not len(grey) or not len(coloured):
        return []
    few, others, look = (grey, coloured, "grey") if len(grey) <= len(coloured) else (coloured, grey, "in colour")
    names = image_names(photos, few)
    sentence = (
        f"{count(len(few), 'image is', 'images are')} {look}, unlike {len(others):,} others: "
        f"{listed(names, N_SHOWN)}. This does no harm unless one class has more of them than another: then the model "
        "learns the colour instead of the subject."
    )
    return [Finding("grey", "note", sentence, names)]


def _amounts(photos: Photos, readable: NDArray[np.int64]) -> list[Finding]:
    findings = []
    n_labelled = int((photos.labels[readable] != UNLABELLED).sum())
    n_unlabelled = len(readable) - n_labelled
    if n_unlabelled < n_labelled:
        sentence = (
            f"{count(n_unlabelled, 'image is', 'images are')} unlabelled and {n_labelled:,} labelled: so few "
            "unlabelled images can improve the result only a little. Add images; they need no labels."
        )
        findings.append(Finding("few-unlabelled", "note", sentence))
    if photos.n_ignored:
        sentence = (
            f"{count(photos.n_ignored, 'file is', 'files are')} ignored, because the extension is not that of a "
            "supported image format. Save images of other formats, such as .heic, as .jpg or .png."
        )
        findings.append(Finding("ignored", "note", sentence))
    return findings


def _flip(class_names: tuple[str, ...], flip: bool | None) -> Finding:
    """The decision about mirroring, its reason, and the option that changes it."""
    evidence = flip_evidence(class_names)
    names = tuple(map(escape_name, evidence.oriented))
    suggest = "suggests" if len(names) == 1 else "suggest"
    oriented = f"{len(names):,} of {evidence.n_classes:,} class names {suggest} writing or sides: {_quoted(names)}"
    is_flipped = evidence.is_safe if flip is None else flip
    advice = (
        " If left and right matter, as in writing, add --no-flip."
        if is_flipped
        else " If a mirrored image is still of the same class, add --flip: it improves the model."
    )
    if flip is not None:
        reason = f"as requested by --{'' if flip else 'no-'}flip"
        advice = f" Note that {oriented}." if flip and not evidence.is_safe else ""
    elif evidence.pairs:
        one, other = (_quoted([escape_name(name)]) for name in evidence.pairs[0])
        more = f", and likewise for {count(len(evidence.pairs) - 1, 'more pair')}" if len(evidence.pairs) > 1 else ""
        reason = f"because a mirror turns {one} into {other}{more}"
    elif not is_flipped:
        reason = f"because {oriented}"
    elif names:
        reason = f"although {oriented}. The other classes benefit from it"
    else:
        reason = "because no class name suggests writing or sides"
    decision = "are also shown mirrored" if is_flipped else "are not mirrored"
    return Finding("flip", "note", f"Images {decision} during training, {reason}.{advice}", names, "class")


def _quoted(names: Sequence[str]) -> str:
    return listed([f'"{name}"' for name in names], N_SHOWN)
