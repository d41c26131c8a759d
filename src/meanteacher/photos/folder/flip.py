"""The decision by class names whether images may be mirrored during training.

A mirrored cat is a cat; a mirrored 3 is nothing, a mirrored b is a d, and a left shoe becomes a right one. Names are
split into whole words: "bright" does not contain "right".

There is one decision for all images (docs/decisions/0016): two classes that are mirror images of each other forbid
mirroring, and so does a quarter of the classes about writing or sides.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_OPPOSITE_SIDES = (
    *("left right", "leftward rightward", "leftwards rightwards", "lefthand righthand", "lefthanded righthanded"),
    *("l r", "clockwise counterclockwise", "clockwise anticlockwise", "cw ccw", "port starboard", "sinistral dextral"),
    *("links rechts", "gauche droite", "izquierda derecha", "sinistra destra", "esquerda direita"),
)
_OPPOSITE_SIGNS = ("b d", "p q", "< >", "( )", "[ ]", "{ }", "/ \\", "← →", "« »", "‹ ›")
"""Signs that count only as the whole name: vitamin b and vitamin d are not a pair."""
_MAX_ORIENTED = 0.25
"""Fraction of class names about writing and sides from which on mirroring is forbidden. Few names reveal such a class:
if a quarter of them do, the images are probably all about writing or sides."""
_WRITING = """
    arrow arrows chevron chevrons sign signs text texts word words letter letters alphabet alphabets
    digit digits number numbers numeral numerals handwriting handwritten calligraphy licence license
"""
_NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand
"""
_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi
    psi omega
"""
_FILLERS = "class label category char character symbol upper lower uppercase lowercase capital small"

_ORIENTED_WORDS = {*" ".join(_OPPOSITE_SIDES).split(), *_WRITING.split()} - {"l", "r", "port"}
_NUMBER_WORDS = frozenset(_NUMBERS.split())
_LETTER_NAMES = frozenset(_GREEK.split())
_FILLER_WORDS = frozenset(_FILLERS.split())
_SWAPS = tuple({one: other, other: one} for one, other in map(str.split, _OPPOSITE_SIDES))
_SIGN_SWAPS = tuple({one: other, other: one} for one, other in map(str.split, _OPPOSITE_SIGNS))


@dataclass(frozen=True, slots=True)
class FlipEvidence:
    """The evidence of the class names for or against mirroring."""

    oriented: tuple[str, ...]
    """Names about writing or sides, in the order of the classes."""
    pairs: tuple[tuple[str, str], ...]
    """Pairs of classes that are mirror images of each other."""
    n_classes: int

    @property
    def is_safe(self) -> bool:
        return not self.pairs and len(self.oriented) < _MAX_ORIENTED * max(1, self.n_classes)


def flip_evidence(class_names: Sequence[str]) -> FlipEvidence:
    """Find the names with a word about sides or writing, and pairs that differ only in such words (`hand_L`, `hand_R`).

    A name that is only a number or a character (`7`, `six`, `B`) may mean anything, so it counts only if half of the
    names or at least two are of this kind.

    >>> flip_evidence(["cat", "automobile", "bright day"]).is_safe
    True
    >>> flip_evidence(["turn left", "straight on"]).is_safe
    False
    """
    words = {name: _words(name) for name in class_names}
    pairs = _pairs(words)
    oriented = {name for name in words if _ORIENTED_WORDS.intersection(words[name])}
    oriented.update(*pairs)
    symbols = {name for name in words if _is_symbol(name)}
    if len(symbols) >= min(2, len(words) / 2):
        oriented |= symbols
    return FlipEvidence(tuple(name for name in words if name in oriented), tuple(pairs), len(words))


def _pairs(words: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Pairs of names that differ only by an exchange of sides; each pair is listed once."""
    by_words = {tuple(its): name for name, its in words.items()}
    pairs: list[tuple[str, str]] = []
    for name, its in words.items():
        for swap in (*_SWAPS, *(_SIGN_SWAPS if _is_symbol(name) else ())):
            other = by_words.get(tuple(swap.get(word, word) for word in its))
            if other is not None and other != name and (other, name) not in pairs and (name, other) not in pairs:
                pairs.append((name, other))
    return pairs


def _words(name: str) -> list[str]:
    """The words and numbers of a name, also if only a capital letter or a digit separates them: `turnLeft`, `digit3`.

    A name that consists of signs is one word.
    """
    name = unicodedata.normalize("NFKC", name)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)", " ", name)
    return [word for word in re.split(r"[\W_]+", name.casefold()) if word] or [name.strip()]


def _is_symbol(name: str) -> bool:
    """Whether the name is only a number or a character."""
    words = [word for word in _words(name) if word not in _FILLER_WORDS]
    if len(words) == 1 and (len(words[0]) == 1 or words[0] in _LETTER_NAMES):
        return True
    is_sign = len(name.strip()) == 1
    return is_sign or (bool(words) and all(word.isnumeric() or word in _NUMBER_WORDS for word in words))
