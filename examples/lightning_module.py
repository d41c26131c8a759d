"""Mean Teacher as a LightningModule: pip install lightning, then python examples/lightning_module.py

The teacher is a part of the module, so it is moved, saved and loaded with it. It requires no gradient, and the
optimiser is given the student alone. It follows the student after every step of the optimiser, which with accumulated
gradients is not every batch.
"""

import lightning
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from meanteacher import UNLABELLED, Teacher, Watch
from meanteacher.costs import classification_cost, softmax_mse


class MeanTeacherModule(lightning.LightningModule):
    def __init__(self, student: nn.Module, *, weight: float = 20.0, decay: float = 0.97) -> None:
        super().__init__()
        self.student, self.teacher = student, Teacher(student, decay)
        self.weight = weight
        self.watch = Watch(self.student, self.teacher)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        points, labels = batch
        logits = self.student(points + 0.2 * torch.randn_like(points))
        target = self.teacher(points + 0.05 * torch.randn_like(points))
        weight = self.weight * min(1.0, self.global_step / 100)
        costs = {"classification": classification_cost(logits, labels)}
        costs["consistency"] = weight * softmax_mse(logits, target)
        self.watch.before_backward(costs)
        return costs["classification"] + costs["consistency"]

    def on_train_batch_end(self, outputs: object, batch: object, index: int) -> None:
        if self.global_step > self.teacher.n_updates:
            self.teacher.update(self.student)
            self.watch.after_step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.student.parameters(), lr=0.003)


def main(epochs: int = 40, accumulate: int = 1) -> tuple[float, MeanTeacherModule, lightning.Trainer]:
    """Train on two moons, 500 points and 6 labels, and return the teacher's error."""
    torch.manual_seed(0)
    x, y = make_moons(500, noise=0.1, random_state=0)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    shown = torch.cat([(truth == k).nonzero().flatten()[:3] for k in (0, 1)])
    labels = torch.full_like(truth, UNLABELLED).index_copy(0, shown, truth[shown])
    # The labelled points are in every batch of 100: as often as all others together.
    often = torch.cat([shown.repeat(80), torch.arange(len(points))])
    loader = DataLoader(TensorDataset(points[often], labels[often]), batch_size=100, shuffle=True)

    student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    module = MeanTeacherModule(student)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    with torch.no_grad():
        guesses = module.teacher.predictor()(points).argmax(1)
    return float((guesses != truth).float().mean()), module, trainer


if __name__ == "__main__":
    print(f"Teacher error: {main()[0]:.1%}")
