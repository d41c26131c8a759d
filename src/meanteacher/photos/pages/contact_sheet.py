"""The contact sheet of predictions: thumbnails with guess and confidence, the unsure ones apart. One offline page."""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from meanteacher.files.images import UnreadableError, decode
from meanteacher.formats import count, escape_name, percent
from meanteacher.records import Picture
from meanteacher.report.page import render

N_PICTURES = 2000
"""Most photos on a page, which then has about 12 MB; of more, those that the model is least sure of."""
_SIDE = 144

Source = Path | Image.Image | NDArray[np.uint8]
"""A photo as the decoder takes it."""


def thumbnail(picture: Source, side: int = _SIDE) -> str:
    """The photo as a data: address, squeezed into a square; empty if it cannot be read."""
    try:
        image = Image.fromarray(decode(picture, side))
    except UnreadableError:
        return ""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def contact_sheet(
    names: Sequence[str],
    guesses: Sequence[str],
    confidence: NDArray[np.floating],
    pictures: Callable[[int], Source],
    *,
    title: str,
    problems: Sequence[tuple[str, str]] = (),
    is_strange: Sequence[bool] = (),
    unsure_below: float | None = None,
) -> str:
    """The page of N photos; those without a guess are listed under `problems`, each with its reason.

    In each class the photos that the model is least sure of come first. Strange ones may be of none of the classes.
    """
    rows = np.flatnonzero([bool(guess) for guess in guesses])
    rows = rows[np.argsort(confidence[rows], kind="stable")]
    strange = np.isin(rows, np.flatnonzero(is_strange))
    rows, n_strange = np.concatenate([rows[strange], rows[~strange]]), int(strange.sum())
    n_unsure = 0 if unsure_below is None else int((confidence[rows[n_strange:]] < unsure_below).sum())
    none_of_these, unsure, sure = np.split(rows, [n_strange, n_strange + n_unsure])
    shown = set(rows[:N_PICTURES].tolist())

    def sections(of: NDArray[np.int64]) -> list[tuple[str, int, list[Picture]]]:
        """Class, number of its photos, and those that are shown."""
        by_class: dict[str, list[int]] = {}
        for k in of.tolist():
            by_class.setdefault(guesses[k], []).append(k)
        return [
            (name, len(by_class[name]), [picture_of(k) for k in by_class[name] if k in shown])
            for name in sorted(by_class)
        ]

    def picture_of(k: int) -> Picture:
        return Picture(
            name=escape_name(names[k]),
            label=guesses[k],
            confidence=float(confidence[k]),
            thumb=thumbnail(pictures(k)),
        )

    below = "" if unsure_below is None else percent(unsure_below).replace(".0", "")
    parts = [
        (
            "None of these?",
            "These photos are unlike any labelled one and may be of none of the classes.",
            none_of_these,
        ),
        ("Unsure", f"The confidence is below {below}. Look through these; the guess may be wrong.", unsure),
        ("Sure", f"The confidence is {below} or more." if below else "", sure),
    ]
    summary = [(n_unsure, "unsure"), (n_strange, "of none of the classes, perhaps")]
    return render(
        "contact-sheet.html.jinja",
        title=title,
        summary=[count(len(names), "photo"), *(count(n, kind, kind) for n, kind in summary if n)],
        parts=[(heading, why, sections(of)) for heading, why, of in parts if len(of)],
        n_left_out=len(rows) - len(shown),
        problems=problems,
    )
