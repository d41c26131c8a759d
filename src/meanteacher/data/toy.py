"""Data that needs no download: scikit-learn's digits, and two moons."""

from dataclasses import dataclass
from pathlib import Path

import torch

from meanteacher.core import Progress, imported
from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.seeding import generator

_WHITE = 16


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The digits with a fixed test set: a third of every class, the same for every seed and every run."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Needs no file; the arguments are those of `Source`."""
        # Importing scikit-learn takes as long as loading the data; the other sources do without it.
        bunch = imported("sklearn.datasets", "The data set of digits", extra="sklearn").load_digits()
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


@dataclass(frozen=True, kw_only=True)
class Moons:
    """Two interleaved half circles with Gaussian noise; as many points again to test on."""

    n: int = 1000
    noise: float = 0.1

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Needs no file; the arguments are those of `Source`."""
        return TrainTest(train=self._points(0), test=self._points(1))

    def _points(self, seed: int) -> Dataset:
        make_moons = imported("sklearn.datasets", "The data set of moons", extra="sklearn").make_moons
        points, labels = make_moons(self.n, noise=self.noise, random_state=seed)
        return Dataset(torch.from_numpy(points).float(), torch.from_numpy(labels), ("upper", "lower"))
