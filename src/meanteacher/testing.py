"""The requirements on methods, views and networks, as functions: for the tests of this package and for yours.

    from meanteacher.testing import check_method

    def test_my_method():
        check_method(MyMethod(decay=0.99, buffers="own", weight=2.0))

Each function raises an AssertionError that names the broken requirement. Give a method that is active from its first
steps on: a constant weight instead of a ramp, a low threshold.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Augment, Batch, Method, Problem, StepOutput
from meanteacher.costs import Confident, ConsistencyCost
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.models import ModelSpec
from meanteacher.passes import class_output
from meanteacher.schedules import as_schedule
from meanteacher.teacher import Memory, Teacher, teacher_of

__all__ = ["check_method", "check_network", "check_view"]

PROBLEM = Problem(n_classes=3, n_examples=60, input_shape=(1, 6, 6))
"""The problem of the checks: small images of three classes."""


class SmallNet(nn.Module):
    """Batch normalisation, dropout and a convolution: all that a method can get wrong."""

    def __init__(self, n_channels: int = 1, n_classes: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(n_channels, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, n_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def check_method(method: Method) -> None:
    """Check a method on a small network and made-up images.

    Every cost trains something; nothing but the average moves the teacher; only `after_step` writes the memory; the
    student's statistics count its views alone; steps are reproducible; the predictor classifies in evaluation mode and
    leaves the student's mode alone; the method is a frozen value.

    >>> from meanteacher import MeanTeacher
    >>> check_method(MeanTeacher(decay=0.9, buffers="own", weight=2.0))
    """
    is_a_frozen_value(method)
    every_cost_moves_the_student(method)
    nothing_but_the_average_moves_the_teacher(method)
    teacher_is_the_average_of_past_students(method)
    if isinstance(method, ConsistencyMethod):
        no_gradient_flows_through_a_sharpened_target(method)
    predictor_classifies(method)
    forward_writes_no_memory(method)
    statistics_count_views_alone(method)
    steps_are_reproducible(method)


def example(method: Method, step: int) -> Batch:
    """The batch of a step: stripes of three classes with noise, other noise in each role; a quarter has labels."""
    draws = torch.Generator().manual_seed(step)
    index = (5 * step + torch.arange(12)) % PROBLEM.n_examples
    truth = index % PROBLEM.n_classes
    images = torch.zeros(12, *PROBLEM.input_shape)
    for label in range(PROBLEM.n_classes):
        images[truth == label, :, :, 2 * label : 2 * label + 2] = 2.0
    views = {role: images + torch.randn(images.shape, generator=draws) for role in method.roles}
    return Batch(views, truth.where(torch.arange(12) < 3, UNLABELLED), index)


def begin(method: Method, *, warm_up: int = 3) -> tuple[nn.Module, nn.Module]:
    """A student and its memory after a few steps, so that the two differ."""
    torch.manual_seed(0)
    student = SmallNet().train()
    memory = method.init(student, PROBLEM).train()
    _train(method, student, memory, warm_up)
    return student, memory


def _train(
    method: Method, student: nn.Module, memory: nn.Module, steps: int, each: Callable[[], None] = lambda: None
) -> None:
    optimizer = torch.optim.SGD(_trained(student, memory), lr=0.1)
    for step in range(steps):
        batch = example(method, step)
        output = method.forward(student, memory, batch, step)
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)
        each()


def _trained(student: nn.Module, memory: nn.Module) -> list[nn.Parameter]:
    return [p for module in (student, memory) for p in module.parameters() if p.requires_grad]


def _weights(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in network.parameters()])


def teacher_in(memory: nn.Module) -> nn.Module | None:
    """The teacher's network, if the memory has a teacher."""
    return teacher_of(memory).network if isinstance(memory, Teacher | Memory) else None


def every_cost_moves_the_student(method: Method) -> None:
    """Each cost on its own, not only their sum, trains the student or what the method trains beside it."""
    student, memory = begin(method)
    every_cost_is_alive(method.forward(student, memory, example(method, 3), 3), _trained(student, memory))


def every_cost_is_alive(output: StepOutput, trained: list[nn.Parameter]) -> None:
    """Each cost of a step has a gradient."""
    for name, cost in output.costs.items():
        assert cost.weight != 0, f"the cost {name} is inactive, so it cannot be checked; give it a constant weight"
        assert cost.value.requires_grad, f"the cost {name} has no path to the student"
        gradients = torch.autograd.grad(cost.value, trained, retain_graph=True, allow_unused=True)
        length = sum(float(g.abs().sum()) for g in gradients if g is not None)
        assert length > 0, f"the gradient of the cost {name} is exactly zero"


def nothing_but_the_average_moves_the_teacher(method: Method) -> None:
    """Neither gradient nor optimiser moves the teacher, and `after_step` does."""
    student, memory = begin(method)
    teacher = teacher_in(memory)
    if teacher is None:
        return
    before = _weights(teacher)
    batch = example(method, 3)
    output = method.forward(student, memory, batch, 3)
    output.total.backward()
    torch.optim.SGD([*student.parameters(), *memory.parameters()], lr=1.0).step()
    assert all(p.grad is None for p in teacher.parameters()), "a gradient reached the teacher"
    assert torch.equal(_weights(teacher), before), "the teacher moved before the average was taken"
    method.after_step(student, memory, batch, output, 3)
    assert not torch.equal(_weights(teacher), before), "the average was not taken"


def teacher_is_the_average_of_past_students(method: Method) -> None:
    """The plain mean of the students so far until the decay is reached, then the exponential average."""
    student, memory = begin(method, warm_up=0)
    teacher = teacher_in(memory)
    if teacher is None or not hasattr(method, "decay"):
        return
    students: list[Tensor] = []
    _train(method, student, memory, 25, lambda: students.append(_weights(student)))
    expected = students[0]
    for step, past in enumerate(students):
        alpha = min(step / (step + 1), as_schedule(method.decay)(step))
        expected = alpha * expected + (1 - alpha) * past
    distance = float((_weights(teacher) - expected).abs().max())
    assert distance < 1e-4, "the teacher is not the average of the past students with the method's decay and warm-up"


@dataclasses.dataclass(frozen=True)
class _SeenTargets(ConsistencyCost):
    """A confident cost that keeps its values and their targets."""

    seen: list[tuple[Tensor, Tensor]] = dataclasses.field(default_factory=list)

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        value = Confident(threshold=0.0, temperature=0.1)(student_logits, target_logits, rows)
        self.seen.append((value, target_logits))
        return value


def no_gradient_flows_through_a_sharpened_target(method: ConsistencyMethod[Any]) -> None:
    """It would be ten times as large as the student's at a temperature of 0.1, and train the target."""
    student, memory = begin(method)
    cost = _SeenTargets()
    dataclasses.replace(method, cost=cost).forward(student, memory, example(method, 3), 3)
    ((value, target),) = cost.seen
    assert value.requires_grad, "the cost has no path to the student"
    if target.requires_grad:
        (gradient,) = torch.autograd.grad(value, target, allow_unused=True)
        assert gradient is None or not gradient.any(), "a gradient flows through the sharpened target"


def predictor_classifies(method: Method) -> None:
    """The predictor returns logits and is in evaluation mode; the student's mode is unchanged."""
    student, memory = begin(method)
    modes = [module.training for module in student.modules()]
    predictor = method.predictor(student, memory)
    assert modes == [module.training for module in student.modules()], (
        "predictor() has changed the student's mode, in which training would go on; return a copy of the student"
    )
    assert not any(module.training for module in predictor.modules()), "the predictor is not in evaluation mode"
    shape = tuple(class_output(predictor(torch.zeros(2, *PROBLEM.input_shape))).shape)
    assert shape == (2, PROBLEM.n_classes), f"the predictor returns {list(shape)} for two images and three classes"


def forward_writes_no_memory(method: Method) -> None:
    """Only `after_step` may change the memory, except for running statistics."""
    student, memory = begin(method)

    def remembered() -> dict[str, Tensor]:
        return {name: x.clone() for name, x in memory.state_dict().items() if not _is_statistic(name)}

    before = remembered()
    for step in (3, 4):
        method.forward(student, memory, example(method, step), step)
    changed = [name for name, value in remembered().items() if not torch.equal(before[name], value)]
    assert not changed, f"forward() has written {', '.join(changed)}; only after_step() may"


def _is_statistic(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("running_") or last == "num_batches_tracked"


def statistics_count_views_alone(method: Method) -> None:
    """However many passes a method makes, the student's running statistics count views of the batch and nothing else.

    Adversarial, mixed and made-up images go through `passes.untracked`.
    """
    student, memory = begin(method, warm_up=0)
    batch = example(method, 0)
    known = {tuple(row.flatten().tolist()) for view in batch.views.values() for row in view}
    counter = dict(student.named_buffers())["layers.1.num_batches_tracked"]
    inputs: list[tuple[int, Tensor]] = []
    hook = student.register_forward_pre_hook(lambda _, given: inputs.append((int(counter), given[0].detach())))
    method.forward(student, memory, batch, 0)
    hook.remove()
    counts = [count for count, _ in inputs[1:]] + [int(counter)]
    tracked = [x for (before, x), after in zip(inputs, counts, strict=True) if after > before]
    assert tracked, "the student's statistics counted no pass"
    for x in tracked:
        assert {tuple(row.flatten().tolist()) for row in x} <= known, (
            "the student's running statistics count images that are no view of the batch; use passes.untracked for "
            "an extra pass"
        )


def steps_are_reproducible(method: Method) -> None:
    """The same state, batch and global seed give the same costs to the bit."""
    student, memory = begin(method)
    seen = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            costs = method.forward(student, memory, example(method, 3), 3).costs
        seen.append({name: cost.value.item() for name, cost in costs.items()})
    assert seen[0] == seen[1], f"the same step has the costs {seen[0]} and {seen[1]}"


def is_a_frozen_value(value: Any) -> None:
    """A recipe compares its parts, and describes them in its record."""
    name = type(value).__name__
    params = getattr(type(value), "__dataclass_params__", None)
    assert params is not None, f"{name} is no dataclass, so a recipe cannot describe it"
    assert params.frozen, f"{name} can be changed; declare it with @dataclass(frozen=True)"
    again = dataclasses.replace(value)
    assert again == value, f"two equal {name} do not compare as equal"
    assert hash(again) == hash(value), f"two equal {name} have different hashes"
    assert " at 0x" not in repr(value), f"the description of {name} has an address of memory in it: {value!r}"


def check_view(view: Augment, shape: tuple[int, ...] = (6, 3, 8, 10)) -> None:
    """Check a view on random images [B, ...].

    It keeps the type, gives finite values, leaves the original as it is, draws from the given generator alone, shows
    the same for the same draws, takes an empty batch, and is a frozen value.

    >>> from meanteacher.views import Noise
    >>> check_view(Noise(0.1))
    """
    is_a_frozen_value(view)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(9))
    before, state = images.clone(), torch.get_rng_state()
    seen = view(images, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state), "the view draws from torch's global generator"
    assert (len(seen), seen.dtype, seen.device) == (len(images), images.dtype, images.device), (
        f"the view shows {list(seen.shape)} in {seen.dtype} for {list(images.shape)} in {images.dtype}"
    )
    assert bool(seen.isfinite().all()), "the view shows values that are not finite"
    assert torch.equal(view(images, torch.Generator().manual_seed(3)), seen), "equal generators show different images"
    view(images, torch.Generator().manual_seed(3)).fill_(1)
    assert torch.equal(images, before), "the view has written to the original images"
    empty = view(images[:0], torch.Generator().manual_seed(3))
    assert empty.shape == (0, *seen.shape[1:]), f"an empty batch is shown as {list(empty.shape)}"


def check_network(spec: ModelSpec, problem: Problem | None = None) -> None:
    """Check a network on random inputs.

    It returns the problem's logits, and in evaluation each row's own; a gradient reaches every trained parameter; state
    and copies hold all of it; its description is a frozen value.

    >>> from meanteacher.models import MlpSpec
    >>> check_network(MlpSpec(hidden=(8,)))
    """
    is_a_frozen_value(spec)
    problem = problem or Problem(n_classes=4, n_examples=20, input_shape=(3, 32, 32))
    x = torch.randn(6, *problem.input_shape, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    network, other = spec.build(problem).train(), spec.build(problem)
    output = network(x)
    outputs = output if isinstance(output, tuple) else (output,)
    for logits in outputs:
        assert logits.shape == (6, problem.n_classes, *problem.label_shape), f"the logits are {list(logits.shape)}"
    sum((logits.softmax(1)[:, 0].sum() for logits in outputs), torch.zeros(())).backward()
    dead = [name for name, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert not dead, f"no gradient reaches {', '.join(dead)}"
    network.eval()
    with torch.no_grad():
        together = class_output(network(x))
        alone = torch.cat([class_output(network(row)) for row in x.split(1)])
        assert torch.allclose(together, alone, rtol=1e-3, atol=1e-4), "in evaluation a row depends on the others"
        assert torch.equal(class_output(copy.deepcopy(network)(x)), together), "a deep copy predicts otherwise"
        other.load_state_dict(network.state_dict())
        assert torch.equal(class_output(other.eval()(x)), together), "the state does not hold all of the network"
