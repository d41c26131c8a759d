"""What a mutant is, how one is made from a line of the real code, and who looks for it."""

import dataclasses
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from meanteacher.core import InputError

Patch = pytest.MonkeyPatch
Checks = dict[str, Callable[[], None]]
"""By name: functions that raise where something is wrong."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One silent mistake."""

    name: str
    apply: Callable[[Patch], None]
    area: str
    """The detectors that are asked, a key of `detectors.AREAS`: those of a fit cannot notice a wrong cost in time."""


class Catalogue(list[Mutant]):
    """Mutants in the order in which they are declared."""

    def of(self, area: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
        """A decorator: the function's name is the mutant's."""

        def add(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
            self.append(Mutant(apply.__name__.replace("_", " "), apply, area))
            return apply

        return add


def rewrite(patch: Patch, function: Callable[..., Any], *changes: str) -> None:
    """Replace pieces of a function's source, wherever the function is known.

    Args:
        patch: takes it back
        function: of a module, or of a class; a property's is its `fget`
        changes: a piece that stands in its source once, what stands there instead, and so on in turn

    Raises:
        LookupError: the source is not what the mutant was written for. Adapt the mutant.
    """
    plain = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(plain))
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if source.count(old) != 1:
            raise LookupError(f"{plain.__qualname__} holds {old!r} {source.count(old)} times instead of once.")
        source = source.replace(old, new)
    module = sys.modules[plain.__module__]
    made: dict[str, Any] = {}
    exec(compile(source, str(module.__file__), "exec"), vars(module), made)
    owner, _, name = plain.__qualname__.rpartition(".")
    if owner:
        patch.setattr(getattr(module, owner), name, made[name])
    else:
        replace(patch, function, made[name])


def replace(patch: Patch, function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Put another function in the place of one, in every module that has it by its name, detectors too.

    A method is replaced in its class.
    """
    plain = inspect.unwrap(function)
    owner, _, name = plain.__qualname__.rpartition(".")
    if owner:
        patch.setattr(getattr(sys.modules[plain.__module__], owner), name, other)
        return
    known = [module for module in sys.modules.values() if getattr(module, "__dict__", {}).get(name) is function]
    if not known:
        raise LookupError(f"No module has {name}.")
    for module in known:
        patch.setattr(module, name, other)


def wrap(patch: Patch, function: Callable[..., Any], around: Callable[..., Any]) -> None:
    """Call `around(function, ...)` wherever `function(...)` is called; `function` may be a method."""

    @functools.wraps(inspect.unwrap(function))
    def other(*given: Any, **options: Any) -> Any:
        return around(function, *given, **options)

    replace(patch, function, other)


def during(patch: Patch, function: Callable[..., Any], change: Callable[..., None]) -> None:
    """Change something only while a function runs: `change(patch, ...)` gets what the function is called with."""

    def around(real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            change(inner, *given, **options)
            return real(*given, **options)

    wrap(patch, function, around)


def named(checks: Iterable[Callable[[], None]]) -> Checks:
    """Each check by its name in words."""
    return {check.__name__.replace("_", " "): check for check in checks}


def refused(call: Callable[[], object], what: str) -> None:
    """Whoever calls it is told by an `InputError` that the input is wrong."""
    try:
        call()
    except InputError:
        return
    raise AssertionError(f"{what} is not refused")
