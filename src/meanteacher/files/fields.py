"""JSON files, read with limits and checked field by field: one shape per kind of file."""

import json
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from meanteacher.core import InputError
from meanteacher.files import read_regular

T = TypeVar("T")

Shape = Callable[["Field"], object] | Mapping[str, "Shape"] | list["Shape"]
"""What a value must be: a method of `Field` that reads it, a list of one shape, or names and their shapes. A name that
ends in `?` may be missing or null; `*` stands for every other name."""

_MAX_BYTES = 1 << 25
"""JSON takes twenty times its size in memory."""
_NEW_RECORD = "Correct the field, or run the recipe again to write a new record."


class RecordError(InputError):
    """A record or another JSON file cannot be read, or records do not fit together. Says which, and what to do."""


def read_json(path: Path, advice: str = _NEW_RECORD, *, most: int = _MAX_BYTES) -> "Field":
    """The content of a JSON file.

    Args:
        path: of the file
        advice: a sentence that ends every error about it
        most: bytes that it may have

    Raises:
        RecordError: it cannot be read, or is not JSON in UTF-8.
    """
    try:
        content = json.loads(read_regular(path, most))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error}). {advice}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: is not valid JSON in UTF-8 ({error}). {advice}") from error
    return Field(str(path), "", content, advice)


@dataclass(frozen=True, slots=True)
class Field:
    """A value read from JSON. Asking for a type it does not have is a `RecordError`."""

    file: str
    name: str
    value: object
    advice: str = _NEW_RECORD

    def wrong(self, expected: str) -> NoReturn:
        raise RecordError(
            f"{self.file}: {self.name or 'the record'} is {reprlib.repr(self.value)}, expected {expected}. "
            f"{self.advice}"
        )

    def check(self, shape: Shape) -> Any:
        """The value, once it is found to have this shape."""
        if callable(shape):
            shape(self)
        elif isinstance(shape, list):
            for element in self.elements():
                element.check(shape[0])
        else:
            fields = self.mapping()
            for key, inner in shape.items():
                name = key.removesuffix("?")
                if key == "*":
                    for other in fields.keys() - {known.removesuffix("?") for known in shape}:
                        self[other].check(inner)
                elif name == key or fields.get(name) is not None:
                    self[name].check(inner)
        return self.value

    def mapping(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            self.wrong("an object with named fields")
        return self.value

    def __getitem__(self, key: str) -> "Field":
        mapping = self.mapping()
        name = f"{self.name}.{key}" if self.name else key
        if key not in mapping:
            raise RecordError(f"{self.file}: the field {name} is missing. {self.advice}")
        return replace(self, name=name, value=mapping[key])

    def fields(self) -> "dict[str, Field]":
        return {key: self[key] for key in self.mapping()}

    def sequence(self) -> list[object]:
        if not isinstance(self.value, list):
            self.wrong("a list")
        return self.value

    def elements(self) -> "list[Field]":
        return [replace(self, name=f"{self.name}[{i}]", value=value) for i, value in enumerate(self.sequence())]

    def anything(self) -> object:
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            self.wrong("a text that is not empty")
        return self._encodable(self.value)

    def any_text(self) -> str:
        if not isinstance(self.value, str):
            self.wrong("a text")
        return self._encodable(self.value)

    def _encodable(self, text: str) -> str:
        # JSON can write half of a pair of surrogates, which no file and no terminal takes.
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.wrong("a text of valid characters")
        return text

    def path(self) -> str:
        """A text that may contain bytes that are not UTF-8, as the names of files do."""
        if not isinstance(self.value, str) or not self.value or "\0" in self.value:
            self.wrong("a path")
        try:
            self.value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            self.wrong("a path")
        return self.value

    def choice(self, *allowed: str) -> str:
        text = self.text()
        if text not in allowed:
            self.wrong(" or ".join(map(repr, allowed)))
        return text

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            self.wrong("true or false")
        return self.value

    def count(self, least: int = 0, most: int = sys.maxsize) -> int:
        # True is an int to Python, and would read as one run, one step or one label.
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value <= most:
            bounds = f"zero or more, at most {most:,}" if most < sys.maxsize else "zero or more"
            self.wrong(f"a whole number, {bounds if not least else f'{least:,} to {most:,}'}")
        return self.value

    def number(self) -> float:
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            self.wrong("a number")
        # False for NaN too, and safe for an integer too large for a float.
        if not abs(self.value) <= sys.float_info.max:
            self.wrong("a finite number")
        return float(self.value)

    def positive(self) -> float:
        number = self.number()
        if number < 0:
            self.wrong("a number, zero or more")
        return number

    def fraction(self) -> float:
        number = self.number()
        if not 0 <= number <= 1:
            self.wrong("a fraction between 0 and 1 (not a percentage)")
        return number

    def optional(self, read: "Callable[[Field], T]") -> T | None:
        """Null stays None; anything else must be what `read` reads, e.g. `field.optional(Field.count)`."""
        return None if self.value is None else read(self)


def whole(least: int, most: int) -> Callable[[Field], int]:
    """The shape of a whole number within bounds."""
    return lambda field: field.count(least, most)
