"""What a mutant is, and how one is made: something at a seam of the real code is replaced."""

import dataclasses
import functools
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
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


def refused(call: Callable[[], object], what: str, error: type[Exception] = InputError) -> None:
    """The caller is told by an error that the input is wrong."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{what} is not refused")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
