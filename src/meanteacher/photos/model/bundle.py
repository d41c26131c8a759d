"""A trained model, `Classifier`, and its folder: model.json, weights.safetensors and seen.bin.

A model may come from anyone, by mail or from a download. So it is read as data: nothing in the folder can run, the
kinds of network are a plain dict, and all shapes are compared before anything of their size is built.
"""

import errno
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, InputError, Progress
from meanteacher.devices import choose_device
from meanteacher.files import atomic_folder, read_regular, write_atomic
from meanteacher.formats import count, escape_name, listed
from meanteacher.models import ModelSpec
from meanteacher.passes import to_channels_last
from meanteacher.photos.folder.duplicates import DIGEST_BYTES
from meanteacher.photos.model.evaluate import evaluate
from meanteacher.photos.model.export import check_new_file, export_onnx
from meanteacher.photos.model.images import ImagesLike, as_images
from meanteacher.photos.model.manifest import AGAIN, KNOWN, Manifest, manifest_of, read_manifest
from meanteacher.photos.model.predict import ClassifierModule, Known, Predictions, classify, prediction_file, rows_of
from meanteacher.photos.pages.sentences import estimate_of
from meanteacher.report.page import render
from meanteacher.views import Normaliser

WEIGHTS, MANIFEST, SEEN = "weights.safetensors", "model.json", "seen.bin"
"""The last has digests of the images that the model has learnt from: of those with labels, then of those without."""

_PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
"""The first byte of a pickle; safetensors may begin with it too, but has a { as its ninth byte."""
_MAX_HEADER = 1 << 24


@dataclass(frozen=True, slots=True)
class Seen:
    """Digests of all images that a model has learnt from, sorted and concatenated."""

    labelled: bytes = b""
    unlabelled: bytes = b""

    @property
    def digests(self) -> bytes:
        return self.labelled + self.unlabelled

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


def seen_by(digests: Sequence[bytes], *, labelled: NDArray[np.int64], unlabelled: NDArray[np.int64]) -> Seen:
    """What a model has seen that was trained on these rows of the images with `digests`."""
    with_label = {digests[k] for k in labelled}
    without = {digests[k] for k in unlabelled} - with_label
    return Seen(b"".join(sorted(with_label)), b"".join(sorted(without)))


def _split(digests: bytes) -> set[bytes]:
    return {digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)}


class _StoppedError(Exception):
    """Raised by `predict` itself when it is stopped, so that the file is not written."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Classifier:
    """A trained network with everything that is needed to use it.

    In all methods `images` is a folder, an .npz file, an image file, a PIL image, a list of image files, PIL images or
    arrays, or a uint8 array [N, H, W, 3], [H, W, 3], or [N, H, W] of grey images. The same picture gets the same
    answer in each form; only a JPEG four times as large as `size`, decoded at a reduced size from its file, may not.

    Example: `mt.load("fit/").predict("more_photos/")`
    """

    network: nn.Module
    """In evaluation mode, float32."""
    normalise: nn.Module
    class_names: tuple[str, ...]
    size: int
    """Width and height in pixels of the images that the network takes."""
    temperature: float
    """probabilities = softmax(logits / temperature)"""
    about: dict[str, Any]
    """Free JSON: versions, error estimate, date, commit."""
    seen: Seen | None = None
    """What it has learnt from; None where that is unknown."""
    spec: ModelSpec | None = None
    """What `network` was built from; needed to save it."""
    normaliser: Normaliser | None = None
    """What `normalise` was fitted with; needed to save it."""
    known: Known | None = None
    """Labelled photos to compare others with; None if the model cannot tell photos of none of its classes."""

    def predict(
        self,
        images: ImagesLike,
        *,
        out: str | PathLike[str] | None = None,
        unsure_below: float | None = None,
        overwrite: bool = False,
        device: str = "auto",
        progress: Progress = lambda done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Predictions:
        """The label of every image, in the order given; a folder's in the order of their names.

        Images are decoded as they are needed, so that any number of them takes the same memory.

        Args:
            images: see the class
            out: also write predictions.csv here, with the three most probable classes of each image
            unsure_below: confidence below which a label counts as unsure, from 0 to 1; a column of the table
            overwrite: replace `out` if it exists
            device: "auto", "cpu", "cuda", "cuda:N" or "mps"
            progress: called with the number of images so far and in all
            should_stop: asked after every chunk; stopping leaves no file

        Raises:
            InputError: there is no image or no such device, `out` exists already or cannot be written, or
                `unsure_below` is not from 0 to 1.
        """
        if unsure_below is not None and not 0 <= unsure_below <= 1:
            raise InputError(f"unsure_below is {unsure_below:g}: give a confidence from 0 to 1, such as 0.8.")
        chosen, file = choose_device(device), None if out is None else Path(out)
        if file is not None:
            check_new_file(file, overwrite=overwrite)
        given = as_images(images)
        classes, confidence = np.full(len(given), UNLABELLED), np.full(len(given), np.nan, np.float32)
        strangeness = np.full(len(given), np.nan, np.float32)
        problems: dict[str, str] = {}
        done = 0
        with (
            suppress(_StoppedError),
            prediction_file(file, unsure=unsure_below is not None) as write,
            closing(classify(self, given, device=chosen)) as chunks,
        ):
            for chunk in chunks:
                if should_stop():
                    raise _StoppedError
                rows = slice(done, done + len(chunk.index))
                names = given.names[rows]
                if write:
                    table = rows_of(
                        names,
                        chunk.probabilities,
                        self.class_names,
                        chunk.unreadable,
                        chunk.strangeness,
                        unsure_below=unsure_below,
                    )
                    write(table)
                readable = np.array([row not in chunk.unreadable for row in range(len(names))])
                best = chunk.probabilities.max(1)
                classes[rows][readable], confidence[rows][readable] = best.indices[readable], best.values[readable]
                strangeness[rows][readable] = chunk.strangeness[readable]
                problems |= {names[row]: reason for row, reason in chunk.unreadable.items()}
                done = rows.stop
                progress(done, len(given))
        return Predictions(
            names=given.names[:done],
            confidence=confidence[:done],
            problems=problems,
            complete=done == len(given),
            classes=classes[:done],
            class_names=self.class_names,
            images=given,
            strangeness=strangeness[:done],
            unsure_below=unsure_below,
        )

    def predict_proba(
        self, images: ImagesLike, *, device: str = "auto", progress: Progress = lambda done, total: None
    ) -> NDArray[np.float32]:
        """The probabilities of all classes for every image, [N, n_classes], in the order of `class_names`.

        Raises:
            InputError: there is no image or no such device, or an image cannot be read.
        """
        chosen, given = choose_device(device), as_images(images)
        probabilities = np.empty((len(given), len(self.class_names)), np.float32)
        for chunk in classify(self, given, device=chosen):
            for row, reason in chunk.unreadable.items():
                raise InputError(
                    f"{given.names[chunk.index[row]]} cannot be read ({reason}), so it has no probabilities: leave it "
                    "out, or use predict, which lists such images under `problems`."
                )
            probabilities[chunk.index[0] : chunk.index[-1] + 1] = chunk.probabilities
            progress(chunk.index[-1] + 1, len(given))
        return probabilities

    def evaluate(
        self,
        photos: str | PathLike[str],
        labels: str | PathLike[str] | None = None,
        *,
        device: str = "auto",
        progress: Progress = lambda done, total: None,
    ) -> dict[str, Any]:
        """The error in all and per class with 95 % intervals, the confusion matrix, and the calibration.

        Images without a label, and unreadable ones, which are listed, are left out. So are images that the model has
        learnt from with their labels, recognised by their pixels: they say nothing about its error. Their own error
        stands under "seen", which is None if the model does not say what it has seen. If it has learnt from some of
        the images without their labels, and others are new to it, only the new ones count. "judged" says which images
        count: "new", "unlabelled", "training" if no others are left and so there is no error, or "unknown".

        Args:
            photos: a folder of images, or an .npz file
            labels: a CSV file of path and label; without it the folders are the classes
            device: as in `predict`
            progress: as in `predict`

        Raises:
            InputError: there are no labels, there is no such device, or the model does not know some of the classes.
        """
        table = None if labels is None else Path(labels)
        return evaluate(self, Path(photos), table, device=device, progress=progress)

    def export(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the model as ONNX, once onnxruntime is found to compute the same as torch on trial images.

        The file takes `images`, bytes [N, 3, size, size] for any N, and gives `probabilities` [N, n_classes]:
        normalisation, temperature and softmax are inside. Its metadata say how to prepare an image;
        examples/predict_with_onnx.py follows them.

        Raises:
            InputError: `path` exists or cannot be written, the two differ, or a network of another library has an
                operation that cannot be written as ONNX.
        """
        return export_onnx(self, Path(path), overwrite=overwrite)

    def save(self, folder: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the model to a folder, completely or not at all; it is read back before it takes its name.

        Raises:
            InputError: `folder` exists already, it cannot be written, or the network is not of `spec`.
        """
        folder = Path(folder)
        if folder.exists() and not overwrite:
            raise InputError(f"{folder} exists already. Replace it with overwrite=True, or give another folder.")
        if folder.exists() and not (folder / MANIFEST).is_file():
            raise InputError(f"{folder} exists and is not a model, so it is not replaced. Give another folder.")
        content = _content(self)
        try:
            with atomic_folder(folder) as temporary:
                for name, data in content.items():
                    write_atomic(temporary / name, data)
                load(temporary)
        except OSError as error:
            raise InputError(
                f"Cannot write the model to {folder}: {error}. Free some space, or give another folder."
            ) from error
        return folder

    def _facts(self) -> dict[str, str]:
        """What a person wants to know of the model, in words."""
        n_parameters = sum(parameter.numel() for parameter in self.network.parameters())
        facts = {
            "Classes": f"{len(self.class_names):,}: {listed([escape_name(name) for name in self.class_names], 10)}",
            "Images": f"{self.size} x {self.size} pixels",
            "Parameters": f"{n_parameters:,}",
        }
        if estimate := estimate_of(self.about):
            facts["Estimate of the fit"] = estimate
        if self.seen is not None:
            facts["Learned from"] = (
                f"{count(self.seen.n_labelled, 'labelled image')} and {self.seen.n_unlabelled:,} without labels"
            )
        return facts

    def __repr__(self) -> str:
        return "\n".join(["Classifier", *(f"  {name}: {value}" for name, value in self._facts().items())])

    def _repr_html_(self) -> str:
        """The facts as a table, as a notebook shows them."""
        return render("classifier.html.jinja", facts=self._facts())

    def module(self, known: Known | None = None) -> ClassifierModule:
        """The model as one torch module, from bytes [B, 3, size, size] to probabilities [B, n_classes].

        With `known` photos the similarity to them is a further column.
        """
        return ClassifierModule(self.normalise, self.network, self.temperature, known).eval()


def load(folder: str | PathLike[str]) -> Classifier:
    """The model in the folder of a fit, or in its folder `model`.

    Raises:
        InputError: there is no model, it is damaged, or its parts do not fit together.

    Example: `mt.load("fit/").class_names`
    """
    folder = _model_folder(Path(folder))
    manifest = read_manifest(folder / MANIFEST)
    tensors = _read_weights(folder / WEIGHTS, manifest)
    manifest.check(tensors)
    network, normalise = manifest.build(tensors)
    for parameter in network.parameters():
        parameter.data = to_channels_last(parameter.data)
    return Classifier(
        network=network.requires_grad_(requires_grad=False),
        normalise=normalise,
        class_names=manifest.content.class_names,
        size=manifest.content.size,
        temperature=manifest.content.temperature,
        about=manifest.content.about,
        seen=_read_seen(folder / SEEN, manifest),
        spec=manifest.spec,
        normaliser=manifest.normaliser,
        known=None if manifest.content.known is None else Known(tensors[KNOWN], manifest.content.known.strange_above),
    )


def _content(model: Classifier) -> dict[str, bytes]:
    """File name -> content."""
    parts = {"network": model.network, "normalise": model.normalise}
    # Files have one layout; in memory, channels may be last.
    tensors = {
        f"{part}.{name}": tensor.detach().cpu().contiguous()
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    if model.known is not None:
        tensors[KNOWN] = model.known.features.contiguous()
    weights = safetensors.save(tensors)
    content = {WEIGHTS: weights, MANIFEST: manifest_of(model, weights)}
    return content if model.seen is None else content | {SEEN: model.seen.digests}


def _model_folder(path: Path) -> Path:
    if path.suffix.lower() in _PICKLES and not path.is_dir():
        raise InputError(
            f"{path} is a pickle by its name. Reading a pickle can run any code in it, so it is refused. "
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
    """The file is read once: what is checked is what is used."""
    try:
        content = read_regular(path, manifest.n_bytes() + _MAX_HEADER)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InputError(f"{path} is longer than its network, so the two do not match. {AGAIN}") from error
        raise InputError(f"The weights of the model cannot be read ({error}). {AGAIN}") from error
    if content[:4] == _ZIP or (content[:1] == _PICKLE and content[8:9] != b"{"):
        raise InputError(
            f"{path} holds a pickle under another name. Reading a pickle can run any code in it, so it is refused. "
            "Do not trust its source."
        )
    _check_digest(path, content, manifest.content.sha256)
    try:
        return safetensors.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}). {AGAIN}") from error


def _read_seen(path: Path, manifest: Manifest) -> Seen | None:
    """None if it is not recorded, or if the owner deleted the file."""
    seen = manifest.content.seen
    if seen is None or not path.exists():
        return None
    n_labelled, n_unlabelled = (DIGEST_BYTES * n for n in (seen.n_labelled, seen.n_unlabelled))
    try:
        content = read_regular(path, n_labelled + n_unlabelled)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise InputError(f"{path} cannot be read ({error}). {AGAIN}") from error
        content = b""  # longer than it was
    _check_digest(path, content, seen.sha256)
    return Seen(content[:n_labelled], content[n_labelled:])


def _check_digest(path: Path, content: bytes, sha256: str) -> None:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path} is damaged: its sha256 is not the one in {MANIFEST}. {AGAIN}")
