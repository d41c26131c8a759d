"""Learn from a folder that other programs write to: python examples/online_folder.py INBOX CHECKPOINTS

A file is an .npz with the arrays `images` [N, 2] and `labels` [N], -1 if unknown. Writers give it a name that sorts
in the order of time, and rename it to .npz once it is complete. A killed program continues with the next file.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import meanteacher as mt
from meanteacher.methods import MeanTeacher
from meanteacher.models import MlpSpec
from meanteacher.online import Arrived
from meanteacher.train import AdamSpec
from meanteacher.views import Noise


@dataclass
class Inbox:
    """The files of a folder in the order of their names, one batch each. The position is the last name."""

    folder: Path
    patience: float = 60.0
    """Seconds without a new file after which the stream ends."""
    done: list[Path] = field(default_factory=list)
    """Files that were read and not yet deleted."""

    def read(self, position: str | None = None) -> Iterator[Arrived]:
        heard = time.monotonic()
        while True:
            for path in sorted(self.folder.glob("*.npz")):
                if path.name > (position or ""):
                    position = path.name
                    self.done.append(path)
                    with np.load(path, allow_pickle=False) as arrays:
                        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
                    yield Arrived(images, labels, position)
                    heard = time.monotonic()
            if time.monotonic() > heard + self.patience:
                return
            time.sleep(0.1)

    def release(self, position: str) -> None:
        """Delete the files that a checkpoint no longer needs."""
        while self.done:
            self.done.pop().unlink()


def trainer() -> mt.OnlineTrainer:
    return mt.OnlineTrainer(
        MlpSpec(hidden=(64, 64)),
        MeanTeacher(decay=0.8, buffers="own", weight=8.0),
        AdamSpec(learning_rate=0.02, beta1=0.9, beta2=0.99),
        n_classes=2,
        input_shape=(2,),
        views={role: Noise(0.2) for role in ("student", "teacher")},
        device="cpu",
    )


def main(inbox: Path, checkpoints: Path, patience: float = 60.0, save_every: int = 10) -> mt.OnlineTrainer:
    model = trainer()
    if model.is_saved(checkpoints):
        model.load(checkpoints)
    model.follow(Inbox(inbox, patience), folder=checkpoints, save_every=save_every)
    return model


if __name__ == "__main__":
    print(f"{main(Path(sys.argv[1]), Path(sys.argv[2])).n_steps} steps")
