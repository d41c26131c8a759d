"""Mean Teacher in a loop of Hugging Face Accelerate: pip install accelerate, then python examples/accelerate_loop.py

The teacher is made of the student before `prepare` wraps it, and follows the unwrapped student. On several GPUs every
process keeps the same teacher, because all students are equal after each step. `save_state` saves it, too.
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from meanteacher import UNLABELLED, Teacher, Watch
from meanteacher.costs import classification_cost, softmax_mse


def main(epochs: int = 40, accumulate: int = 1, *, cpu: bool = False) -> tuple[float, Teacher, Accelerator]:
    """Train on two moons, 500 points and 6 labels, and return the teacher's error."""
    accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=accumulate)
    torch.manual_seed(0)
    x, y = make_moons(500, noise=0.1, random_state=0)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    shown = torch.cat([(truth == k).nonzero().flatten()[:3] for k in (0, 1)])
    labels = torch.full_like(truth, UNLABELLED).index_copy(0, shown, truth[shown])
    # The labelled points are in every batch of 100: as often as all others together.
    often = torch.cat([shown.repeat(80), torch.arange(len(points))])

    student: nn.Module = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    teacher = Teacher(student, decay=0.97).to(accelerator.device)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.003)
    loader = DataLoader(TensorDataset(points[often], labels[often]), batch_size=100, shuffle=True)
    student, optimizer, loader = accelerator.prepare(student, optimizer, loader)
    accelerator.register_for_checkpointing(teacher)
    watch = Watch(accelerator.unwrap_model(student), teacher)

    for _ in range(epochs):
        for batch, batch_labels in loader:
            with accelerator.accumulate(student):
                logits = student(batch + 0.2 * torch.randn_like(batch))
                target = teacher(batch + 0.05 * torch.randn_like(batch))
                weight = 20.0 * min(1.0, teacher.n_updates / 100)
                costs = {"classification": classification_cost(logits, batch_labels)}
                costs["consistency"] = weight * softmax_mse(logits, target)
                watch.before_backward(costs)
                accelerator.backward(costs["classification"] + costs["consistency"])
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:  # with accumulated gradients not every batch ends with a step
                teacher.update(accelerator.unwrap_model(student))
                watch.after_step()

    with torch.no_grad():
        guesses = teacher.predictor()(points.to(accelerator.device)).argmax(1).cpu()
    return float((guesses != truth).float().mean()), teacher, accelerator


if __name__ == "__main__":
    print(f"Teacher error: {main()[0]:.1%}")
