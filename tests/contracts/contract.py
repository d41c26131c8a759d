"""What every method must hold to, as functions: the tests apply them to our methods and to broken ones."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from meanteacher.core import Method, StepOutput
from meanteacher.costs import Confident, ConsistencyCost
from meanteacher.methods import PiModel
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.teacher import teacher_of
from meanteacher.train.checkpoint import trained_parameters
from support import N_CLASSES, PROBLEM, SmallNet, parameters_of, stream, train_steps


def begin(method: Method, *, warm_up: int = 3) -> tuple[nn.Module, nn.Module]:
    """A student and its memory after a few steps, so that the two differ."""
    torch.manual_seed(0)
    student = SmallNet().train()
    memory = method.init(student, PROBLEM).train()
    train_steps(method, student, memory, steps=warm_up)
    return student, memory


def teacher_in(memory: nn.Module) -> nn.Module:
    return teacher_of(memory).network


def every_cost_moves_the_student(method: Method) -> None:
    """Or what the method trains beside it; and each cost on its own, not only their sum."""
    student, memory = begin(method)
    every_cost_is_alive(method.forward(student, memory, stream()[3], 3), trained_parameters(student, memory))


def every_cost_is_alive(output: StepOutput, trained: list[nn.Parameter]) -> None:
    for name, cost in output.costs.items():
        assert cost.weight != 0, f"the cost {name} rests, so this tells nothing"
        assert cost.value.requires_grad, f"the cost {name} has no path to the student"
        gradients = torch.autograd.grad(cost.value, trained, retain_graph=True, allow_unused=True)
        length = sum(float(g.abs().sum()) for g in gradients if g is not None)
        assert length > 0, f"the gradient of the cost {name} is exactly zero"


def nothing_but_the_average_moves_the_teacher(method: Method) -> None:
    student, memory = begin(method)
    teacher = teacher_in(memory)
    before = parameters_of(teacher)
    output = method.forward(student, memory, stream()[3], 3)
    output.total.backward()
    torch.optim.SGD([*student.parameters(), *memory.parameters()], lr=1.0).step()
    assert all(p.grad is None for p in teacher.parameters()), "a gradient reached the teacher"
    assert torch.equal(parameters_of(teacher), before), "the teacher moved before the average was taken"
    method.after_step(student, memory, stream()[3], output, 3)
    assert not torch.equal(parameters_of(teacher), before), "the average was not taken"


def teacher_is_the_average_of_past_students(method: Method, decay: float) -> None:
    """The plain mean of the students so far until the decay takes over, the exponential average from there."""
    torch.manual_seed(0)
    student = SmallNet().train()
    memory = method.init(student, PROBLEM).train()
    students: list[torch.Tensor] = []
    train_steps(method, student, memory, steps=25, each=lambda _: students.append(parameters_of(student)))
    expected = students[0]
    for step, past in enumerate(students):
        alpha = min(step / (step + 1), decay)
        expected = alpha * expected + (1 - alpha) * past
    torch.testing.assert_close(parameters_of(teacher_in(memory)), expected, atol=1e-5, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class SeenTargets(ConsistencyCost):
    """A confident cost that keeps its values and their targets."""

    seen: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)

    def __call__(
        self, student_logits: torch.Tensor, target_logits: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        value = Confident(threshold=0.0, temperature=0.1)(student_logits, target_logits, rows)
        self.seen.append((value, target_logits))
        return value


def no_gradient_flows_through_a_sharpened_target(method: ConsistencyMethod[Any]) -> None:
    """It would be ten times as large as the student's at a temperature of 0.1, and train the target."""
    student, memory = begin(method)
    cost = SeenTargets()
    dataclasses.replace(method, cost=cost).forward(student, memory, stream()[3], 3)
    ((value, target),) = cost.seen
    assert value.requires_grad, "the cost has no path to the student"
    if target.requires_grad:
        (gradient,) = torch.autograd.grad(value, target, allow_unused=True)
        assert gradient is None or not gradient.any(), "a gradient flows through the sharpened target"


def predictor_classifies(method: Method) -> None:
    student, memory = begin(method)
    predictor = method.predictor(student, memory).eval()
    assert predictor(torch.zeros(2, 1, 6, 6)).shape == (2, N_CLASSES)


def forward_writes_no_memory(method: Method) -> None:
    """Only `after_step` may change what the method remembers, but for the teacher's own running statistics."""
    student, memory = begin(method)

    def remembered() -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in memory.state_dict().items() if "layers.1.r" not in name}

    before = remembered()
    for step in (3, 4):
        method.forward(student, memory, stream()[step], step)
    after = remembered()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed in ([], ["network.layers.1.num_batches_tracked"])


def statistics_count_one_pass_per_step(method: Method) -> None:
    """However many passes a method makes, the student's running statistics see real images, once per training pass.

    The Pi model's two passes are both training passes of real views; adversarial, clean and made-up ones are not.
    """
    student, memory = begin(method, warm_up=0)
    method.forward(student, memory, stream()[0], 0)
    counted = int(dict(student.named_buffers())["layers.1.num_batches_tracked"])
    assert counted == (2 if isinstance(method, PiModel) else 1)


def steps_are_reproducible(method: Method) -> None:
    """The same state, batch and global seed give the same costs to the bit."""
    student, memory = begin(method)
    seen = []
    for _ in range(2):
        torch.manual_seed(7)
        with torch.random.fork_rng():
            costs = method.forward(student, memory, stream()[3], 3).costs
        seen.append({name: cost.value.item() for name, cost in costs.items()})
    assert seen[0] == seen[1]


def is_a_frozen_value(value: Any) -> None:
    """Methods, views and networks alike: a recipe compares its parts, and describes them in its record."""
    assert dataclasses.replace(value) == value
    assert hash(dataclasses.replace(value)) == hash(value)
    assert " at 0x" not in repr(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.anything = 1
