"""Width and height of the image files, and which of them stand out."""

import numpy as np
from numpy.typing import NDArray

from meanteacher.fit.decode import UnreadableError, header
from meanteacher.fit.finding import Finding, listed, named
from meanteacher.fit.photos import Photos
from meanteacher.formats import count

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
