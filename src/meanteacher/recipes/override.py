"""`--set field=value`: one field of a recipe, however deep, replaced and checked."""

import ast
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from meanteacher.core import InputError
from meanteacher.recipes.recipe import Recipe
from meanteacher.schedules import Constant


def override(recipe: Recipe, setting: str) -> Recipe:
    """The recipe with one field changed, for instance "steps=300" or "method.weight.value=50".

    A schedule given as a number becomes constant.

    Raises:
        InputError: there is no such field, or the value does not fit it.
    """
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise InputError(f"--set takes field=value, for instance steps=300; got {setting!r}.")
    try:
        changed = _replaced(recipe, path.split("."), _parsed(text), setting)
    except (TypeError, AttributeError) as error:
        raise InputError(f"--set {setting}: {error}.") from error
    assert isinstance(changed, Recipe)
    return changed


def _replaced(value: Any, path: list[str], new: object, setting: str) -> Any:
    if not path:
        return _fitting(value, new, setting)
    name, *rest = path
    if isinstance(value, Mapping):
        _check_name(name, list(value), setting)
        return {**value, name: _replaced(value[name], rest, new, setting)}
    if isinstance(value, tuple):
        positions = [str(i) for i in range(len(value))]
        _check_name(name, positions, setting)
        items = list(value)
        items[int(name)] = _replaced(items[int(name)], rest, new, setting)
        return tuple(items)
    if not is_dataclass(value) or isinstance(value, type):
        raise InputError(f"--set {setting}: {value!r} has no field {name!r}; it is a plain value.")
    _check_name(name, [field.name for field in fields(value)], setting)
    return replace(value, **{name: _replaced(getattr(value, name), rest, new, setting)})


def _fitting(old: object, new: object, setting: str) -> object:
    number = float(new) if isinstance(new, int | float) and not isinstance(new, bool) else None
    if is_dataclass(old) and callable(old) and number is not None:
        return Constant(number)
    if is_dataclass(old):
        names = ", ".join(field.name for field in fields(old))
        raise InputError(f"--set {setting}: {type(old).__name__} is set field by field: {names}.")
    if isinstance(old, bool) or isinstance(new, bool):
        fits = isinstance(old, bool) and isinstance(new, bool)
    elif isinstance(old, float):
        fits, new = number is not None, new if number is None else number
    elif old is None or new is None:
        fits = new is None or number is not None
    else:
        fits = isinstance(new, type(old))
    if not fits:
        raise InputError(f"--set {setting}: expected {type(old).__name__} such as {old!r}, got {type(new).__name__}.")
    return new


def _check_name(name: str, known: list[str], setting: str) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"--set {setting}: no field {name!r}.{hint} There are: {', '.join(known)}.")


def _parsed(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)
