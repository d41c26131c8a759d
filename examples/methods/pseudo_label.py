"""Pseudo-label (Lee 2013): the network's own predictions as labels.

An unlabelled point is trained on the class that the network finds most probable.

Two moons, six labels among 500 points: python examples/methods/pseudo_label.py
"""

import torch
from sklearn.datasets import make_moons
from torch import nn

from meanteacher import UNLABELLED, Batch, Problem
from meanteacher.methods import PseudoLabel
from meanteacher.schedules import Constant, SigmoidRampUp


def main(seed: int = 0, steps: int = 300) -> float:
    """Train, and return the error on all points."""
    torch.manual_seed(seed)
    x, y = make_moons(500, noise=0.1, random_state=seed)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    labels = torch.full_like(truth, UNLABELLED)
    for label in (0, 1):
        labels[(truth == label).nonzero()[:3]] = label

    student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    weight = SigmoidRampUp(value=1.0, steps=steps // 10)
    method = PseudoLabel(decay=Constant(0.97), buffers="average", weight=weight)
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
