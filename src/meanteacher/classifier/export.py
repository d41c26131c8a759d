"""A model for programs without Python: one ONNX file that takes bytes and gives probabilities."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meanteacher.classifier.bundle import Bundle
from meanteacher.core import InputError
from meanteacher.files import write_atomic
from meanteacher.photos.decode import BACKGROUND, FILTER, REDUCING_GAP

INPUT, OUTPUT = "images", "probabilities"
RESIZE = (
    "the whole image, turned upright as its EXIF orientation says, squeezed into the square (not cropped, its shape "
    "not kept) by Pillow with the filter resize_filter, which averages where an image becomes smaller; transparency "
    "over background"
)

_MAX_DIFFERENCE = 1e-4
_TIE = 1e-5
"""Which of two classes is the best one that are as close as this depends on how each program rounds."""
_N_RANDOM = 64


def export_onnx(bundle: Bundle, out: Path, *, overwrite: bool = False) -> Path:
    """Write the model as ONNX, after comparing what onnxruntime makes of it with what torch does.

    The file takes `images`, bytes [N, 3, size, size] for any N, and gives `probabilities` [N, n_classes]:
    normalisation, temperature and softmax are inside. Its metadata hold what `metadata` gives, each value as JSON;
    examples/predict_with_onnx.py goes by them.

    Raises:
        InputError: the extra `onnx` is not installed, `out` exists or cannot be written, or the two do not agree.
    """
    onnx, onnxruntime = _imported("onnx"), _imported("onnxruntime")
    _imported("onnxscript")
    if out.is_dir() or (out.exists() and not overwrite):
        raise InputError(f"{out} exists already. Replace it with --overwrite, or give another file with --out.")
    model = _exported(bundle)
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata(bundle).items()})
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    _compare(bundle, onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, data)
    except OSError as error:
        raise InputError(f"Cannot write {out} ({error}). Make room, or give another file with --out.") from error
    return out


def metadata(bundle: Bundle) -> dict[str, Any]:
    """All that a program needs to know to give the file what it was trained on. The keys are part of the format.

    Another filter, order of colours or range of values gives other labels for some images, and no error.
    """
    return {
        "class_names": bundle.class_names,
        "size": bundle.size,
        "resize": RESIZE,
        "resize_filter": FILTER.name.lower(),
        "resize_reducing_gap": REDUCING_GAP,
        "background": BACKGROUND,
        "colour_order": "RGB",
        "layout": "NCHW",
        "value_range": [0, 255],
        "normalisation": "inside",
        "temperature": bundle.temperature,
        "version": f"meanteacher {version('meanteacher')}",
    }


def _exported(bundle: Bundle) -> Any:
    images = torch.zeros(2, 3, bundle.size, bundle.size, dtype=torch.uint8)
    with _quiet():
        program = torch.onnx.export(
            bundle.classifier(),
            (images,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    # The exporter notes where in whose source each operation stands, which is nobody's business.
    for noted in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del noted.metadata_props[:]
        noted.doc_string = ""
    return model


def _compare(bundle: Bundle, session: Any) -> None:
    images = _trial_images(bundle.size)
    expected = bundle.probabilities(images)
    got = torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])
    difference, n_other = float("inf"), len(images)
    if got.shape == expected.shape:
        difference = float((got - expected).abs().max())
        chosen = expected.gather(1, got.argmax(1, keepdim=True))
        n_other = int((expected.amax(1, keepdim=True) - chosen > _TIE).sum())
    # Not the other way round: a comparison with NaN is false.
    if not (difference <= _MAX_DIFFERENCE and n_other == 0):
        raise InputError(
            f"The exported model does not compute what this one does: probabilities differ by up to {difference:.2g} "
            f"and {n_other} of {len(images)} images get another class, so nothing was written. "
            "Try another version of onnxruntime."
        )


def _trial_images(size: int) -> Tensor:
    """Noise, and what noise is not: black, white, pure colours, an edge, a ramp, one bright pixel."""
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


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter complains about itself, and that torchvision, which is not needed, is not there."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
            yield
    finally:
        log.setLevel(level)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"Exporting needs packages that are not installed ({error}). "
            "Install them with: pip install 'meanteacher[onnx]'"
        ) from error
