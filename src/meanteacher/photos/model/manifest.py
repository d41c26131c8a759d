"""model.json, the description of a model: written, read, and checked before anything in it is used.

The file may have been written by anyone. A kind is looked up in a plain dict, and its fields are numbers within bounds.
Only a network of timm or torchvision has a name, which that library looks up among its own. The network is first built
without memory, on torch's meta device, to know the shapes that the weights must have: nothing of their size is
allocated before the file has shown that it holds them.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.files.typed import read_json
from meanteacher.formats import listed
from meanteacher.models import (
    ExternalSpec,
    FastNetSpec,
    LitePairSpec,
    LiteSpec,
    ModelSpec,
    PooledSpec,
    WideResNetSpec,
)
from meanteacher.records import SCHEMA, Described, KnownSummary, ModelFile, SeenSummary
from meanteacher.views import Normaliser, PerChannel, PerImage, Zca

if TYPE_CHECKING:
    from meanteacher.photos.model.bundle import Classifier

AGAIN = "Get the model again, or fit it again."

NETWORKS: dict[str, type[Any]] = {
    "FastNet": FastNetSpec,
    "WideResNet": WideResNetSpec,
    "EfficientNetLite": LiteSpec,
    "EfficientNetLitePair": LitePairSpec,
    "Pooled": PooledSpec,
    "External": ExternalSpec,
}
NORMALISERS: dict[str, type[Any]] = {"PerChannel": PerChannel, "PerImage": PerImage, "Zca": Zca}

KNOWN = "known.features"
"""The tensor of the labelled photos that others are compared with."""
_N_CHANNELS = 3
_TEXTS, _LIBRARIES = ("library", "name"), ("timm", "torchvision")
"""The fields of a network that are not numbers, and the values of the first."""
_MAX_WEIGHTS = 1 << 31
_MAX_TEXT = 1 << 24
"""Bytes; model.json is a page or two, but a description may be longer and the classes many."""

Shape = tuple[tuple[int, ...], torch.dtype]
Shapes = dict[str, Shape]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of model.json, every part within bounds."""

    path: Path
    content: ModelFile
    spec: ModelSpec
    normaliser: Normaliser

    def n_bytes(self) -> int:
        """The size of all tensors together."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._shapes().values())

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors with other names, shapes or types than those of this model, or values that are not finite."""
        expected = self._shapes()
        if missing := sorted(expected.keys() - tensors.keys()):
            raise self._error(f"{listed(missing, most=3)} of {self.spec} is missing")
        if unknown := sorted(tensors.keys() - expected.keys()):
            raise self._error(f"{self.spec} has no {listed(unknown, most=3)}")
        got: Shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        wrong = [name for name in expected if got[name] != expected[name]]
        n_classes = len(self.content.class_names)
        if wrong and all(_differs_in_classes(got[name], expected[name], n_classes) for name in wrong):
            raise self._error(f"{n_classes} classes are named, but the last layer has {got[wrong[0]][0][0]}")
        if wrong:
            raise self._error(f"{wrong[0]} is {got[wrong[0]]} where {expected[wrong[0]]} is expected")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise self._error("the weights hold values that are not finite")

    def build(self, tensors: Mapping[str, Tensor]) -> tuple[nn.Module, nn.Module]:
        """The network and its normalisation with these tensors, which `check` has passed."""
        network = self._network("cpu")
        # A module of the right kind, fitted to one pixel, until its tensors are set.
        normalise = self.normaliser.fit(torch.zeros(1, _N_CHANNELS, 1, 1))
        network.load_state_dict(_part(tensors, "network"))
        for name, tensor in _part(tensors, "normalise").items():
            setattr(normalise, name, tensor)
        return network.eval(), normalise.eval()

    def _shapes(self) -> Shapes:
        network = self._network("meta").state_dict()
        shapes = {f"network.{name}": (tuple(tensor.shape), tensor.dtype) for name, tensor in network.items()}
        n_values = _N_CHANNELS * self.content.size**2
        by_kind: dict[type, dict[str, tuple[int, ...]]] = {
            PerImage: {},
            PerChannel: dict.fromkeys(("mean", "deviation"), (1, _N_CHANNELS, 1, 1)),
            Zca: {"mean": (n_values,), "whiten": (n_values, n_values)},
        }
        if self.content.known is not None:
            shapes[KNOWN] = ((self.content.known.n, self._n_features()), torch.float32)
        return shapes | {
            f"normalise.{name}": (shape, torch.float32) for name, shape in by_kind[type(self.normaliser)].items()
        }

    def _n_features(self) -> int:
        """The number of pooled features, which the last layer of a pretrained network takes."""
        network = self._network("meta")
        if not (isinstance(network, nn.Sequential) and isinstance(network[-1], nn.Linear)):
            raise self._error(f"{self.spec} has no pooled features to compare photos by")
        return network[-1].in_features

    def _network(self, device: str) -> nn.Module:
        problem = Problem(
            len(self.content.class_names), n_examples=1, input_shape=(_N_CHANNELS, self.content.size, self.content.size)
        )
        try:
            # Building draws initial weights, which are replaced; the caller's random numbers are not touched.
            with torch.random.fork_rng(devices=[]), torch.device(device):
                return self.spec.build(problem)
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            if isinstance(error, InputError) and isinstance(self.spec, ExternalSpec):
                raise InputError(f"{self.path} has a network of another library. {error}") from error
            reason = str(error).partition("\n")[0]
            raise self._error(f"its network {self.spec} cannot be built ({reason})") from error

    def _error(self, what: str) -> InputError:
        return InputError(f"{self.path} and its weights do not fit: {what}. {AGAIN}")


def manifest_of(model: "Classifier", weights: bytes) -> bytes:
    """The content of model.json for a model whose weights are saved as these bytes."""
    seen = model.seen
    content = ModelFile(
        network=_described(model.spec, NETWORKS),
        normalise=_described(model.normaliser, NORMALISERS),
        class_names=model.class_names,
        size=model.size,
        temperature=model.temperature,
        sha256=sha256(weights).hexdigest(),
        about=model.about,
        seen=None
        if seen is None
        else SeenSummary(
            n_labelled=seen.n_labelled,
            n_unlabelled=seen.n_unlabelled,
            sha256=sha256(seen.digests).hexdigest(),
        ),
        known=None
        if model.known is None
        else KnownSummary(n=len(model.known.features), strange_above=model.known.strange_above),
    )
    return json.dumps(asdict(content), indent=1, allow_nan=False).encode()


def _described(value: Any, kinds: Mapping[str, type[Any]]) -> Described:
    for name, kind in kinds.items():
        if type(value) is kind:
            return Described(kind=name, fields={field.name: getattr(value, field.name) for field in fields(value)})
    raise InputError(f"{value!r} cannot be saved with a model, which holds one of {', '.join(kinds)}.")


def read_manifest(path: Path) -> Manifest:
    """The checked content of a model.json."""
    content = read_json(path, ModelFile, AGAIN, schema=SCHEMA, most=_MAX_TEXT)
    try:
        manifest = Manifest(
            path=path,
            content=content,
            spec=_value(NETWORKS, content.network),
            normaliser=_value(NORMALISERS, content.normalise),
        )
        if (n_bytes := manifest.n_bytes()) > _MAX_WEIGHTS:
            raise ValueError(f"its weights would take {n_bytes:,} bytes, and {_MAX_WEIGHTS:,} are the most")
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} does not describe a model that can be used: {error}. {AGAIN}") from error
    return manifest


def _value(kinds: Mapping[str, type[Any]], described: Described) -> Any:
    if described.kind not in kinds:
        raise ValueError(f"its kind {reprlib.repr(described.kind)} is none of {', '.join(kinds)}")
    for name, value in described.fields.items():
        if isinstance(value, str) != (name in _TEXTS) or (name == "library" and value not in _LIBRARIES):
            raise ValueError(f"its {name} is {value!r}")
    return kinds[described.kind](**described.fields)


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors under one of the two prefixes, without it."""
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def _differs_in_classes(got: Shape, expected: Shape, n_classes: int) -> bool:
    return expected[0][:1] == (n_classes,) and bool(got[0]) and got[0][1:] == expected[0][1:] and got[1] == expected[1]
