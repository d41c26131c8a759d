"""The shipped model: a folder with weights.safetensors, model.json and seen.bin, and nothing in it that could run.

A model comes from elsewhere: by mail, from a download. So it is read as data. The kinds of network are a plain
dict, the weights hold tensors alone, and all shapes are compared before anything of their size is built.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from meanteacher.classifier.manifest import AGAIN, FORMAT, NETWORKS, NORMALISERS, SCHEMA, Manifest, read_manifest
from meanteacher.core import InputError
from meanteacher.models import ModelSpec
from meanteacher.passes import class_output, to_channels_last
from meanteacher.photos.duplicates import DIGEST_BYTES, digest
from meanteacher.views import Normaliser

WEIGHTS = "weights.safetensors"
MANIFEST = "model.json"
SEEN = "seen.bin"
"""Digests of the images that the model has learnt from: of those with labels, then of those without."""

_PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
"""A pickle's first byte; safetensors may begin with it too, but has a { in the ninth place."""
_MAX_HEADER = 1 << 24


@dataclass(frozen=True, slots=True)
class Seen:
    """Digests in order, one after the other: all that a model has learnt from."""

    labelled: bytes = b""
    """Of images whose labels taught it."""
    unlabelled: bytes = b""
    """Of images that it learnt from without their labels."""
    complete: bool = True
    """False where it went on from a model that does not say what it has seen."""

    @property
    def n_labelled(self) -> int:
        return len(self.labelled) // DIGEST_BYTES

    @property
    def n_unlabelled(self) -> int:
        return len(self.unlabelled) // DIGEST_BYTES

    def kinds(self, digests: Iterable[bytes]) -> NDArray[np.str_]:
        """For each digest "training", "unlabelled" or "new"."""
        labelled, unlabelled = _split(self.labelled), _split(self.unlabelled)
        return np.array(
            ["training" if one in labelled else "unlabelled" if one in unlabelled else "new" for one in digests],
            dtype=np.str_,
        )


def seen_by(
    images: NDArray[np.uint8], *, labelled: NDArray[np.int64], unlabelled: NDArray[np.int64], earlier: Seen
) -> Seen:
    """What a model has seen that was trained on these rows of `images` ([N, 3, S, S]) after it had seen `earlier`."""
    with_label = _split(earlier.labelled) | {digest(images[k]) for k in labelled}
    without = (_split(earlier.unlabelled) | {digest(images[k]) for k in unlabelled}) - with_label
    return Seen(b"".join(sorted(with_label)), b"".join(sorted(without)), earlier.complete)


def _split(digests: bytes) -> set[bytes]:
    return {digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)}


class ClassifierModule(nn.Module):
    """From bytes to probabilities: what `Bundle.probabilities` computes and what an export contains."""

    def __init__(self, normalise: nn.Module, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.normalise = normalise
        self.network = network
        self.temperature = temperature

    def forward(self, images: Tensor) -> Tensor:
        logits = class_output(self.network(to_channels_last(self.normalise(images))))
        return torch.softmax(logits / self.temperature, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A trained network with all that is needed to use it."""

    network: nn.Module
    """In evaluation mode, float32."""
    normalise: nn.Module
    class_names: tuple[str, ...]
    size: int
    """Pixels a side."""
    temperature: float
    """probabilities = softmax(logits / temperature)"""
    about: dict[str, Any]
    """Free JSON: versions, error estimate, date, commit."""
    seen: Seen | None = None
    """What it has learnt from; None where it does not say."""

    def classifier(self) -> ClassifierModule:
        return ClassifierModule(self.normalise, self.network, self.temperature).eval()

    def probabilities(self, images: Tensor) -> Tensor:
        """[B, n_classes] for bytes [B, 3, size, size]."""
        with torch.inference_mode():
            output: Tensor = self.classifier()(images)
        return output


def save_bundle(
    bundle: Bundle, spec: ModelSpec, normaliser: Normaliser, folder: Path, *, overwrite: bool = False
) -> None:
    """Write the model to `folder`, whole or not at all; it is read back before it takes its name.

    Raises:
        InputError: there is something at `folder` already, it cannot be written, or the network is not of `spec`.
    """
    _check_target(folder, overwrite=overwrite)
    weights = save(_tensors(bundle))
    manifest = {
        "format": FORMAT,
        "schema": SCHEMA,
        "network": {"kind": _kind(spec, NETWORKS), "fields": _fields(spec)},
        "normalise": {"kind": _kind(normaliser, NORMALISERS), **_fields(normaliser)},
        "class_names": list(bundle.class_names),
        "size": bundle.size,
        "temperature": bundle.temperature,
        "sha256": hashlib.sha256(weights).hexdigest(),
        "about": bundle.about,
    }
    digests = b"" if bundle.seen is None else bundle.seen.labelled + bundle.seen.unlabelled
    if bundle.seen is not None:
        manifest["seen"] = {
            "n_labelled": bundle.seen.n_labelled,
            "n_unlabelled": bundle.seen.n_unlabelled,
            "complete": bundle.seen.complete,
            "sha256": hashlib.sha256(digests).hexdigest(),
        }
    text = json.dumps(manifest, indent=1, allow_nan=False)
    unique = secrets.token_hex(4)
    temporary = folder.with_name(f".writing-{folder.name}-{unique}")
    try:
        temporary.mkdir(parents=True)
        try:
            _write(temporary / WEIGHTS, weights)
            _write(temporary / MANIFEST, text.encode())
            if bundle.seen is not None:
                _write(temporary / SEEN, digests)
            load_bundle(temporary)
            old = folder.with_name(f".old-{folder.name}-{unique}")
            if folder.exists():  # a folder cannot take the name of one with content
                folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"Cannot write the model to {folder}: {error}. Free some space or give another folder."
        ) from error


def load_bundle(folder: Path) -> Bundle:
    """The model in `folder`, or in the folder `model` of a fit.

    Raises:
        InputError: it is no model, damaged, or not what it says it is.
    """
    folder = _model_folder(folder)
    manifest = read_manifest(folder / MANIFEST)
    tensors = _read_weights(folder / WEIGHTS, manifest)
    manifest.check(tensors)
    network, normalise = manifest.build(tensors)
    for parameter in network.parameters():
        parameter.data = to_channels_last(parameter.data)
    return Bundle(
        network=network.requires_grad_(requires_grad=False),
        normalise=normalise,
        class_names=manifest.class_names,
        size=manifest.size,
        temperature=manifest.temperature,
        about=manifest.about,
        seen=_read_seen(folder / SEEN, manifest),
    )


def _model_folder(path: Path) -> Path:
    if path.suffix.lower() in _PICKLES and not path.is_dir():
        raise InputError(
            f"{path} is a pickle by its name: reading one can run any code that is in it, so it is refused. "
            "Give the folder `model` that meanteacher fit wrote."
        )
    for folder in (path, path / "model"):
        if (folder / MANIFEST).is_file():
            return folder
    raise InputError(
        f"{path} is not a model: there is no {MANIFEST} in it. "
        "Give the folder that meanteacher fit wrote, or the folder `model` in it."
    )


def _read_weights(path: Path, manifest: Manifest) -> dict[str, Tensor]:
    """All from one reading of the file: what is checked is what is used."""
    try:
        size = path.stat().st_size
        if size > manifest.n_bytes() + _MAX_HEADER:
            raise InputError(f"{path} is longer than its network ({size:,} bytes), so it is not of it. {AGAIN}")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"The weights of the model cannot be read ({error}). {AGAIN}") from error
    if content[:4] == _ZIP or (content[:1] == _PICKLE and content[8:9] != b"{"):
        raise InputError(
            f"{path} holds a pickle under another name: reading one can run any code that is in it, so it is refused. "
            "Do not trust where it came from."
        )
    if hashlib.sha256(content).hexdigest() != manifest.sha256:
        raise InputError(f"{path} is damaged: its sha256 is not the one in {MANIFEST}. {AGAIN}")
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}). {AGAIN}") from error


def _read_seen(path: Path, manifest: Manifest) -> Seen | None:
    """None where there is none: a model of an earlier version, or one whose owner deleted the file."""
    if manifest.seen is None or not path.exists():
        return None
    digests = DIGEST_BYTES * manifest.seen.n_labelled
    n_bytes = digests + DIGEST_BYTES * manifest.seen.n_unlabelled
    try:
        content = path.read_bytes() if path.stat().st_size == n_bytes else b""
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}). {AGAIN}") from error
    if hashlib.sha256(content).hexdigest() != manifest.seen.sha256:
        raise InputError(f"{path} is damaged: its sha256 is not the one in {MANIFEST}. {AGAIN}")
    return Seen(content[:digests], content[digests:], manifest.seen.complete)


def _tensors(bundle: Bundle) -> dict[str, Tensor]:
    parts = {"network": bundle.network, "normalise": bundle.normalise}
    # The file knows one layout; in memory, channels may be last.
    return {
        f"{part}.{name}": tensor.detach().cpu().contiguous()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


def _kind(value: object, kinds: Mapping[str, type[Any]]) -> str:
    for name, kind in kinds.items():
        if type(value) is kind:
            return name
    raise InputError(f"{value!r} cannot be shipped: a model holds one of {', '.join(kinds)}.")


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _check_target(folder: Path, *, overwrite: bool) -> None:
    if folder.exists() and not overwrite:
        raise InputError(f"{folder} exists already. Remove it, or give another folder.")
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} exists and is not a model, so it is not replaced. Give another folder.")


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
