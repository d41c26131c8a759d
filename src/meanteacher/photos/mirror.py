"""Whether images are mirrored during training, as far as the names of the classes tell.

A mirrored cat is a cat; a mirrored 3 is nothing, a mirrored b is a d, and a left shoe becomes a right one. Names are
read in whole words: a bright day is not about right and left.

A batch is changed as a whole, and most of its images have no class that could decide: it is one decision for all.
Two classes that a mirror makes of each other forbid it, because half of their labels would be wrong. A class about
writing or sides without such a counterpart only gains nothing; it takes a quarter of the classes to forbid what
helps the others.
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
"""Where nothing else is in the name: vitamin b and vitamin d are no pair."""
_ENOUGH = 0.25
"""Share of the classes from which names about writing and sides forbid mirroring. Names tell of few such classes, so a
quarter that does makes it likely that the images are about writing or sides altogether."""
_SIDES = """
    left leftward leftwards lefthand lefthanded right rightward rightwards righthand righthanded
    clockwise counterclockwise anticlockwise cw ccw starboard sinistral dextral
    links rechts gauche droite izquierda derecha sinistra destra esquerda direita
"""
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
_SAYS_NOTHING = "class label category char character symbol upper lower uppercase lowercase capital small"

_TELLING = frozenset((_SIDES + _WRITING).split())
_NUMBER_WORDS = frozenset(_NUMBERS.split())
_LETTER_NAMES = frozenset(_GREEK.split())
_EMPTY_WORDS = frozenset(_SAYS_NOTHING.split())
_SWAPS = tuple({one: other, other: one} for one, other in map(str.split, _OPPOSITE_SIDES))
_SIGN_SWAPS = tuple({one: other, other: one} for one, other in map(str.split, _OPPOSITE_SIGNS))


@dataclass(frozen=True, slots=True)
class Mirroring:
    """What the names of the classes say about it."""

    against: tuple[str, ...]
    """The names that speak of writing or of sides, in the order of the classes."""
    pairs: tuple[tuple[str, str], ...]
    """Classes that a mirror makes of each other."""
    n_classes: int

    @property
    def is_safe(self) -> bool:
        return not self.pairs and len(self.against) < _ENOUGH * max(1, self.n_classes)


def flip_is_safe(class_names: Sequence[str]) -> bool:
    """Whether images may be mirrored during training.

    >>> flip_is_safe(["cat", "automobile", "bright day"])
    True
    >>> flip_is_safe(["turn left", "straight on"]), flip_is_safe(["turn left", *"cat dog horse fish".split()])
    (False, True)
    """
    return mirroring(class_names).is_safe


def mirroring(class_names: Sequence[str]) -> Mirroring:
    """Read the names.

    Those count that have a word about sides or writing in them, and pairs that differ in such words only (`hand_L`,
    `hand_R`). A name that is nothing but a number or a character (`7`, `six`, `B`) may be a mere name, unless half of
    the names or at least two are such.
    """
    words = {name: _words(name) for name in class_names}
    pairs = _pairs(words)
    paired = {name for pair in pairs for name in pair}
    told = {name for name in words if _TELLING.intersection(words[name])} | paired
    bare = {name for name in words if _is_bare(name)}
    against = told | bare if len(bare) >= min(2, len(words) / 2) else told
    return Mirroring(tuple(name for name in words if name in against), tuple(pairs), len(words))


def _pairs(words: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Names of which the one is the other with all its sides exchanged, each pair once."""
    named = {tuple(each): name for name, each in words.items()}
    pairs = []
    for name, each in words.items():
        for swap in (*_SWAPS, *(_SIGN_SWAPS if _is_bare(name) else ())):
            other = named.get(tuple(swap.get(word, word) for word in each))
            if other is not None and other != name and (other, name) not in pairs and (name, other) not in pairs:
                pairs.append((name, other))
    return pairs


def _words(name: str) -> list[str]:
    """Its words and numbers, also where only a capital letter or a digit divides them: `turnLeft`, `digit3`.

    A name of signs alone is its one word.
    """
    name = unicodedata.normalize("NFKC", name)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)", " ", name)
    return [word for word in re.split(r"[\W_]+", name.casefold()) if word] or [name.strip()]


def _is_bare(name: str) -> bool:
    words = [word for word in _words(name) if word not in _EMPTY_WORDS]
    if len(words) == 1 and (len(words[0]) == 1 or words[0] in _LETTER_NAMES):
        return True
    is_sign = len(name.strip()) == 1
    return is_sign or (bool(words) and all(word.isnumeric() or word in _NUMBER_WORDS for word in words))
