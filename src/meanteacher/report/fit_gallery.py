"""The pictures of a fit as a template prints them; only what is certainly a picture becomes one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meanteacher.formats import certainty
from meanteacher.report.fit_answer import Fit

THUMB = re.compile(r"data:image/(?:jpeg|png);base64,[A-Za-z0-9+/]+={0,2}")
"""What a picture may be. Anything else that a file held could be a request or a script."""

LONGEST_THUMB = 200_000
N_PICTURES = 24
"""As many of a kind as a reader looks at."""

GROUPS = {
    "most_confident": ("Surest", "The model is surest of these. A wrong one here is worth a second look."),
    "least_confident": ("Least sure", "The model can hardly decide on these."),
    "label_next": ("To label next", "Labels for these would teach the model most; label-next.csv lists them."),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of the gallery; without `thumb` only its words are shown."""

    name: str
    file: str
    label: str
    confidence: str
    reason: str
    thumb: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pictures that were chosen for the same reason."""

    heading: str
    sentence: str
    pictures: Sequence[Picture]


def gallery(fit: Fit) -> list[Group]:
    """The groups that hold a picture."""
    groups = fit.get("gallery") or {}
    return [
        Group(heading, sentence, [_picture(each) for each in groups[key][:N_PICTURES]])
        for key, (heading, sentence) in GROUPS.items()
        if groups.get(key)
    ]


def safe_thumb(thumb: object) -> str:
    """The picture if it is one, else nothing.

    >>> safe_thumb("data:image/png;base64,iVBORw0KGgo="), safe_thumb("https://example.org/a.png")
    ('data:image/png;base64,iVBORw0KGgo=', '')
    """
    known = isinstance(thumb, str) and len(thumb) <= LONGEST_THUMB and THUMB.fullmatch(thumb)
    return known.group() if known else ""


def _picture(each: Mapping[str, Any]) -> Picture:
    confidence = each.get("confidence")
    return Picture(
        name=each["name"],
        file=each["name"].rsplit("/", 1)[-1],
        label=each["label"],
        confidence="" if confidence is None else certainty(confidence),
        reason=each.get("reason") or "",
        thumb=safe_thumb(each.get("thumb")),
    )
