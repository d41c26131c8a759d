"""model.json, the description of a model: written, read, and checked before anything in it is used.

The file may have been written by anyone. A kind is looked up in a plain dict, and its fields are numbers within bounds.
Only a network of timm or torchvision has a name, which that library looks up among its own. The network is first built
without memory, on torch's meta device, to know the shapes that the weights must have: nothing of their size is
allocated before the file has shown that it holds them.
"""

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.files.fields import RecordError, read_json
from meanteacher.models import ExternalSpec, FastNetSpec, LiteSpec, ModelSpec, WideResNetSpec
from meanteacher.views import Normaliser, PerChannel, PerImage, Zca

if TYPE_CHECKING:
    from meanteacher.photos.model.bundle import Classifier

FORMAT = "meanteacher-model"
SCHEMA = 1
AGAIN = "Get the model again, or fit it again."

NETWORKS: dict[str, type[Any]] = {
    "FastNet": FastNetSpec,
    "WideResNet": WideResNetSpec,
    "EfficientNetLite": LiteSpec,
    "External": ExternalSpec,
}
NORMALISERS: dict[str, type[Any]] = {"PerChannel": PerChannel, "PerImage": PerImage, "Zca": Zca}

_N_CHANNELS = 3
_SIZES = (8, 1024)
_MAX_FIELD = 1000
"""No network of this package has a thousand layers, or is a thousand times as wide."""
_TEXTS = {"library": r"timm|torchvision", "name": r"[A-Za-z0-9_.:/-]{1,100}"}
"""The fields that are not numbers."""
_MAX_WEIGHTS = 1 << 31
_MAX_IMAGES = 1 << 27
_MAX_TEXT = 1 << 24
"""Bytes; model.json is a page or two, but a description may be longer and the classes many."""

Shape = tuple[tuple[int, ...], torch.dtype]
Shapes = dict[str, Shape]


@dataclass(frozen=True, slots=True)
class SeenManifest:
    """The images that the model has learnt from; their digests are in seen.bin."""

    n_labelled: int
    n_unlabelled: int
    complete: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of model.json, every part within bounds."""

    path: Path
    spec: ModelSpec
    normaliser: Normaliser
    class_names: tuple[str, ...]
    size: int
    temperature: float
    sha256: str
    about: dict[str, Any]
    seen: SeenManifest | None
    """None in a model of an earlier version."""

    def n_bytes(self) -> int:
        """The size of all tensors together."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._shapes().values())

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Check that tensors have the names, shapes and types of this model, and finite values.

        Raises:
            InputError: says which do not.
        """
        expected = self._shapes()
        missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
        if missing:
            raise self._error(f"{_few(missing)} of {self.spec} is missing")
        if unknown:
            raise self._error(f"{self.spec} has no {_few(unknown)}")
        got: Shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        wrong = [name for name in expected if got[name] != expected[name]]
        n_classes = len(self.class_names)
        if wrong and all(_differs_in_classes(got[name], expected[name], n_classes) for name in wrong):
            raise self._error(f"{n_classes} classes are named, but the last layer has {got[wrong[0]][0][0]}")
        if wrong:
            raise self._error(f"{wrong[0]} is {got[wrong[0]]} where {expected[wrong[0]]} is expected")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise self._error("the weights hold values that are not finite")

    def build(self, tensors: Mapping[str, Tensor]) -> tuple[nn.Module, nn.Module]:
        """The network and its normalisation with these tensors, which `check` has passed."""
        network, normalise = self._network("cpu"), self._normalise()
        network.load_state_dict(_part(tensors, "network"))
        for name, tensor in _part(tensors, "normalise").items():
            setattr(normalise, name, tensor)
        return network.eval(), normalise.eval()

    def _shapes(self) -> Shapes:
        tensors = {f"network.{name}": tensor for name, tensor in self._network("meta").state_dict().items()}
        shapes: Shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        n_values = _N_CHANNELS * self.size**2
        by_kind: dict[type, dict[str, tuple[int, ...]]] = {
            PerImage: {},
            PerChannel: dict.fromkeys(("mean", "deviation"), (1, _N_CHANNELS, 1, 1)),
            Zca: {"mean": (n_values,), "whiten": (n_values, n_values)},
        }
        return shapes | {
            f"normalise.{name}": (shape, torch.float32) for name, shape in by_kind[type(self.normaliser)].items()
        }

    def _network(self, device: str) -> nn.Module:
        problem = Problem(len(self.class_names), n_examples=1, input_shape=(_N_CHANNELS, self.size, self.size))
        try:
            # Building draws initial weights, which are replaced; the caller's random numbers are not touched.
            with torch.random.fork_rng(devices=[]), torch.device(device):
                return self.spec.build(problem)
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            if isinstance(error, InputError) and isinstance(self.spec, ExternalSpec):
                raise InputError(f"{self.path} has a network of another library. {error}") from error
            reason = str(error).partition("\n")[0]
            raise self._error(f"its network {self.spec} cannot be built ({reason})") from error

    def _normalise(self) -> nn.Module:
        """A module of the right kind, fitted to one pixel; its tensors are set afterwards."""
        return self.normaliser.fit(torch.zeros(1, _N_CHANNELS, 1, 1))

    def _error(self, what: str) -> InputError:
        return InputError(f"{self.path} and its weights do not fit: {what}. {AGAIN}")


def manifest_of(model: "Classifier", weights: bytes) -> bytes:
    """The content of model.json for a model whose weights are saved as these bytes."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "schema": SCHEMA,
        "network": {"kind": _kind(model.spec, NETWORKS), "fields": _fields(model.spec)},
        "normalise": {"kind": _kind(model.normaliser, NORMALISERS), **_fields(model.normaliser)},
        "class_names": list(model.class_names),
        "size": model.size,
        "temperature": model.temperature,
        "sha256": sha256(weights).hexdigest(),
        "about": model.about,
    }
    if seen := model.seen:
        content["seen"] = {
            "n_labelled": seen.n_labelled,
            "n_unlabelled": seen.n_unlabelled,
            "complete": seen.complete,
            "sha256": sha256(seen.digests).hexdigest(),
        }
    return json.dumps(content, indent=1, allow_nan=False).encode()


def _kind(value: object, kinds: Mapping[str, type[Any]]) -> str:
    for name, kind in kinds.items():
        if type(value) is kind:
            return name
    raise InputError(f"{value!r} cannot be saved with a model, which holds one of {', '.join(kinds)}.")


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def read_manifest(path: Path) -> Manifest:
    """The checked content of a model.json.

    Raises:
        InputError: it is damaged, of another format, or describes a model that cannot be.
    """
    try:
        content: dict[str, Any] = read_json(path, "", most=_MAX_TEXT).mapping()
    except RecordError as error:
        raise InputError(f"{path} is damaged ({str(error).strip()}). {AGAIN}") from error
    if content.get("format") != FORMAT:
        raise InputError(f"{path} does not describe a model of meanteacher. Give the folder `model` of a fit.")
    if content.get("schema") != SCHEMA:
        raise InputError(
            f"{path} has schema {reprlib.repr(content.get('schema'))}, this version reads {SCHEMA}. "
            "Use the version of meanteacher that wrote it."
        )
    try:
        manifest = Manifest(
            path=path,
            spec=_value(NETWORKS, content["network"]["kind"], content["network"]["fields"]),
            normaliser=_value(NORMALISERS, content["normalise"].pop("kind"), content["normalise"]),
            class_names=_class_names(content["class_names"]),
            size=_number("size", content["size"], *_SIZES, whole=True),
            temperature=_number("temperature", content["temperature"], 1e-6, 1e6),
            sha256=str(content["sha256"]),
            about=dict(content["about"]),
            seen=_seen(content["seen"]) if "seen" in content else None,
        )
        if (n_bytes := manifest.n_bytes()) > _MAX_WEIGHTS:
            raise ValueError(f"its weights would take {n_bytes:,} bytes, and {_MAX_WEIGHTS:,} are the most")
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{path} is damaged: {error} is missing. {AGAIN}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} does not describe a model that can be used: {error}. {AGAIN}") from error
    return manifest


def _value(kinds: Mapping[str, type[Any]], kind: str, fields: Mapping[str, Any]) -> Any:
    if kind not in kinds:
        raise ValueError(f"its kind {reprlib.repr(kind)} is none of {', '.join(kinds)}")
    return kinds[kind](**{name: _field(name, value) for name, value in fields.items()})


def _field(name: str, value: Any) -> Any:
    if name not in _TEXTS:
        return _number(name, value, -_MAX_FIELD, _MAX_FIELD)
    if not isinstance(value, str) or not re.fullmatch(_TEXTS[name], value):
        raise ValueError(f"{name} is a text like {_TEXTS[name]}, not {str(value)[:40]!r}")
    return value


def _number(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> Any:
    # A comparison with NaN is false, so this refuses NaN too.
    if type(value) not in ((int,) if whole else (int, float, bool)) or not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise ValueError(f"{name} is a {kind} from {low:g} to {high:g}, not {str(value)[:40]!r}")
    return value


def _seen(content: Any) -> SeenManifest:
    counts = {name: _number(name, content[name], 0, _MAX_IMAGES, whole=True) for name in ("n_labelled", "n_unlabelled")}
    return SeenManifest(**counts, complete=bool(content["complete"]), sha256=str(content["sha256"]))


def _class_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) and name for name in names):
        raise ValueError("class_names is a list of at least two names")
    if len(set(names)) < len(names):
        raise ValueError("two of its classes have the same name")
    return tuple(names)


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors under one of the two prefixes, without it."""
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def _differs_in_classes(got: Shape, expected: Shape, n_classes: int) -> bool:
    return expected[0][:1] == (n_classes,) and bool(got[0]) and got[0][1:] == expected[0][1:] and got[1] == expected[1]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
