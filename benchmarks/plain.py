"""Mean Teacher as one would usually write it: what `make bench` compares with.

Images go through PIL one by one in a DataLoader, each twice; the network runs in the default memory layout; the average
is a Python loop over the parameters. It is correct, and it is not ours to be proud of.
"""

import copy
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

UNLABELLED = -1


def augment(pixels: np.ndarray) -> Tensor:
    """Translate by up to two pixels with a reflected border, standardise, add noise: one image."""
    padded = Image.fromarray(np.pad(pixels, ((2, 2), (2, 2), (0, 0)), mode="reflect"))
    left, top = np.random.randint(0, 5), np.random.randint(0, 5)
    image = ImageOps.crop(padded, (left, top, 4 - left, 4 - top))
    x = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
    x = (x - x.mean()) / x.std()
    return x + 0.15 * torch.randn_like(x)


class TwoViews(Dataset[tuple[Tensor, Tensor, int]]):
    """Each image twice, with its label or -1."""

    def __init__(self, images: np.ndarray, labels: list[int]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return augment(self.images[index]), augment(self.images[index]), self.labels[index]


class TwoStreams(Sampler[list[int]]):
    """Batches with a fixed number of labelled rows."""

    def __init__(self, labelled: list[int], unlabelled: list[int], size: int, n_labelled: int) -> None:
        self.pools = (labelled, unlabelled)
        self.shares = (n_labelled, size - n_labelled)

    def __iter__(self) -> Iterator[list[int]]:
        endless = [self._endless(pool) for pool in self.pools]
        while True:
            yield [i for stream, n in zip(endless, self.shares, strict=True) for i in itertools.islice(stream, n)]

    @staticmethod
    def _endless(pool: list[int]) -> Iterator[int]:
        while True:
            yield from np.random.permutation(pool).tolist()


def make_step(
    student: nn.Module, images: np.ndarray, labels: list[int], *, size: int, n_labelled: int, workers: int
) -> Callable[[], None]:
    """A function that trains one step each time it is called.

    Args:
        student: to be trained
        images: [N, H, W, 3] of bytes
        labels: -1 if there is none
        size: of a batch
        n_labelled: of its rows
        workers: processes of the DataLoader
    """
    teacher = copy.deepcopy(student).requires_grad_(False)
    labelled = [i for i, label in enumerate(labels) if label != UNLABELLED]
    unlabelled = [i for i, label in enumerate(labels) if label == UNLABELLED]
    loader = DataLoader(
        TwoViews(images, labels),
        batch_sampler=TwoStreams(labelled, unlabelled, size, n_labelled),
        num_workers=workers,
    )
    batches = iter(loader)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        first, second, target = next(batches)
        logits = student(first)
        with torch.no_grad():
            other = teacher(second)
        cost = F.cross_entropy(logits, target, ignore_index=UNLABELLED)
        cost = cost + 10.0 * F.mse_loss(logits.softmax(1), other.softmax(1))
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                ours.mul_(0.99).add_(theirs, alpha=0.01)

    return step
