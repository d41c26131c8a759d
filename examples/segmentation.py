"""Mean Teacher for segmentation: a small U-Net, generated images, 8 of them with labels and 200 without.

The student sees each image mirrored or not, and with noise. The teacher sees it as it is, and its prediction is
mirrored as the student's image was. Run it: python examples/segmentation.py
"""

import statistics

import torch
from torch import Tensor, nn

from meanteacher import UNLABELLED, Teacher
from meanteacher.costs import classification_cost, softmax_mse
from meanteacher.schedules import SigmoidRampUp
from meanteacher.views import Warp

N_LABELLED, N_UNLABELLED, N_TEST, SIZE, N_CLASSES = 8, 200, 100, 24, 3


def shapes(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy images [n, 1, 24, 24] of lying (class 1) and standing ellipses (class 2), and the class of each pixel."""

    def draw(*shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator)

    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    slope = 2 * draw(2, 1, 1) - 1
    images = (slope[:, 0] * x + slope[:, 1] * y) / SIZE
    labels = torch.zeros(n, SIZE, SIZE, dtype=torch.int64)
    for kind, (width, height) in ((1, (7, 3)), (2, (3, 7))):
        centre, size = 4 + (SIZE - 8) * draw(2, 1, 1), 0.8 + 0.4 * draw(1, 1)
        inside = ((x - centre[:, 0]) / width) ** 2 + ((y - centre[:, 1]) / height) ** 2 < size**2
        images = torch.where(inside, images + 1 + draw(1, 1), images)
        labels[inside] = kind
    return (images + 0.5 * torch.randn(n, SIZE, SIZE, generator=generator))[:, None], labels


class UNet(nn.Module):
    """Two steps down, two up; logits [B, C, H, W]."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.second, self.third = _block(1, width), _block(width, 2 * width), _block(2 * width, 4 * width)
        self.fourth, self.fifth = _block(6 * width, 2 * width), _block(3 * width, width)
        self.head = nn.Conv2d(width, N_CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.first(images)
        middle = self.second(nn.functional.max_pool2d(fine, 2))
        x = self.third(nn.functional.max_pool2d(middle, 2))
        x = self.fourth(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), middle], 1))
        x = self.fifth(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), fine], 1))
        logits: Tensor = self.head(x)
        return logits


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def train(seed: int, *, weight: float, steps: int) -> float:
    """Train, and return the teacher's error: one minus the mean intersection over union of the three classes.

    Without weight the same passes are made, and the unlabelled images train nothing but batch statistics.
    """
    torch.manual_seed(seed)
    draws = torch.Generator().manual_seed(seed)
    images, truth = shapes(N_LABELLED + N_UNLABELLED, draws)
    test_images, test_truth = shapes(N_TEST, draws)
    labels = truth.clone()
    labels[N_LABELLED:] = UNLABELLED

    student = UNet()
    teacher = Teacher(student, decay=0.95)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.003)
    ramp = SigmoidRampUp(value=weight, steps=steps // 2)
    warp = Warp(flip=True)  # a rotation would turn one class into the other
    for step in range(steps):
        rows = torch.cat([torch.randint(N_LABELLED, (4,)), torch.randint(len(images), (6,))])
        x, y = images[rows], labels[rows]
        move = warp.draw(x, draws)
        logits = student(move(x) + 0.3 * torch.randn(x.shape))
        target = move(teacher(x))
        cost = classification_cost(logits, move.labels(y)) + ramp(step) * softmax_mse(logits, target, rows=move.seen())
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        teacher.update(student)

    with torch.no_grad():
        guesses = teacher.predictor()(test_images).argmax(1)
    overlaps = [
        float(((guesses == k) & (test_truth == k)).sum() / ((guesses == k) | (test_truth == k)).sum())
        for k in range(N_CLASSES)
    ]
    return 1 - statistics.mean(overlaps)


def main(seeds: tuple[int, ...] = (0, 1, 2, 3, 4), steps: int = 300) -> dict[str, list[float]]:
    """The errors of both, seed by seed."""
    return {
        name: [train(seed, weight=weight, steps=steps) for seed in seeds]
        for name, weight in (("supervised-only", 0.0), ("Mean Teacher", 20.0))
    }


if __name__ == "__main__":
    for name, errors in main().items():
        print(f"{name:16} {' '.join(f'{e:6.1%}' for e in errors)}   mean {statistics.mean(errors):.1%}")
