"""Loops that train without an error message and have no living teacher; `mt.Watch` names the fault of each.

The first six were found in published toolkits. Run it: python examples/silent_failures.py
"""

import copy
import warnings

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

import meanteacher as mt


class Sound:
    """A loop as it should be. The others below replace one part of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2)]
        self.student: nn.Module = nn.Sequential(*layers)
        self.teacher: nn.Module = mt.Teacher(self.student, decay=0.97)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)

    def train(self, steps: int = 50) -> mt.Watch:
        x, y = make_moons(64, noise=0.1, random_state=0)
        points, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
        labels[6:] = mt.UNLABELLED
        watch = mt.Watch(self.student, self.evaluated())
        for _ in range(steps):
            logits = self.student(points + 0.2 * torch.randn_like(points))
            target = self.target(points + 0.05 * torch.randn_like(points))
            costs = {
                "classification": mt.costs.classification_cost(logits, labels),
                "consistency": 10.0 * self.consistency(logits.softmax(1), target.softmax(1)),
            }
            watch.before_backward(costs)
            self.optimizer.zero_grad()
            sum(costs.values(), torch.zeros(())).backward()
            self.step()
            watch.after_step()
        return watch

    def target(self, x: Tensor) -> Tensor:
        logits: Tensor = self.teacher(x)
        return logits

    def consistency(self, student: Tensor, teacher: Tensor) -> Tensor:
        return (student - teacher).square().mean()

    def step(self) -> None:
        self.optimizer.step()
        self.update()

    def update(self) -> None:
        assert isinstance(self.teacher, mt.Teacher)
        self.teacher.update(self.student)

    def evaluated(self) -> nn.Module:
        return self.teacher


class TeacherComparedWithItself(Sound):
    """The student's side of the cost is read from the teacher's output, so the cost is zero."""

    def consistency(self, student: Tensor, teacher: Tensor) -> Tensor:
        return (teacher - teacher).square().mean()


class DetachedStudent(Sound):
    """The value of the cost is plausible, and its gradient is zero."""

    def consistency(self, student: Tensor, teacher: Tensor) -> Tensor:
        return (student.detach() - teacher).square().mean()


class NoStep(Sound):
    """The trainer computes the costs and forgets to step."""

    def step(self) -> None:
        self.update()


class EarlyUpdate(Sound):
    """The average is taken before the optimiser's step."""

    def step(self) -> None:
        self.update()
        self.optimizer.step()


class StudentEvaluated(Sound):
    """The student is evaluated in place of the teacher."""

    def evaluated(self) -> nn.Module:
        return self.student


class TeacherWithGradient(Sound):
    """The teacher is a plain copy, and its pass is not under `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.student)

    def update(self) -> None:
        with torch.no_grad():
            for average, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                average.lerp_(new, 0.03)


class FrozenAverage(Sound):
    """The teacher never follows."""

    def update(self) -> None:
        pass


class EvaluationMode(Sound):
    """The student was evaluated before and stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.student.eval()


LOOPS = {
    Sound: None,
    TeacherComparedWithItself: "dead-cost/consistency",
    DetachedStudent: "dead-cost/consistency",
    NoStep: "still-student",
    EarlyUpdate: "early-update",
    StudentEvaluated: "teacher-is-student",
    TeacherWithGradient: "teacher-gradient",
    FrozenAverage: "stale-teacher",
    EvaluationMode: "student-in-evaluation",
}
"""Loop -> the alarm that it raises."""


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # printed below
    for loop in LOOPS:
        print(f"{loop.__name__}: {loop.__doc__}")
        for alarm in loop().train().alarms:
            print(f"  step {alarm.step}, {alarm.kind}: {alarm.sentence}")
