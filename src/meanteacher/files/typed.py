"""JSON files read with limits and checked against a type: one library does the checking, msgspec."""

import json
import reprlib
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from meanteacher.core import InputError
from meanteacher.files import read_regular

T = TypeVar("T")

Text = Annotated[str, Meta(min_length=1, pattern=r"\A[^\ud800-\udfff]*\Z")]
"""A text that is not empty. JSON can write half of a surrogate pair, which no terminal shows."""
AnyText = Annotated[str, Meta(pattern=r"\A[^\ud800-\udfff]*\Z")]
FileName = Annotated[str, Meta(pattern=r"\A[^\0\ud800-\udc7f\udd00-\udfff]+\Z")]
"""The name or path of a file or folder. It may contain bytes that are not UTF-8: Python reads them as surrogates."""
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_LARGEST = 1e100
"""No measurement is larger, and sums and squares of such numbers are finite."""
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Positive = Annotated[float, Meta(ge=0, le=_LARGEST)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
"""A share between 0 and 1, not a percentage."""
Plain = str | int | float | bool | None

_MAX_BYTES = 1 << 25
"""JSON takes twenty times its size in memory."""
NEW_RECORD = "Correct the field, or run the recipe again to write a new record."


class RecordError(InputError):
    """A record or another JSON file cannot be read, or records do not fit together. Names the file and the place."""


def read_json(
    path: Path, kind: type[T], advice: str = NEW_RECORD, *, schema: int | None = None, most: int = _MAX_BYTES
) -> T:
    """The content of a JSON file as a value of type `kind`: a dataclass, or another type that msgspec can check.

    A RecordError, which ends with `advice`, is raised if the file cannot be read, has more than `most` bytes, is not
    JSON in UTF-8, has another type, or another value in the field `schema`.
    """
    try:
        content = json.loads(read_regular(path, most))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error}). {advice}".rstrip()) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: is not valid JSON in UTF-8 ({error}). {advice}".rstrip()) from error
    if schema is not None and isinstance(content, dict) and content.get("schema") != schema:
        raise RecordError(
            f"{path}: the schema is {reprlib.repr(content.get('schema'))}, this version reads {schema}. "
            "Use the version of meanteacher that wrote it, or write it again."
        )
    try:
        return checked(content, kind)
    except ValueError as error:
        raise RecordError(f"{path}: {error}. {advice}".rstrip()) from error


def checked(content: object, kind: type[T]) -> T:
    """Plain values as a value of type `kind`, or a ValueError that names the place.

    >>> checked({"n": 3}, dict[str, Count])
    {'n': 3}
    """
    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error
