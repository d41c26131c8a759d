"""Mean Teacher with the Trainer of Hugging Face: pip install transformers accelerate, then run this file.

The model that the Trainer is given has both networks in it. So its checkpoints hold the teacher, and evaluation and
prediction, which are in evaluation mode, use the teacher. A callback updates it after every step of the optimiser.
"""

from tempfile import mkdtemp
from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from meanteacher import UNLABELLED, Teacher, Watch
from meanteacher.costs import classification_cost, softmax_mse


class StudentAndTeacher(nn.Module):
    def __init__(self, student: nn.Module, *, weight: float = 20.0, decay: float = 0.97) -> None:
        super().__init__()
        self.student, self.teacher = student, Teacher(student, decay)
        self.weight = weight
        self.watch = Watch(self.student, self.teacher)

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if not self.training:
            logits = self.teacher(points)
            return {"loss": classification_cost(logits, labels), "logits": logits}
        logits = self.student(points + 0.2 * torch.randn_like(points))
        target = self.teacher(points + 0.05 * torch.randn_like(points))
        weight = self.weight * min(1.0, self.teacher.n_updates / 100)
        costs = {"classification": classification_cost(logits, labels)}
        costs["consistency"] = weight * softmax_mse(logits, target)
        self.watch.before_backward(costs)
        return {"loss": costs["classification"] + costs["consistency"], "logits": logits}


class UpdatesTeacher(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Called after a step of the optimiser, which with accumulated gradients is not every batch."""
        model = given["model"]
        model.teacher.update(model.student)
        model.watch.after_step()


def main(
    steps: int = 400, accumulate: int = 1, folder: str | None = None, resume: bool = False
) -> tuple[float, StudentAndTeacher]:
    """Train on two moons, 500 points and 6 labels, and return the teacher's error."""
    torch.manual_seed(0)
    x, y = make_moons(500, noise=0.1, random_state=0)
    points, truth = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    shown = torch.cat([(truth == k).nonzero().flatten()[:3] for k in (0, 1)])
    labels = torch.full_like(truth, UNLABELLED).index_copy(0, shown, truth[shown])
    # The labelled points are in every batch of 100: as often as all others together.
    often = torch.cat([shown.repeat(80), torch.arange(len(points))])
    rows = [{"points": points[row], "labels": labels[row]} for row in often.tolist()]

    student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    model = StudentAndTeacher(student)
    arguments = TrainingArguments(
        output_dir=folder or mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=100,
        gradient_accumulation_steps=accumulate,
        learning_rate=0.003,
        lr_scheduler_type="constant",
        save_steps=20,
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[UpdatesTeacher()])
    trainer.train(resume_from_checkpoint=resume)
    everything = [{"points": point, "labels": label} for point, label in zip(points, truth, strict=True)]
    guesses = torch.tensor(trainer.predict(everything).predictions).argmax(1)
    return float((guesses != truth).float().mean()), model


if __name__ == "__main__":
    print(f"Teacher error: {main()[0]:.1%}")
