"""Two moons: points in the plane, on which a method's decision boundary can be drawn."""

from dataclasses import dataclass
from pathlib import Path

import torch

from meanteacher.data.dataset import Dataset, TrainTest
from meanteacher.data.download import Progress


@dataclass(frozen=True, kw_only=True)
class Moons:
    """Two interleaved half circles with Gaussian noise; as many points again to test on."""

    n: int = 1000
    noise: float = 0.1

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        """Needs no file; the arguments are there for the protocol's sake."""
        return TrainTest(train=self._points(0), test=self._points(1))

    def _points(self, seed: int) -> Dataset:
        from sklearn.datasets import make_moons

        points, labels = make_moons(self.n, noise=self.noise, random_state=seed)
        return Dataset(torch.from_numpy(points).float(), torch.from_numpy(labels), ("upper", "lower"))
