"""model.json, the description of a trained model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from meanteacher.files.typed import FileName, Text

SCHEMA = 1

_Number = Annotated[int, Meta(ge=-1000, le=1000)] | Annotated[float, Meta(ge=-1000, le=1000)] | bool
"""A field of a network. No network of this package has a thousand layers, or is a thousand times as wide."""
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:/-]{1,100}\Z")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A network or a normaliser: its kind, which is looked up in a table, and its fields."""

    kind: Text
    fields: Mapping[str, _Number | _Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSummary:
    """The images that a model has learnt from; their digests are in seen.bin."""

    n_labelled: Annotated[int, Meta(ge=0, le=1 << 27)]
    n_unlabelled: Annotated[int, Meta(ge=0, le=1 << 27)]
    complete: bool
    sha256: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """model.json: the description of a trained model."""

    format: Literal["meanteacher-model"] = "meanteacher-model"
    schema: Literal[1] = 1
    network: Described
    normalise: Described
    class_names: Annotated[tuple[FileName, ...], Meta(min_length=2)]
    size: Annotated[int, Meta(ge=8, le=1024)]
    """Width and height in pixels of the images that the network takes."""
    temperature: Annotated[float, Meta(ge=1e-6, le=1e6)]
    sha256: Text
    """The digest of weights.safetensors."""
    about: dict[str, Any]
    """Free JSON: versions, error estimate, date, commit."""
    seen: SeenSummary | None
    """None if it is unknown what the model has learnt from."""

    def __post_init__(self) -> None:
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError("Expected class names that differ")
