"""A recipe for the command line, of which one process kills itself once, in the middle of the run."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from meanteacher.views import Noise
from support import recipe

_calls: list[None] = []


@dataclass(frozen=True)
class Deadly:
    """Noise. At the ninth batch rank 1 is killed, unless the file that MARKER names is there: it is made first."""

    noise: Noise = field(default_factory=lambda: Noise(0.3))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        _calls.append(None)
        marker = Path(os.environ["MARKER"])
        if len(_calls) == 9 and os.environ.get("RANK") == "1" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.noise(images, generator)


dies = recipe(steps=14, evaluate_every=4, views={"student": Deadly(), "teacher": Noise(0.3)})
