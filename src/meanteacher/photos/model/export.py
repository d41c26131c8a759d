"""A model for programs without Python: one ONNX file from bytes to probabilities."""

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from meanteacher.core import InputError, imported
from meanteacher.files import write_atomic
from meanteacher.files.images import BACKGROUND, FILTER, REDUCING_GAP
from meanteacher.photos.features.compute import Compute, session
from meanteacher.photos.features.onnx_graph import UnsupportedError, to_onnx

if TYPE_CHECKING:
    from meanteacher.photos.model.bundle import Classifier

INPUT, OUTPUT = "images", "probabilities"
RESIZE = (
    "the whole image, turned upright as its EXIF orientation says, squeezed into the square (not cropped, its shape "
    "not kept) by Pillow with the filter resize_filter, which averages where an image becomes smaller; transparency "
    "over background"
)

_MAX_DIFFERENCE = 1e-4
_TIE = 1e-5
"""Difference of two probabilities below which rounding decides between the classes."""
_N_RANDOM = 64


def export_onnx(model: "Classifier", out: Path, *, overwrite: bool) -> Path:
    """Write the model as ONNX: see `Classifier.export`."""
    onnx = imported("onnx", "An export to ONNX", extra="photos")
    check_new_file(out, overwrite=overwrite)
    exported = _exported(model)
    onnx.helper.set_model_props(exported, {key: json.dumps(value) for key, value in metadata(model).items()})
    onnx.checker.check_model(exported, full_check=True)
    data = exported.SerializeToString()
    _compare(model, session(data))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, data)
    except OSError as error:
        raise InputError(f"Cannot write {out} ({error}). Free some space, or give another file.") from error
    return out


def check_new_file(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file, unless `overwrite` is set, or a folder."""
    if out.is_dir() or (out.exists() and not overwrite):
        raise InputError(f"{out} exists already. Replace it with overwrite=True (--overwrite), or give another file.")


def metadata(model: "Classifier") -> dict[str, Any]:
    """The preparation of an image as in training, for other programs. The keys are part of the format.

    With another filter, order of colours or range of values some images get another label, without any error.
    """
    return {
        "class_names": model.class_names,
        "size": model.size,
        "resize": RESIZE,
        "resize_filter": FILTER.name.lower(),
        "resize_reducing_gap": REDUCING_GAP,
        "background": BACKGROUND,
        "colour_order": "RGB",
        "layout": "NCHW",
        "value_range": [0, 255],
        "normalisation": "inside",
        "temperature": model.temperature,
        "version": f"meanteacher {version('meanteacher')}",
    }


def _exported(model: "Classifier") -> Any:
    try:
        return to_onnx(model.module(), (3, model.size, model.size), np.uint8, input_name=INPUT, output_name=OUTPUT)
    except UnsupportedError as error:
        return _exported_by_torch(model, str(error))


def _exported_by_torch(model: "Classifier", reason: str) -> Any:
    """Torch's own exporter knows every operation of other libraries. It takes longer, and needs a further package."""
    if find_spec("onnxscript") is None:
        raise InputError(
            f"To export this model takes the package onnxscript, because {reason}. Install it with `pip install "
            "onnxscript`. All networks of meanteacher itself can be exported without."
        )
    images = torch.zeros(2, 3, model.size, model.size, dtype=torch.uint8)
    try:
        program = torch.onnx.export(
            model.module(),
            (images,),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            verbose=False,
        )
    except Exception as error:
        # It raises many types, with messages of many pages.
        why = str(error).strip().partition("\n")[0]
        raise InputError(f"This model cannot be exported by torch either: {why}. predict takes any network.") from error
    assert program is not None
    return program.model_proto


def _compare(model: "Classifier", compute: Compute) -> None:
    images = _trial_images(model.size)
    with torch.inference_mode():
        expected = model.module()(images)
    got = torch.from_numpy(compute(images.numpy()))
    difference, n_other = float("inf"), len(images)
    if got.shape == expected.shape:
        difference = float((got - expected).abs().max())
        chosen = expected.gather(1, got.argmax(1, keepdim=True))
        n_other = int((expected.amax(1, keepdim=True) - chosen > _TIE).sum())
    # Not the other way round: a comparison with NaN is false.
    if not (difference <= _MAX_DIFFERENCE and n_other == 0):
        raise InputError(
            f"The exported model does not compute the same as this one: probabilities differ by up to {difference:.2g} "
            f"and {n_other} of {len(images)} images get another class, so nothing was written. "
            "Try another version of onnxruntime."
        )


def _trial_images(size: int) -> Tensor:
    """Noise, and images unlike noise: black, white, pure colours, an edge, a ramp, one bright pixel."""
    draws = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (_N_RANDOM, 3, size, size), dtype=torch.uint8, generator=draws)
    edges = torch.zeros(8, 3, size, size, dtype=torch.uint8)
    edges[1] = 255
    for channel in range(3):
        edges[2 + channel, channel] = 255
    edges[5, :, :, size // 2 :] = 255
    edges[6] = torch.linspace(0, 255, size).to(torch.uint8)
    edges[7, :, size // 2, size // 2] = 255
    return torch.cat([noise, edges])
