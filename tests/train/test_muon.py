import copy

import pytest
import torch
from torch import Tensor, nn

from meanteacher.schedules import Constant, LinearWarmUp
from meanteacher.train import MuonSpec
from meanteacher.train.optim import orthogonal

SPEC = MuonSpec(learning_rate=Constant(0.1), sgd_learning_rate=Constant(0.2), momentum=0.9)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def moved(spec: MuonSpec, start: Tensor, gradients: list[Tensor]) -> Tensor:
    parameter = nn.Parameter(start.clone())
    optimizer = spec.build([parameter])
    for step, gradient in enumerate(gradients):
        spec.set_step(optimizer, step)
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_an_update_keeps_its_directions_and_makes_their_strengths_alike() -> None:
    u, _, v = torch.linalg.svd(draw(4, 12), full_matrices=False)
    strengths = torch.tensor([5.0, 2.0, 1.0, 0.5])
    result = orthogonal(u @ torch.diag(strengths) @ v)
    diagonal = u.T @ result @ v.T
    assert torch.allclose(diagonal, torch.diag(diagonal.diag()), atol=1e-4)
    assert bool(((diagonal.diag() > 0.5) & (diagonal.diag() < 1.3)).all())


@pytest.mark.parametrize("shape", [(4, 12), (9, 5), (6, 6)], ids=["wide", "tall", "square"])
def test_singular_values_are_those_of_three_iterations_of_the_published_polynomial(shape: tuple[int, int]) -> None:
    matrix = draw(*shape).double()
    expected = torch.linalg.svdvals(matrix) / matrix.norm()
    for _ in range(3):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    found = torch.linalg.svdvals(orthogonal(matrix))
    torch.testing.assert_close(found, expected.abs().sort(descending=True).values, atol=1e-5, rtol=0)


def test_a_matrix_of_zeros_stays_one() -> None:
    assert orthogonal(torch.zeros(3, 5)).tolist() == torch.zeros(3, 5).tolist()


def test_a_tall_convolution_moves_by_the_root_of_its_shape_more() -> None:
    start, gradient = draw(12, 3, 1, 1), draw(12, 3, 1, 1, seed=1)
    update = 4**0.5 * orthogonal(gradient.flatten(1)).view_as(start)
    assert torch.allclose(moved(SPEC, start, [gradient]), start - 0.1 * update, atol=1e-5)


def test_a_parameter_without_a_gradient_does_not_move() -> None:
    parameters = [nn.Parameter(draw(*shape)) for shape in ((2, 2, 3, 3), (3,), (4, 1, 2, 2), (5,))]
    before = [p.detach().clone() for p in parameters]
    spec = MuonSpec(learning_rate=0.1, sgd_learning_rate=0.1, weight_decay=0.5, matrix_decay=0.5)
    optimizer = spec.build(parameters)
    spec.set_step(optimizer, 0)
    for parameter in parameters[2:]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert [torch.equal(p, old) for p, old in zip(parameters, before, strict=True)] == [True, True, False, False]


def test_nothing_decays_unless_asked_for() -> None:
    spec = MuonSpec(learning_rate=0.1, sgd_learning_rate=0.1)
    for shape in ((2, 2, 3, 3), (3,)):
        start = draw(*shape)
        assert torch.equal(moved(spec, start, [torch.zeros(shape)]), start)


def test_a_tall_matrix_is_treated_as_its_transpose() -> None:
    assert torch.allclose(orthogonal(draw(12, 4)), orthogonal(draw(12, 4).T).T)


def test_a_convolution_moves_alike_however_large_its_gradient() -> None:
    start, gradient = draw(8, 2, 3, 3), draw(8, 2, 3, 3, seed=1)
    assert torch.allclose(moved(SPEC, start, [gradient]), moved(SPEC, start, [1000 * gradient]), atol=1e-5)


def test_a_convolution_moves_by_the_orthogonal_matrix_of_its_momentum() -> None:
    start, first, second = draw(4, 2, 3, 3), draw(4, 2, 3, 3, seed=1), draw(4, 2, 3, 3, seed=2)
    after_one = start - 0.1 * orthogonal((0.1 + 0.9 * 0.1) * first.flatten(1)).view_as(start)
    average = 0.9 * 0.1 * first + 0.1 * second
    update = orthogonal((0.1 * second + 0.9 * average).flatten(1)).view_as(start)
    assert torch.allclose(moved(SPEC, start, [first, second]), after_one - 0.1 * update, atol=1e-5)


def test_everything_else_moves_as_nesterov_sgd_does() -> None:
    spec = MuonSpec(learning_rate=Constant(0.1), sgd_learning_rate=Constant(0.2), weight_decay=0.01)
    start, gradients = draw(5), [draw(5, seed=seed) for seed in (1, 2, 3)]
    expected = nn.Parameter(start.clone())
    sgd = torch.optim.SGD([expected], lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
    for gradient in gradients:
        expected.grad = gradient.clone()
        sgd.step()
    assert torch.allclose(moved(spec, start, gradients), expected.detach(), atol=1e-6)


def test_matrices_decay_towards_zero_by_their_own_rate() -> None:
    spec = MuonSpec(learning_rate=Constant(0.1), sgd_learning_rate=Constant(0.2), matrix_decay=0.5)
    start = draw(4, 2, 3, 3)
    without = moved(SPEC, start, [draw(4, 2, 3, 3, seed=1)])
    assert torch.allclose(moved(spec, start, [draw(4, 2, 3, 3, seed=1)]), without - 0.05 * start, atol=1e-6)


def test_each_kind_follows_its_own_schedule() -> None:
    rate, other = LinearWarmUp(first=0.0, value=1.0, steps=4), LinearWarmUp(first=2.0, value=0.0, steps=4)
    spec = MuonSpec(learning_rate=rate, sgd_learning_rate=other)
    optimizer = spec.build([nn.Parameter(draw(2, 2, 3, 3)), nn.Parameter(draw(3))])
    for step in (0, 3, 1):
        spec.set_step(optimizer, step)
        assert [group["lr"] for group in optimizer.param_groups] == [rate(step), other(step)]


def test_a_saved_optimiser_goes_on_exactly() -> None:
    spec = MuonSpec(learning_rate=Constant(0.01), sgd_learning_rate=Constant(0.01))

    def advance(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            spec.set_step(optimizer, step)
            optimizer.zero_grad()
            net(draw(2, 3, 8, 8, seed=step)).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    optimizer = spec.build(net.parameters())
    advance(net, optimizer, range(3))
    again = copy.deepcopy(net)
    resumed = spec.build(again.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    advance(net, optimizer, range(3, 6))
    advance(again, resumed, range(3, 6))
    assert bool(torch.isfinite(net[0].weight).all())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
