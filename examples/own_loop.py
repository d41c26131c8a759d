"""Mean Teacher in a training loop of one's own, around any nn.Module.

Two moons with six labels among 500 points. Run it: python examples/own_loop.py
"""

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Problem
from meanteacher.methods import MeanTeacher
from meanteacher.schedules import Constant, SigmoidRampUp


def main(steps: int = 1000) -> float:
    """Train, and return the teacher's error on all points."""
    torch.manual_seed(0)
    x, y = make_moons(500, noise=0.1, random_state=0)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    labels = torch.full_like(truth, UNLABELLED)
    for label in (0, 1):
        shown = (truth == label).nonzero().flatten()[:3]
        labels[shown] = label

    student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    method = MeanTeacher(decay=Constant(0.97), buffers="own", weight=SigmoidRampUp(value=5.0, steps=steps // 2))
    problem = Problem(n_classes=2, n_examples=len(points), input_shape=(2,))
    teacher = method.init(student, problem)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)

    def noisy() -> Tensor:
        return points + 0.3 * torch.randn_like(points)

    for step in range(steps):
        batch = Batch({"student": noisy(), "teacher": noisy()}, labels, torch.arange(len(points)))
        output = method.forward(student, teacher, batch, step)
        optimizer.zero_grad()
        torch.stack(list(output.costs.values())).sum().backward()
        optimizer.step()
        method.after_step(student, teacher, batch, output, step)

    with torch.no_grad():
        predicted = method.predictor(student, teacher)(points).argmax(1)
    return float((predicted != truth).float().mean())


if __name__ == "__main__":
    print(f"The teacher errs on {main():.1%} of the points.")
