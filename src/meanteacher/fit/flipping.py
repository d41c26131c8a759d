"""Whether an image may be mirrored and still be of its class, as far as the names of the classes tell.

A mirrored cat is a cat; a mirrored 3 is nothing, a mirrored b is a d, and a left shoe becomes a right one. Names are
read in whole words: a bright day is not about right and left.
"""

import re
import unicodedata
from collections.abc import Sequence

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


def flip_is_safe(class_names: Sequence[str]) -> bool:
    """Whether no name of a class speaks against mirroring the images during training.

    >>> flip_is_safe(["cat", "automobile", "bright day"])
    True
    >>> flip_is_safe(["turn left", "straight on"])
    False
    """
    return not against_flipping(class_names)


def against_flipping(class_names: Sequence[str]) -> tuple[str, ...]:
    """The names that speak against it.

    One that speaks of sides or of writing is enough, and so are two that differ in L and R (`hand_L`, `hand_R`). A
    name that is nothing but a number or a character (`7`, `six`, `B`) may be a mere name, unless half of the names or
    at least two are such.
    """
    words = {name: _words(name) for name in class_names}
    every = {tuple(each) for each in words.values()}
    told = {name for name in words if _TELLING.intersection(words[name]) or _other_side(words[name]) in every}
    bare = {name for name in words if _is_bare(name)}
    against = told | bare if len(bare) >= min(2, len(words) / 2) else told
    return tuple(name for name in class_names if name in against)


def _other_side(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words with L for R and R for L; None where neither is among them."""
    swapped = tuple({"l": "r", "r": "l"}.get(word, word) for word in words)
    return swapped if swapped != tuple(words) else None


def _words(name: str) -> list[str]:
    """Its words and numbers, also where only a capital letter or a digit divides them: `turnLeft`, `digit3`."""
    name = unicodedata.normalize("NFKC", name)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)", " ", name)
    return [word for word in re.split(r"[\W_]+", name.casefold()) if word]


def _is_bare(name: str) -> bool:
    words = [word for word in _words(name) if word not in _EMPTY_WORDS]
    if len(words) == 1 and (len(words[0]) == 1 or words[0] in _LETTER_NAMES):
        return True
    is_sign = len(name.strip()) == 1
    return is_sign or (bool(words) and all(word.isnumeric() or word in _NUMBER_WORDS for word in words))
