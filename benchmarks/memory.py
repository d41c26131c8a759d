"""Peak memory of training each network, and what grows with the data."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.setup import training
from meanteacher.core import Problem
from meanteacher.methods.temporal_ensembling import EnsembleTable
from meanteacher.models import ModelSpec

_ROOT = Path(__file__).parents[1]
_STATUS = Path("/proc/self/status")
_CHILD = (
    "from benchmarks.memory import one_step, peak_of_this_process\n"
    "from meanteacher.models import *\n"
    "one_step({model})\n"
    "print(peak_of_this_process())\n"
)


def peak(models: Mapping[str, ModelSpec], *, announce: Callable[[str], None]) -> dict[str, Any] | None:
    """Megabytes at the peak of a few steps, each network in a process of its own; the first is that of no network.

    None on Windows, which has neither of the two ways to ask.
    """
    if not _STATUS.exists() and find_spec("resource") is None:
        return None
    found: dict[str, Any] = {"import": _megabytes("None")}
    for name, model in models.items():
        announce(name)
        found[name] = _megabytes(repr(model))
    return found


def table(*, n_images: int, n_classes: int) -> dict[str, Any]:
    """Temporal Ensembling's table of targets: the one thing besides the images that grows with their number."""
    problem = Problem(n_classes=n_classes, n_examples=n_images, input_shape=(3, 32, 32))
    memory = EnsembleTable(nn.Identity(), problem, buffers="average")
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in memory.state_dict().values())
    return {"images": n_images, "megabytes": n_bytes / 1e6, "bytes_an_image": n_bytes / n_images}


def one_step(model: ModelSpec | None) -> None:
    """Train a little, in the process that calls it."""
    if model is not None:
        training(model, n_images=1000).steps(2)


def peak_of_this_process() -> float:
    """Megabytes. Not what getrusage says on Linux: there a child begins with the peak of the process it came from."""
    if _STATUS.exists():
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].removesuffix("kB")) / 1024
    # Elsewhere, which in practice is macOS, getrusage counts bytes and a new program starts from nothing.
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _megabytes(model: str) -> float:
    command = [sys.executable, "-c", _CHILD.format(model=model)]
    return float(subprocess.run(command, cwd=_ROOT, capture_output=True, check=True, text=True).stdout)
