"""The check of images and labels before a fit, which `meanteacher check` reports."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meanteacher.core import UNLABELLED
from meanteacher.formats import count, escape_name, listed
from meanteacher.photos.folder.cache import Decoded
from meanteacher.photos.folder.duplicates import Duplicates, find_duplicates, same_picture
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.flip import flip_evidence
from meanteacher.records import SEVERITIES, Finding, Severity

N_SHOWN = 3
"""Number of names in a sentence."""

_CHUNK = 1024
_LEVELS = 8
"""Largest variation of a plain area or a grey pixel, in levels of 0 to 255; JPEG adds this much."""
_FEW_LABELS = 5
_UNEQUAL = 10
_HUGE = 50_000_000
_MANY_SHAPES = 0.2
_MAX_CONFLICTS = 5
"""Number of conflicts with a sentence of their own. The others share one."""
_REST = """
    all inbox misc miscellaneous neu new remaining rest todo uncategorised uncategorized unclassified unsorted
    unsortiert untagged various
"""
_NO_CLASS = frozenset(_REST.split())
"""Names of folders that seldom are classes."""
_MAX_COMPARED = 100
"""Number of labelled images of its group that each image is compared with, because a long film has too many pairs."""


def check(
    photos: Photos,
    decoded: Decoded,
    shapes: NDArray[np.float64] | None = None,
    *,
    duplicates: Duplicates | None = None,
    flip: bool | None = None,
) -> tuple[Finding, ...]:
    """All findings, problems first. None as `shapes` means one shape, None as `flip` a decision by the class names."""
    readable = np.setdiff1d(np.arange(len(photos)), np.fromiter(decoded.unreadable, np.int64))
    is_plain, is_grey = _plain_and_grey(decoded.images)
    plain, other = readable[is_plain[readable]], readable[~is_plain[readable]]
    findings = [
        *_unreadable(photos, decoded),
        *_folders(photos),
        *_classes(photos, readable),
        *copy_findings(photos, decoded.images, duplicates or find_duplicates(decoded.images), other),
        *_plain(photos, plain),
        *([] if shapes is None else shape_findings(photos, readable, shapes, decoded.images.shape[-1])),
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
        kind, advice = "unreadable", "Replace or delete broken files."
        if reason == "too large":
            kind, advice = "huge", f"Use smaller copies: only {side} by {side} pixels of each image are used."
        elif reason.startswith("unsupported"):
            advice = "Save them as .jpg or .png."
        shown = listed(names, N_SHOWN)
        sentence = f"{count(len(names))} cannot be read ({reason}) and will be left out: {shown}. {advice}"
        findings.append(Finding(kind, "problem", sentence, tuple(names)))
    return findings


def _folders(photos: Photos) -> list[Finding]:
    """Findings about folders that may not be classes."""
    findings = []
    if photos.is_wrapped:
        sentence = (
            f'The folder "{escape_name(photos.root.name)}" is the only one in {escape_name(str(photos.root.parent))}, '
            "so the folders in it are the classes. If it is a class itself, put it beside the others."
        )
        findings.append(Finding("wrapped", "note", sentence))
    if names := tuple(escape_name(name) for name in photos.class_names if name.strip().lower() in _NO_CLASS):
        is_are = "is taken for a class" if len(names) == 1 else "are taken for classes"
        sentence = (
            f"{_quoted(names)} {is_are}. If photos in there are of several classes, or not sorted yet, name the folder "
            '"unlabelled" instead.'
        )
        findings.append(Finding("unsorted", "warning", sentence, names, "class"))
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
        files = count(photos.n_ignored, "file is", "files are")
        sentence = f"{files} ignored, because the extension is not that of a photo."
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


def image_names(photos: Photos, rows: NDArray[np.int64]) -> tuple[str, ...]:
    """The printable names of the images in `rows`."""
    return tuple(escape_name(photos.names[k]) for k in rows)


def shorter_side(shapes: NDArray[np.float64]) -> int:
    """The median of the shorter sides of images in pixels, whose `shapes` are [N, 2], NaN if unknown."""
    known = shapes[shapes.min(1) > 0]
    return int(np.median(known.min(1))) if len(known) else 32


def image_size(side: int) -> int:
    """The side that images are resized to from scratch: the largest of 32, 64 and 96 that most of them fill.

    >>> image_size(28), image_size(70), image_size(1000)
    (32, 64, 96)
    """
    return max((size for size in (32, 64, 96) if size <= side), default=32)


def shape_findings(
    photos: Photos, readable: NDArray[np.int64], shapes: NDArray[np.float64], size: int
) -> list[Finding]:
    """Findings about files that are huge, too small for a square of `size` pixels, or of an unusual shape."""
    rows = readable[shapes[readable].min(axis=1) > 0]
    if not len(rows) or photos.arrays is not None:
        return []
    width, height = shapes[rows].T
    short, log_ratio = np.minimum(width, height), np.log(width / height)
    # The median must be the shape of an image: between wide and narrow halves there is a shape that no image has.
    middle = float(np.quantile(log_ratio, 0.5, method="nearest"))
    typical = float(np.median(short))
    findings = []

    def add(kind: str, severity: Severity, is_found: NDArray[np.bool_], fact: str, advice: str) -> None:
        if names := image_names(photos, rows[is_found]):
            among = "" if len(rows) == len(readable) else f"Of {len(rows):,} images examined, "
            subject, shown = count(len(names), "image has", "images have"), listed(names, N_SHOWN)
            findings.append(Finding(kind, severity, f"{among}{subject} {fact}: {shown}. {advice}", names))

    add(
        "huge",
        "note",
        width * height > _HUGE,
        f"more than {_HUGE // 1_000_000} million pixels, which takes long to read",
        f"Smaller copies are enough: only {size} by {size} pixels of each image are used.",
    )
    add(
        "small",
        "warning",
        (short < size) & (short < typical / 4),
        f"fewer than {size} pixels on the shorter side, while most have about {typical:.0f}, and must be enlarged",
        "Use larger versions, and delete icons and previews.",
    )
    is_odd = np.abs(log_ratio - middle) > np.log(2)
    if is_odd.mean() > _MANY_SHAPES:
        sentence = (
            "The images have very different shapes, from wide to narrow. Each is resized to a square, which distorts "
            "some more than others. Cropping all to one shape may help."
        )
        findings.append(Finding("shape", "note", sentence, image_names(photos, rows[is_odd])))
    else:
        add(
            "shape",
            "warning",
            is_odd,
            f"another shape than most, which are {_ratio(middle)}",
            "Each image is resized to a square, which distorts other shapes differently. Crop them like the others, "
            "or delete those that do not belong here.",
        )
    return findings


def _ratio(log_ratio: float) -> str:
    ratio = np.exp(abs(log_ratio))
    if ratio < 1.05:
        return "about as wide as high"
    return f"about {ratio:.1f} times as {'wide as high' if log_ratio > 0 else 'high as wide'}"


def copy_findings(
    photos: Photos, images: NDArray[np.uint8], duplicates: Duplicates, rows: NDArray[np.int64]
) -> list[Finding]:
    """Findings about conflicting labels, exact copies and near copies among the images in `rows`."""
    exact, near = duplicates.exact, duplicates.near
    conflicts = _conflicts(photos.labels, images, duplicates, rows)
    in_conflict = np.concatenate([*conflicts, np.empty(0, np.int64)])
    rest = rows[~np.isin(near[rows], near[in_conflict])]
    # Only the first of several exact copies is compared further, so that no copy is reported twice.
    _, first = np.unique(exact[rest], return_index=True)
    return [
        *_conflict_findings(photos, exact, conflicts),
        *_copies(
            photos,
            _together(rest, exact),
            "duplicate",
            ("is an exact copy of another", "are exact copies of others"),
            "Copies add nothing to learn from: all but one of each can be deleted.",
        ),
        *_copies(
            photos,
            _together(rest[np.sort(first)], near),
            "near-duplicate",
            ("looks almost the same as another", "look almost the same as others"),
            "They add little to learn from: all but one of each can be deleted.",
        ),
    ]


def _together(rows: NDArray[np.int64], group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows that share a group with another row, group by group."""
    order = rows[np.argsort(group[rows], kind="stable")]
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return [part for part in parts if len(part) > 1]


def _conflicts(
    labels: NDArray[np.int64], images: NDArray[np.uint8], duplicates: Duplicates, rows: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Groups of images that show the same picture and have different labels.

    Groups of near duplicates are chains, whose ends may look different, so the two images of each pair are compared.
    """
    exact, near = duplicates.exact, duplicates.near
    labelled = rows[labels[rows] != UNLABELLED]
    order = labelled[np.argsort(near[labelled], kind="stable")]
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for ahead in range(1, min(_MAX_COMPARED, len(order) - 1) + 1):
        a, b = order[:-ahead], order[ahead:]
        together = near[a] == near[b]
        if not together.any():
            break
        differ = together & (labels[a] != labels[b])
        a, b = a[differ], b[differ]
        same = (exact[a] == exact[b]) | same_picture(images, a, b)
        found += [a[same], b[same]]
    return _together(np.unique(np.concatenate(found)), near)


def _conflict_findings(photos: Photos, exact: NDArray[np.int64], conflicts: list[NDArray[np.int64]]) -> list[Finding]:
    findings = []
    for part in conflicts[:_MAX_CONFLICTS]:
        sentence = (
            "are the same picture with different labels. Correct or delete the wrong ones."
            if (exact[part] == exact[part[0]]).all()
            else "look almost the same but have different labels. Check them, and correct the wrong labels."
        )
        names = listed(_with_labels(photos, part), N_SHOWN)
        findings.append(Finding("conflict", "problem", f"{names} {sentence}", image_names(photos, part)))
    if rest := conflicts[_MAX_CONFLICTS:]:
        names = listed([name for part in rest for name in _with_labels(photos, part)], N_SHOWN)
        sentence = (
            f"{count(len(rest), 'more picture appears', 'more pictures appear')} several times with different "
            f"labels: {names}. Check them, and correct the wrong labels."
        )
        findings.append(Finding("conflict", "problem", sentence, image_names(photos, np.concatenate(rest))))
    return findings


def _with_labels(photos: Photos, part: NDArray[np.int64]) -> list[str]:
    """Names with their labels. One image of each label comes first, because only the first names are shown."""
    _, first = np.unique(photos.labels[part], return_index=True)
    order = [*np.sort(first), *np.setdiff1d(np.arange(len(part)), first)]
    return [
        f'{escape_name(photos.names[k])} ("{escape_name(photos.class_names[photos.labels[k]])}")' for k in part[order]
    ]


def _copies(
    photos: Photos, parts: list[NDArray[np.int64]], kind: str, is_are: tuple[str, str], advice: str
) -> list[Finding]:
    if not parts:
        return []
    n = sum(len(part) - 1 for part in parts)
    example = ("" if len(parts) == 1 else "for example ") + listed(image_names(photos, parts[0]), N_SHOWN)
    sentence = f"{count(n)} {is_are[n > 1]}: {example}. {advice}"
    return [Finding(kind, "note", sentence, image_names(photos, np.concatenate(parts)))]
