"""Frozen values as plain JSON: for the fingerprint of an experiment, its record, and the differences between two."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from meanteacher.core import LOCATION
from meanteacher.records import Claim, RecordedRecipe

_NOT_COMPUTED = {"claim", "deviations", "seeds"}
"""Statements about a run, which do not change it."""


def describe(value: object) -> Any:
    """The value in JSON's types, each frozen object as its class and its fields.

    A field marked `LOCATION` is left out.

    >>> from meanteacher.schedules import Constant
    >>> describe(Constant(0.5))
    {'is': 'meanteacher.Constant', 'value': 0.5}
    """
    if is_dataclass(value) and not isinstance(value, type):
        held = [field.name for field in fields(value) if field.metadata != LOCATION]
        return {"is": _qualified(type(value)), **{name: describe(getattr(value, name)) for name in held}}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value) and hasattr(value, "__qualname__"):
        return _qualified(value)
    raise TypeError(
        f"{value!r} cannot be part of a recipe: its {type(value).__name__} has no stable description. "
        "Make it a frozen dataclass."
    )


def fingerprint(experiment: object) -> str:
    """Sixteen hex digits of everything that a run computes with, from a recipe or its description."""
    return hashlib.sha256(json.dumps(computed(describe(experiment)), sort_keys=True).encode()).hexdigest()[:16]


def recorded(
    experiment: Mapping[str, Any], claim: Claim | None = None, deviations: tuple[str, ...] = ()
) -> RecordedRecipe:
    """An experiment as its record has it, from its description and what the paper says about it."""
    held = {key: item for key, item in experiment.items() if key not in ("claim", "deviations")}
    return RecordedRecipe(
        name=held["name"], fingerprint=fingerprint(experiment), fields=held, claim=claim, deviations=deviations
    )


def computed(described: Mapping[str, Any]) -> dict[str, Any]:
    """The description of an experiment without the statements about the run."""
    return {key: item for key, item in described.items() if key not in _NOT_COMPUTED}


def differences(old: object, new: object, path: str = "") -> list[str]:
    """Where two descriptions differ, one readable line each.

    >>> differences({"steps": 10, "model": {"width": 1}}, {"steps": 10, "model": {"width": 2}})
    ['model.width: 1 -> 2']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        below = f"{path}." if path else ""
        return [line for key in sorted({*old, *new}) for line in differences(old.get(key), new.get(key), below + key)]
    return [] if old == new else [f"{path}: {json.dumps(old)} -> {json.dumps(new)}"]


def _qualified(named: Any) -> str:
    """The name of a class or function; without the module of one of ours, so that it can move."""
    ours, _, _ = __name__.partition(".")
    module = ours if named.__module__.startswith(f"{ours}.") else named.__module__
    return f"{module}.{named.__qualname__}"
