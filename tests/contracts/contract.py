"""What every method must hold to, as functions: the tests apply them to our methods and to broken ones."""

import torch
from torch import nn

from meanteacher.core import Method
from meanteacher.teacher import Teacher
from support import N_CLASSES, PROBLEM, SmallNet, parameters_of, stream, train_steps


def begin(method: Method, *, warm_up: int = 3) -> tuple[nn.Module, nn.Module]:
    """A student and its memory after a few steps, so that the two differ."""
    torch.manual_seed(0)
    student = SmallNet().train()
    memory = method.init(student, PROBLEM).train()
    train_steps(method, student, memory, steps=warm_up)
    return student, memory


def every_cost_moves_the_student(method: Method) -> None:
    student, memory = begin(method)
    output = method.forward(student, memory, stream()[3], 3)
    for name, cost in output.costs.items():
        assert cost.requires_grad, f"the cost {name} has no path to the student"
        gradients = torch.autograd.grad(cost, list(student.parameters()), retain_graph=True, allow_unused=True)
        length = sum(float(g.abs().sum()) for g in gradients if g is not None)
        assert length > 0, f"the gradient of the cost {name} is exactly zero"


def nothing_but_the_average_moves_the_teacher(method: Method) -> None:
    student, memory = begin(method)
    before = parameters_of(memory)
    output = method.forward(student, memory, stream()[3], 3)
    torch.stack(list(output.costs.values())).sum().backward()
    torch.optim.SGD([*student.parameters(), *memory.parameters()], lr=1.0).step()
    assert all(p.grad is None for p in memory.parameters()), "a gradient reached the teacher"
    assert torch.equal(parameters_of(memory), before), "the teacher moved before the average was taken"
    method.after_step(student, memory, stream()[3], output, 3)
    assert not torch.equal(parameters_of(memory), before), "the average was not taken"


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
    assert isinstance(memory, Teacher)
    torch.testing.assert_close(parameters_of(memory.network), expected, atol=1e-5, rtol=1e-5)


def predictor_classifies(method: Method) -> None:
    student, memory = begin(method)
    predictor = method.predictor(student, memory).eval()
    assert predictor(torch.zeros(2, 1, 6, 6)).shape == (2, N_CLASSES)


def forward_writes_no_memory(method: Method) -> None:
    """Only `after_step` may change what the method remembers, but for a layer's own running statistics."""
    student, memory = begin(method)
    before = parameters_of(memory)
    for step in (3, 4):
        method.forward(student, memory, stream()[step], step)
    assert torch.equal(parameters_of(memory), before)
