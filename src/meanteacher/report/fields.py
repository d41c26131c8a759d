"""Values read from JSON, each with the type that is asked for or an error that names the field."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from meanteacher.core import InputError

T = TypeVar("T")


class RecordError(InputError):
    """A record cannot be read, or records do not fit together. The message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value read from JSON. Asking for a type it does not have is a `RecordError`."""

    file: str
    name: str
    value: object

    def wrong(self, expected: str) -> NoReturn:
        given = repr(self.value)
        given = given if len(given) <= 60 else given[:57] + "..."
        raise RecordError(
            f"{self.file}: {self.name or 'the record'} is {given}, expected {expected}. "
            "Correct the field, or run the recipe again to write a new record."
        )

    def mapping(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            self.wrong("an object with named fields")
        return self.value

    def __getitem__(self, key: str) -> "Field":
        mapping = self.mapping()
        name = f"{self.name}.{key}" if self.name else key
        if key not in mapping:
            raise RecordError(f"{self.file}: the field {name} is missing. Run the recipe again to write a new record.")
        return Field(self.file, name, mapping[key])

    def fields(self) -> "dict[str, Field]":
        return {key: self[key] for key in self.mapping()}

    def elements(self) -> "list[Field]":
        if not isinstance(self.value, list):
            self.wrong("a list")
        return [Field(self.file, f"{self.name}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            self.wrong("a text that is not empty")
        return self.value

    def choice(self, *allowed: str) -> str:
        text = self.text()
        if text not in allowed:
            self.wrong(" or ".join(map(repr, allowed)))
        return text

    def count(self) -> int:
        # True is an int to Python, and would read as one run, one step or one label.
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            self.wrong("a whole number, zero or more")
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
