"""One thing that was noticed about the images, and the words it is told in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meanteacher.fit.photos import Photos, printable

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
