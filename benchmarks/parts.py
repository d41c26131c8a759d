"""The parts of a step and of a run, each against the way it is usually done."""

import subprocess
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from PIL import Image

from benchmarks import pictures
from benchmarks.setup import BATCH, made_up, training
from benchmarks.timing import interleaved, ratio
from meanteacher.core import Augment
from meanteacher.evaluate import predict_logits
from meanteacher.models import ModelSpec
from meanteacher.seeding import generator
from meanteacher.teacher import Teacher
from meanteacher.views import Chain, Crop, Cutout, Flip, Jitter, Noise, Rotate, Translate

Announce = Callable[[str], None]


def views(*, rounds: int, announce: Announce) -> dict[str, Any]:
    """Images per second of each view, on one core, against PIL picture by picture, made tensors and stacked."""
    images = made_up(BATCH).images.float().div_(255)
    shown = [Image.fromarray(p) for p in made_up(BATCH).images.permute(0, 2, 3, 1).numpy()]
    draws = Random(0)

    def changed(change: pictures.Change) -> Callable[[Image.Image], torch.Tensor]:
        return lambda picture: pictures.as_tensor(change(picture, draws))

    def all_of_cifar10(picture: Image.Image) -> torch.Tensor:
        moved = pictures.translated(pictures.flipped(picture, draws), draws)
        return pictures.noisy(pictures.as_tensor(moved))

    pairs: dict[str, tuple[Augment, Callable[[Image.Image], torch.Tensor]]] = {
        "translate": (Translate(2), changed(pictures.translated)),
        "flip": (Flip(), changed(pictures.flipped)),
        "rotate": (Rotate(), changed(pictures.rotated)),
        "crop": (Crop(), changed(pictures.cropped)),
        "jitter": (Jitter(), changed(pictures.recoloured)),
        "cutout": (Cutout(8), lambda picture: pictures.cut_out(pictures.as_tensor(picture), draws)),
        "noise": (Noise(0.15), lambda picture: pictures.noisy(pictures.as_tensor(picture))),
        "flip, translate, noise": (Chain((Flip(), Translate(2), Noise(0.15))), all_of_cifar10),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _view(images, shown, *pair, rounds, announce) for name, pair in pairs.items()}
    finally:
        torch.set_num_threads(threads)


def _view(
    images: torch.Tensor,
    shown: list[Image.Image],
    ours: Augment,
    theirs: Callable[[Image.Image], torch.Tensor],
    rounds: int,
    announce: Announce,
) -> dict[str, float]:
    source = generator(0, "bench")
    timings = interleaved(
        {
            "batch": lambda: ours(images, source),
            "PIL": lambda: torch.stack([theirs(picture) for picture in shown]),
        },
        rounds=rounds,
        announce=announce,
    )
    return {
        "images_per_second": BATCH / timings["batch"].median,
        "pil_images_per_second": BATCH / timings["PIL"].median,
        "times_as_fast": ratio(timings, "PIL", "batch"),
    }


def average(model: ModelSpec, *, rounds: int, announce: Announce) -> dict[str, Any]:
    """One fused update of the teacher against a loop over its parameters."""
    run = training(model)
    teacher, student = run.state.memory, run.state.student
    assert isinstance(teacher, Teacher)

    @torch.no_grad()
    def loop() -> None:
        for ours, theirs in zip(teacher.network.parameters(), student.parameters(), strict=True):
            ours.mul_(0.99).add_(theirs, alpha=0.01)

    timings = interleaved(
        {"fused": lambda: teacher.update(student, decay=0.99), "loop": loop}, rounds=rounds, announce=announce
    )
    return {"fused_ms": 1000 * timings["fused"].median, "times_as_fast": ratio(timings, "loop", "fused")}


def predict(model: ModelSpec, *, rounds: int, announce: Announce, n_images: int = 1000) -> dict[str, Any]:
    """Images per second of the evaluated network."""
    run = training(model)
    images, normalise = run.stream.dataset.images[:n_images], run.stream.normalise
    network = run.state.memory
    assert isinstance(network, Teacher)
    timings = interleaved(
        {"predict": lambda: predict_logits(network.network, images, normalise=normalise)},
        rounds=rounds,
        announce=announce,
    )
    return {"images_per_second": n_images / timings["predict"].median}


def start(*, rounds: int, announce: Announce) -> dict[str, Any]:
    """Seconds until help is shown, and until everything a run needs is imported."""
    help_command = [sys.executable, "-c", "from meanteacher.cli import main; main()", "--help"]
    import_command = [sys.executable, "-c", "import meanteacher.recipes"]
    timings = interleaved(
        {
            "help": lambda: subprocess.run(help_command, capture_output=True, check=True),
            "import": lambda: subprocess.run(import_command, capture_output=True, check=True),
        },
        rounds=rounds,
        announce=announce,
    )
    return {"help_seconds": timings["help"].median, "import_seconds": timings["import"].median}
