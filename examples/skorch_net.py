"""Mean Teacher as a net of skorch: pip install skorch, then python examples/skorch_net.py

The module has both networks in it: the two in training, the teacher in evaluation mode. So `predict` answers by the
teacher, and a pickled net or its saved parameters hold it. skorch gives the optimiser all parameters; those of the
teacher require no gradient, and no optimiser moves them.
"""

from typing import Any

import torch
from sklearn.datasets import make_moons
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from meanteacher import UNLABELLED, Teacher, Watch
from meanteacher.costs import classification_cost, softmax_mse


class StudentAndTeacher(nn.Module):
    def __init__(self, decay: float = 0.97) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.teacher = Teacher(self.student, decay)

    def forward(self, points: Tensor) -> Any:
        if not self.training:
            return self.teacher(points)
        noise = torch.randn_like(points)
        return self.student(points + 0.2 * noise), self.teacher(points + 0.05 * torch.randn_like(points))


class MeanTeacherNet(NeuralNetClassifier):
    """A net with the consistency cost, which takes a step of the optimiser every `accumulate` batches."""

    def __init__(self, *args: Any, weight: float = 20.0, accumulate: int = 1, **options: Any) -> None:
        super().__init__(*args, **options)
        self.weight, self.accumulate = weight, accumulate

    def initialize_module(self) -> "MeanTeacherNet":
        super().initialize_module()
        self.watch_ = Watch(self.module_.student, self.module_.teacher)
        return self

    def get_loss(self, y_pred: Any, y_true: Tensor, X: Any = None, training: bool = False) -> Tensor:
        if not training:
            return classification_cost(y_pred, y_true)
        logits, target = y_pred
        weight = self.weight * min(1.0, self.module_.teacher.n_updates / 100)
        costs = {"classification": classification_cost(logits, y_true)}
        costs["consistency"] = weight * softmax_mse(logits, target)
        self.watch_.before_backward(costs)
        return (costs["classification"] + costs["consistency"]) / self.accumulate

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        step = self.train_step_single(batch, **fit_params)
        if len(self.history[-1, "batches"]) % self.accumulate == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
            self.module_.teacher.update(self.module_.student)
            self.watch_.after_step()
        return step


def main(epochs: int = 40, accumulate: int = 1) -> tuple[float, MeanTeacherNet]:
    """Train on two moons, 500 points and 6 labels, and return the teacher's error."""
    torch.manual_seed(0)
    x, y = make_moons(500, noise=0.1, random_state=0)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    shown = torch.cat([(truth == k).nonzero().flatten()[:3] for k in (0, 1)])
    labels = torch.full_like(truth, UNLABELLED).index_copy(0, shown, truth[shown])
    # The labelled points are in every batch of 100: as often as all others together.
    often = torch.cat([shown.repeat(80), torch.arange(len(points))])

    net = MeanTeacherNet(
        StudentAndTeacher,
        criterion=nn.CrossEntropyLoss,  # for predict_proba, which then applies the softmax
        accumulate=accumulate,
        optimizer=torch.optim.Adam,
        lr=0.003,
        batch_size=100,
        max_epochs=epochs,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    )
    net.fit(points[often].numpy(), labels[often].numpy())
    return float((torch.tensor(net.predict(x.astype("float32"))) != truth).float().mean()), net


if __name__ == "__main__":
    print(f"Teacher error: {main()[0]:.1%}")
