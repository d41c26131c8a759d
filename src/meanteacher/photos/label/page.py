"""Content of the labelling page: the keys of the classes, and the images as JPEG."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from meanteacher.files.images import decode, header

_FREE = "1234567890abcdefghijklmnopqrstuvwxyz"
"""Keys for classes whose name suggests none, in this order."""


def class_keys(names: Sequence[str], before: Mapping[str, Sequence[str]] | None = None) -> dict[str, tuple[str, ...]]:
    """The keys that select each class; the first of them is shown on its button.

    A name of one character is its own key, and the key of a number below ten is that digit. Otherwise a class has the
    letter or digit that no other name begins with, and the digit that no other name ends with ("level 7"). Case
    matters only if two names differ in nothing else. Classes without a key then get a free one, first digits, then
    letters, but never a character that any name suggests in one of these ways.

    If there are not enough keys, no class has one, and the page finds classes by typing.

    `before` are the previous keys, if a class has been added. The other classes keep their keys unless the new name
    suggests them, and no class gets a key that selected another class.

    >>> class_keys(["cat", "Dog", "cow", "7", "level 1"])
    {'cat': ('2',), 'Dog': ('d', 'D'), 'cow': ('3',), '7': ('7',), 'level 1': ('l', 'L', '1')}
    """
    before = before or {}
    # key -> class
    owners = {name: name for name in names if len(name) == 1 and _is_one_keystroke(name)}
    suggested = {name.lower() for name in owners}
    for suggestion in (_number, _first, _last):
        wanted = {name: character for name in names if (character := suggestion(name))}
        number = Counter(wanted.values())
        for name, character in wanted.items():
            if number[character] == 1 and character not in suggested:
                owners[character] = name
        suggested |= set(wanted.values())
    meant = {key.lower(): name for name, keys in before.items() for key in keys}
    for name in names:
        if name not in owners.values():
            mine = [key for key in _FREE if meant.get(key) == name]
            fresh = [key for key in _FREE if key not in meant]
            key = next((key for key in (*mine, *fresh) if key not in suggested and key not in owners), None)
            if key is None:
                return dict.fromkeys(names, ())
            owners[key] = name
    return {name: tuple(_cases([key for key, owner in owners.items() if owner == name], owners)) for name in names}


def _is_one_keystroke(character: str) -> bool:
    """Whether one key types the character, unlike Chinese, Japanese and Korean characters and pictograms."""
    return unicodedata.east_asian_width(character) not in ("W", "F")


def _number(name: str) -> str:
    return found[1] if (found := re.fullmatch(r"0*([0-9])", name)) else ""


def _first(name: str) -> str:
    return name[0].lower() if name[0].isalnum() and _is_one_keystroke(name[0]) else ""


def _last(name: str) -> str:
    return found[1] if (found := re.search(r"(?<![0-9])0*([0-9])$", name)) else ""


def _cases(keys: Sequence[str], owners: Mapping[str, str]) -> list[str]:
    """The keys in the order of display, each followed by its other case unless that selects another class."""
    cases = {case: None for key in keys for case in (key, key.lower(), key.upper()) if len(case) == 1}
    return [case for case in cases if case in keys or case not in owners]


LARGEST = 1024
SMALLEST = 384
"""Limits of an image's longer side in pixels. Tiny images are enlarged, because a browser does it less smoothly."""


def as_jpeg(path: Path) -> bytes:
    """The image in its own proportions, its longer side from SMALLEST to LARGEST pixels."""
    width, height, *_ = header(path)
    longer = max(width, height)
    # The square contains the whole image; the second resize restores its proportions.
    square = Image.fromarray(decode(path, min(longer, LARGEST)))
    scale = min(max(longer, SMALLEST), LARGEST) / longer
    shown = square.resize((max(1, round(scale * width)), max(1, round(scale * height))), Image.Resampling.BICUBIC)
    file = BytesIO()
    shown.save(file, "JPEG", quality=90)
    return file.getvalue()
