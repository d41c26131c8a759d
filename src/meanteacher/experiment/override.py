"""`--set field=value`: replaces fields of a recipe at any depth, checked against their declared types.

The fields of the training are named like the recipe's own: `steps`, not `training.steps`. A changed
recipe is another one: its name lists the changes, and it has no claim of the paper.
"""

import ast
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert

from meanteacher.core import Augment, InputError, Method, Schedule, Scheduled
from meanteacher.costs import ConsistencyCost
from meanteacher.data import BatchSpec, Source
from meanteacher.experiment.describe import describe
from meanteacher.experiment.recipe import Recipe
from meanteacher.formats import listed
from meanteacher.models import ModelSpec
from meanteacher.schedules import Constant, stretched
from meanteacher.train import OptimSpec
from meanteacher.views import Normaliser

_SAID = {
    "name": "is made of the recipe's name and what is set. Give another folder with --out",
    "claim": "is what the paper reports for the unchanged recipe",
    "deviations": "is about the paper and changes no run",
    "seeds": "is the list of seeds that the paper's table would take. Give the seed of a run with --seed",
}
"""Fields that change nothing in a run."""
_KINDS: dict[Any, str] = {
    Schedule: "a schedule",
    Augment: "a view",
    ConsistencyCost: "a consistency cost",
    Method: "a method",
    ModelSpec: "a network",
    Source: "a source of images",
    BatchSpec: "the composition of a batch",
    OptimSpec: "an optimiser",
    Normaliser: "a normaliser",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    NoneType: "none",
}
_LONGEST = 80
"""Characters of a derived name after the recipe's own: it becomes a folder's name, which may have 255 bytes."""
_MOST_NAMED = 8
_MAX_DEPTH = 20
_MAX_VALUE = 1000
"""Characters of a value."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was given for one field."""

    setting: str
    path: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        return ".".join(self.path)

    @property
    def value(self) -> object:
        return _parsed(self.text)

    def refused(self, why: str) -> InputError:
        return InputError(f"--set {_shown(self.setting)}: {why}.")


def _parsed(text: str) -> object:
    try:
        # Thousands of signs or brackets would be too deep for the parser, and no value has so many characters.
        return _numbers(ast.literal_eval(text)) if len(text) <= _MAX_VALUE else text
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _numbers(value: object) -> object:
    """The value with whole numbers as integers, unless they are too large.

    Raises:
        OverflowError: a number is not finite.
    """
    if isinstance(value, tuple | list):
        return tuple(map(_numbers, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if math.isinf(number := float(value)):
        raise OverflowError
    return int(value) if number % 1 == 0 and abs(number) < sys.maxsize else number


def _shown(text: str) -> str:
    """The text as an error repeats it.

    >>> _shown("steps=" + 400 * "9")
    'steps=9999999999999999999999999999999999999999999999999999999999 …'
    """
    return text if len(text) <= _LONGEST else f"{text[:64]} …"


def override(recipe: Recipe, *settings: str) -> Recipe:
    """The recipe with fields changed, for instance by "steps=300" or "method.weight.value=50".

    All are applied at once, so that fields that depend on each other can be given in any order. A schedule given
    as a number becomes constant. Other `steps` stretch all schedules in proportion, so that a ramp-down still ends with
    the run. If anything has changed, the name says what, and there is no claim.
    """
    every = [_wanted(setting) for setting in settings]
    followed = _following(recipe, every)
    changed = _replaced(followed, Recipe, every, 0) if every else recipe
    assert isinstance(changed, Recipe)
    changes = [f"{path}={text}" for path, text in _changes(followed, changed, ())]
    if not changes:
        return recipe
    said = f"Changed with --set from {recipe.name}: {', '.join(changes)}."
    if followed is not recipe:
        said += f" The schedules are stretched from {recipe.training.steps} to {changed.training.steps} steps."
    return replace(changed, name=f"{recipe.name}+{_short(changes)}", claim=None, deviations=(*recipe.deviations, said))


def lines(recipe: Recipe) -> list[tuple[str, str]]:
    """The fields of a recipe as --set names them, and their values; a class before its own fields.

    >>> from meanteacher.recipes import find
    >>> [line for line in lines(find("moons/mean-teacher")) if line[0].startswith("method.decay")]
    [('method.decay', 'Constant'), ('method.decay.value', '0.97')]
    """
    found = [(path, value) for path, value in _inner(recipe) if path[0] not in ("claim", "deviations")]
    return [
        (".".join(path), type(value).__name__ if is_dataclass(value) else json.dumps(describe(value)))
        for path, value in found
        if not isinstance(value, Mapping | tuple) or not _is_part(value)
    ]


def _following(recipe: Recipe, every: Sequence[_Wanted]) -> Recipe:
    """The recipe with its schedules stretched to the number of steps that is wanted, and otherwise unchanged."""
    training, steps = recipe.training, recipe.training.steps
    for wanted in every:
        if wanted.path == ("steps",):
            steps = _fitting(training.steps, int, wanted)
    if steps == training.steps or steps < 1:  # which is refused where it is set
        return recipe
    parts = {name: _stretched(getattr(training, name), steps / training.steps) for name in ("method", "optim")}
    return recipe.varied(**parts)


def _stretched(part: Any, factor: float) -> Any:
    """A method or an optimiser with its schedules stretched."""
    schedules = [name for name, (_, declared) in _fields(part).items() if declared in (Schedule, Scheduled)]
    return replace(part, **{name: stretched(getattr(part, name), factor) for name in schedules})


def _wanted(setting: str) -> _Wanted:
    """What was given by a setting."""
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise InputError(f"--set takes field=value, for instance steps=300; got {_shown(setting)!r}.")
    names = tuple(path.split(".", _MAX_DEPTH))
    wanted = _Wanted(setting, names, text)
    if names[0] in _SAID:
        raise wanted.refused(f"{names[0]} {_SAID[names[0]]}")
    if names[:2] == ("views", "labelled"):
        raise wanted.refused("the view of the labelled rows is a field of its own. Give labelled_view instead")
    return wanted


def _replaced(value: Any, declared: Any, every: Sequence[_Wanted], depth: int) -> Any:
    """The value with what is wanted for it, or for its parts, whose names stand at this depth of the paths."""
    first, *others = sorted(every, key=lambda wanted: len(wanted.path))
    if len(first.path) == depth:
        if others:
            raise others[0].refused(f"--set {first.setting} is about the same field. Give one of them")
        return _fitting(value, declared, first)
    parts = _parts(value, declared)
    inner: dict[str, list[_Wanted]] = {}
    for wanted in every:
        name = wanted.path[depth]
        if not parts:
            above = ".".join(wanted.path[:depth])
            raise wanted.refused(f"{above} is {value!r}, which has no field {_shown(name)!r}. It is set as a whole")
        if name not in parts:
            near = get_close_matches(name, parts, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise wanted.refused(f"no field {_shown(name)!r}.{hint} There are: {', '.join(parts)}")
        inner.setdefault(name, []).append(wanted)
    new = {name: _replaced(*parts[name], its, depth + 1) for name, its in inner.items()}
    if isinstance(value, Mapping):
        return {**value, **new}
    if isinstance(value, tuple):
        return tuple(new.get(str(i), item) for i, item in enumerate(value))
    try:
        return value.varied(**new) if isinstance(value, Recipe) else replace(value, **new)
    except (TypeError, AttributeError) as error:
        given = " ".join(f"--set {wanted.setting}" for wanted in every)
        raise InputError(f"{given}: {error}.") from error


def _parts(value: Any, declared: Any) -> dict[str, tuple[Any, Any]]:
    """name -> what is there and its declared type, of what can be set field by field; nothing for a plain value."""
    arguments = get_args(declared)
    if isinstance(value, Recipe):  # the fields of its training are set like its own
        own = {name: part for name, part in _fields(value).items() if name != "training"}
        return own | _fields(value.training)
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): (item, arguments[1] if len(arguments) == 2 else Any) for key, item in value.items()}
    if isinstance(value, tuple):
        each = len(arguments) == len(value) and Ellipsis not in arguments
        kinds = arguments if each else (arguments or (Any,))[:1] * len(value)
        return {str(i): (item, kind) for i, (item, kind) in enumerate(zip(value, kinds, strict=True))}
    return {}


def _fields(value: Any) -> dict[str, tuple[Any, Any]]:
    types = _declared(type(value))
    return {field.name: (getattr(value, field.name), types[field.name]) for field in fields(value) if field.init}


def _declared(kind: type) -> dict[str, Any]:
    """field -> its type; Any where it is text that cannot be looked up."""
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        return {field.name: Any if isinstance(field.type, str) else field.type for field in fields(kind)}


def _fitting(value: Any, declared: Any, wanted: _Wanted) -> Any:
    """What was given, as the field's type has it."""
    if declared in (Schedule, Scheduled):
        if (number := _converted(float, wanted)) is not _NOTHING:
            return Constant(number)
        within = _within(value, wanted.path)
        raise wanted.refused(f"{wanted.where} is a schedule. Give a number, which makes it constant{within}")
    options = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    if _is_part(value):
        if NoneType in options and wanted.value is None:
            return None
        kind = _KINDS.get(options[0], "made of several parts")
        here = f", here {type(value).__name__}" if options[0] in _KINDS else ""
        raise wanted.refused(f"{wanted.where} is {kind}{here}, and not set as a whole{_within(value, wanted.path)}")
    if (fitting := _converted(type(value) if declared is Any else declared, wanted)) is not _NOTHING:
        return fitting
    expected = " or ".join(_in_words(option, value) for option in options)
    raise wanted.refused(f"{wanted.where} is {expected}, such as {as_typed(value)}; got {_shown(wanted.text)!r}")


def _is_part(value: object) -> bool:
    """Whether it is made of parts, rather than a number, a word or a list of such."""
    if isinstance(value, tuple):
        return any(_is_part(item) for item in value)
    return isinstance(value, Mapping) or not isinstance(value, bool | int | float | str | NoneType)


def _within(value: object, path: tuple[str, ...]) -> str:
    """What can be set instead."""
    plain = [f"{'.'.join(at)}={as_typed(item)}" for at, item in _inner(value, path) if not _is_part(item)]
    if not plain:
        return (
            ". It has no fields of its own: --set changes numbers and words. For another part choose another recipe "
            "(meanteacher list), or use Recipe.varied in Python"
        )
    return f". What can be set within it, as it is now: {listed(plain, most=_MOST_NAMED)}"


def _inner(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of each part of a value, before the parts within it, and of each plain value."""
    for name, (item, _) in _parts(value, Any).items():
        yield (*path, name), item
        if _is_part(item):
            yield from _inner(item, (*path, name))


_NOTHING = object()
"""The result for a value that does not fit; None is a value itself."""


def _converted(kind: Any, wanted: _Wanted) -> Any:
    """What was given as a value of that type, or `_NOTHING`."""
    for given in (wanted.value, wanted.text):
        # TypeError: no value of this type can be given as text.
        with suppress(ValidationError, TypeError):
            return convert(given, kind)
    return _NOTHING


def _in_words(kind: Any, value: object) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        items = [_in_words(item, value) for item in get_args(kind) if item is not Ellipsis]
        return f"a list, ({', '.join(items)}{', …' if Ellipsis in get_args(kind) else ''})"
    return _KINDS.get(kind) or _KINDS.get(type(value)) or type(value).__name__


def _changes(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The path and the new value of all that differs: the same for the same recipe, whatever was set in which order."""
    if old == new:
        return
    before, after = _parts(old, Any), _parts(new, Any)
    if _is_part(old) and type(old) is type(new) and before.keys() == after.keys():
        for name, (value, _) in before.items():
            yield from _changes(value, after[name][0], (*path, name))
    else:
        yield ".".join(path), as_typed(new.value if isinstance(new, Constant) else new)


def as_typed(value: object) -> str:
    """A plain value as --set takes it."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        items = [repr(item) if isinstance(item, str) else as_typed(item) for item in value]
        return f"({','.join(items)}{',' if len(items) == 1 else ''})"
    quoted = isinstance(value, str) and _parsed(value) != value
    return repr(value) if quoted else str(value).lower() if isinstance(value, bool | NoneType) else str(value)


def _short(changes: list[str]) -> str:
    """The changes as the end of a folder's name, cut off and with a hash if they are too long for it."""
    whole = ",".join(changes)
    safe = re.sub(r"[^A-Za-z0-9._=,()-]", "-", whole)
    if safe == whole and len(whole) <= _LONGEST:
        return whole
    return f"{safe[: _LONGEST - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
