import pytest
import torch
from torch import Tensor, nn

from meanteacher.schedules import Constant, LinearWarmUp, SigmoidRampDown, StepChange
from meanteacher.train.optim import AdamSpec, OptimSpec, SgdSpec

RATE = LinearWarmUp(first=0.1, value=0.5, steps=4)
ADAM = AdamSpec(
    learning_rate=RATE,
    beta1=SigmoidRampDown(value=0.9, final=0.5, steps=5, total=6),
    beta2=StepChange(first=0.99, then=0.999, at=3),
)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def stepped(spec: OptimSpec, optimizer: torch.optim.Optimizer, step: int, p: nn.Parameter, gradient: Tensor) -> Tensor:
    """One step as the loop makes it; where the parameter is then."""
    spec.set_step(optimizer, step)
    p.grad = gradient.clone()
    optimizer.step()
    return p.detach().clone()


@pytest.mark.parametrize("spec", [ADAM, SgdSpec(learning_rate=RATE)], ids=["adam", "sgd"])
def test_the_learning_rate_of_every_group_follows_its_schedule(spec: OptimSpec) -> None:
    optimizer = spec.build([parameter(1.0)])
    optimizer.add_param_group({"params": [parameter(2.0)]})
    # A resumed run may begin anywhere: a step's values do not depend on the steps before.
    for step in [0, 1, 2, 3, 4, 100, 2]:
        spec.set_step(optimizer, step)
        assert [group["lr"] for group in optimizer.param_groups] == [RATE(step)] * 2


def test_both_betas_of_adam_follow_their_schedules() -> None:
    optimizer = ADAM.build([parameter(1.0)])
    optimizer.add_param_group({"params": [parameter(2.0)]})
    for step in [0, 2, 3, 5, 6, 1]:
        ADAM.set_step(optimizer, step)
        assert [group["betas"] for group in optimizer.param_groups] == [(ADAM.beta1(step), ADAM.beta2(step))] * 2


def test_adam_takes_the_papers_epsilon_and_no_weight_decay() -> None:
    (group,) = ADAM.build([parameter(1.0)]).param_groups
    assert group["eps"] == 1e-8
    assert group["weight_decay"] == 0
    assert (
        AdamSpec(learning_rate=RATE, beta1=RATE, beta2=RATE, epsilon=1e-3).build([parameter(1.0)]).defaults["eps"]
        == 1e-3
    )


def test_two_steps_of_adam_are_those_computed_by_hand() -> None:
    spec = AdamSpec(
        learning_rate=StepChange(first=0.1, then=0.05, at=1),
        beta1=StepChange(first=0.9, then=0.5, at=1),
        beta2=StepChange(first=0.99, then=0.999, at=1),
        epsilon=1e-3,
    )
    p = parameter(1.0, -2.0)
    optimizer = spec.build([p])
    g0, g1 = torch.tensor([0.5, -3.0]).double(), torch.tensor([0.2, 4.0]).double()
    # The first step, its bias corrected: the gradient divided by its own size.
    expected = torch.tensor([1.0, -2.0]).double() - 0.1 * g0 / (g0.abs() + 1e-3)
    torch.testing.assert_close(stepped(spec, optimizer, 0, p, g0), expected)
    mean, square = 0.1 * g0, 0.01 * g0**2
    mean, square = 0.5 * mean + 0.5 * g1, 0.999 * square + 0.001 * g1**2
    expected = expected - 0.05 * (mean / (1 - 0.5**2)) / ((square / (1 - 0.999**2)).sqrt() + 1e-3)
    torch.testing.assert_close(stepped(spec, optimizer, 1, p, g1), expected)


def test_two_steps_of_sgd_are_nesterov_momentum_with_weight_decay_by_hand() -> None:
    spec = SgdSpec(learning_rate=StepChange(first=0.1, then=0.05, at=1), momentum=0.9, weight_decay=0.01)
    start = torch.tensor([1.0, -2.0]).double()
    p = parameter(*start.tolist())
    optimizer = spec.build([p])
    g0, g1 = torch.tensor([0.5, -3.0]).double(), torch.tensor([0.2, 4.0]).double()
    decayed = g0 + 0.01 * start
    velocity = decayed
    expected = start - 0.1 * (decayed + 0.9 * velocity)
    torch.testing.assert_close(stepped(spec, optimizer, 0, p, g0), expected)
    decayed = g1 + 0.01 * expected
    velocity = 0.9 * velocity + decayed
    expected = expected - 0.05 * (decayed + 0.9 * velocity)
    torch.testing.assert_close(stepped(spec, optimizer, 1, p, g1), expected)


def test_sgd_has_the_papers_momentum_and_no_weight_decay_unless_asked_for() -> None:
    (group,) = SgdSpec(learning_rate=RATE).build([parameter(1.0)]).param_groups
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 0.0)


def test_sgd_without_momentum_is_plain_gradient_descent() -> None:
    spec = SgdSpec(learning_rate=Constant(0.1), momentum=0.0)
    p = parameter(1.0)
    optimizer = spec.build([p])
    for step, expected in enumerate([0.8, 0.6]):
        assert stepped(spec, optimizer, step, p, torch.tensor([2.0]).double()).item() == pytest.approx(expected)


@pytest.mark.parametrize("spec", [ADAM, SgdSpec(learning_rate=RATE)], ids=["adam", "sgd"])
def test_the_optimiser_trains_the_parameters_it_was_given_and_no_other(spec: OptimSpec) -> None:
    given, other = parameter(1.0), parameter(1.0)
    optimizer = spec.build([given])
    spec.set_step(optimizer, 0)
    given.grad, other.grad = torch.ones(1).double(), torch.ones(1).double()
    optimizer.step()
    assert given.item() < 1
    assert other.item() == 1
