"""Supervised-only: the classification cost, nothing else.

What every other method is compared with. The unlabelled points are in the batch, and no cost uses them.

Two moons, six labels among 500 points: python examples/methods/supervised.py
"""

import torch
from sklearn.datasets import make_moons
from torch import nn

from meanteacher import UNLABELLED, Batch, Problem
from meanteacher.methods import Supervised
from meanteacher.schedules import Constant


def main(seed: int = 0, steps: int = 300) -> float:
    """Train, and return the error on all points."""
    torch.manual_seed(seed)
    x, y = make_moons(500, noise=0.1, random_state=seed)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    labels = torch.full_like(truth, UNLABELLED)
    for label in (0, 1):
        labels[(truth == label).nonzero()[:3]] = label

    student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    method = Supervised(decay=Constant(0.97), buffers="average")
    memory = method.init(student, Problem(n_classes=2, n_examples=len(points), input_shape=(2,)))
    optimizer = torch.optim.Adam(student.parameters(), lr=0.003)

    for step in range(steps):
        views = {"student": points + 0.2 * torch.randn_like(points)}
        batch = Batch(views, labels, torch.arange(len(points)))
        output = method.forward(student, memory, batch, step)
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)

    predicted = method.predictor(student, memory).eval()(points).argmax(1)
    return float((predicted != truth).float().mean())


if __name__ == "__main__":
    print(f"Error: {main():.1%}")
