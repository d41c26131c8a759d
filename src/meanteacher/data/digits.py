"""Scikit-learn's handwritten digits: 1797 images of 8 x 8, part of the library, so nothing to download."""

from dataclasses import dataclass
from pathlib import Path

import torch

from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.data.download import Progress
from meanteacher.seeding import generator

_WHITE = 16


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The digits with a fixed test set: a third of every class, the same for every seed and every run."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Needs no file; the arguments are there for the protocol's sake."""
        # Importing scikit-learn takes as long as loading the data; the other sources do without it.
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = (torch.from_numpy(bunch.images) * (255 / _WHITE)).round().to(torch.uint8).unsqueeze(1)
        labels = torch.from_numpy(bunch.target).to(torch.int64)
        names = tuple(str(name) for name in bunch.target_names)

        draws = generator(0, "digits/test")
        is_test = torch.zeros(len(labels), dtype=torch.bool)
        for label in range(len(names)):
            rows = (labels == label).nonzero().flatten()
            is_test[rows[torch.randperm(len(rows), generator=draws)[: round(len(rows) / 3)]]] = True
        return TrainTest(
            train=Dataset(images[~is_test], labels[~is_test], names),
            test=Dataset(images[is_test], labels[is_test], names),
        )
