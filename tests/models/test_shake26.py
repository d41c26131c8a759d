import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.models import Shake26Spec
from meanteacher.models.residual import Mixture, ShakeBlock

CIFAR = Problem(n_classes=10, n_examples=50_000, input_shape=(3, 32, 32))
SMALL = Problem(n_classes=5, n_examples=100, input_shape=(2, 16, 16))


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def small(**spec: object) -> nn.Module:
    return Shake26Spec(**{"width": 0.1, **spec}).build(SMALL)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a, b)))[0, 1])


# --- the architecture -----------------------------------------------------------------------------------


def test_the_network_has_the_parameters_of_shake_shake_26_2x96d() -> None:
    def norm(n: int) -> int:
        return 2 * n

    def branches(n_in: int, n: int) -> int:
        return 2 * (9 * n_in * n + norm(n) + 9 * n * n + norm(n))

    stem = 9 * 3 * 16
    stage1 = branches(16, 96) + 3 * branches(96, 96) + (16 * 96 + norm(96))
    # The shortcut that halves the image: two groups of n_in -> n / 2 channels, and the only biases.
    stage2 = branches(96, 192) + 3 * branches(192, 192) + (2 * 96 * 96 + 192 + norm(192))
    stage3 = branches(192, 384) + 3 * branches(384, 384) + (2 * 192 * 192 + 384 + norm(384))
    head = 384 * 10 + 10
    assert stem + stage1 + stage2 + stage3 + 2 * head == 26_197_316

    with torch.device("meta"):
        one, two = Shake26Spec().build(CIFAR), Shake26Spec(outputs=2).build(CIFAR)
    assert [n for part in one.children() if (n := size(part))] == [stem, stage1, stage2, stage3, head]
    assert size(one) == 26_197_316 - head
    assert size(two) == 26_197_316


def test_the_stages_put_out_96_192_and_384_channels_at_full_half_and_quarter_size() -> None:
    with torch.device("meta"):
        network, images = Shake26Spec().build(CIFAR), torch.randn(2, 3, 32, 32)
    shapes = {}
    for name, part in network.named_children():
        part.register_forward_hook(lambda _part, _x, y, name=name: shapes.update({name: tuple(y.shape)}))
    network(images)
    assert shapes == {
        "stem": (2, 16, 32, 32),
        "stage1": (2, 96, 32, 32),
        "stage2": (2, 192, 16, 16),
        "stage3": (2, 384, 8, 8),
        "pool": (2, 384),
        "head": (2, 10),
    }


def test_the_stem_is_a_bare_convolution() -> None:
    stem = small().stem
    assert isinstance(stem, nn.Conv2d)
    assert stem.bias is None


def test_convolutions_start_normal_with_a_variance_of_two_over_their_outputs_and_norms_as_identities() -> None:
    network = small(width=0.5)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            expected = math.sqrt(2 / (layer.kernel_size[0] ** 2 * layer.out_channels))
            # Four standard errors of a standard deviation.
            tolerance = 4 / math.sqrt(2 * layer.weight.numel())
            assert layer.weight.std().item() == pytest.approx(expected, rel=tolerance)
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()


@pytest.mark.parametrize("width", [0.01, 0.07, 0.1, 1 / 6, 0.35])
def test_any_width_gives_a_network_that_runs(width: float) -> None:
    network = small(width=width)
    assert network(torch.randn(3, 2, 16, 16)).shape == (3, 5)


@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 4, 4), (1, 8, 8), (1, 28, 28), (3, 13, 30), (3, 9, 7)])
def test_images_of_any_size_fit(shape: tuple[int, int, int]) -> None:
    network = Shake26Spec(width=0.05).build(Problem(n_classes=4, n_examples=10, input_shape=shape))
    assert network(torch.randn(5, *shape)).shape == (5, 4)


def test_with_one_output_the_last_layer_keeps_its_name() -> None:
    assert "head.weight" in small().state_dict()


def test_the_features_are_the_mean_over_the_pixels_and_not_rectified() -> None:
    network, seen = small().eval(), {}
    network.stage3.register_forward_hook(lambda _part, _x, y: seen.update(last=y))
    network.head.register_forward_pre_hook(lambda _part, given: seen.update(features=given[0]))
    network(torch.randn(8, 2, 16, 16))
    torch.testing.assert_close(seen["features"], seen["last"].mean((2, 3)))
    assert (seen["features"] < 0).any()


# --- a block --------------------------------------------------------------------------------------------


def test_only_the_first_block_of_a_stage_has_a_shortcut_with_weights() -> None:
    for stage in (small().stage1, small().stage2, small().stage3):
        assert [size(block.shortcut) > 0 for block in stage] == [True, False, False, False]


def test_a_branch_is_relu_convolution_norm_relu_convolution_norm() -> None:
    block, x = ShakeBlock(4, 6, stride=2).double(), torch.randn(3, 4, 8, 8, dtype=torch.float64)
    expected = {}
    for name, (first, _, _, second, _) in {"left": block.left, "right": block.right}.items():
        hidden = nn.functional.conv2d(x.clamp_min(0), first.weight, stride=2, padding=1)
        hidden = nn.functional.batch_norm(hidden, None, None, training=True).clamp_min(0)
        hidden = nn.functional.conv2d(hidden, second.weight, padding=1)
        expected[name] = nn.functional.batch_norm(hidden, None, None, training=True)
    seen = {}
    block.left.register_forward_hook(lambda _part, _x, y: seen.update(left=y))
    block.right.register_forward_hook(lambda _part, _x, y: seen.update(right=y))
    block(x)
    torch.testing.assert_close(seen, expected)
    assert not torch.allclose(seen["left"], seen["right"])


def test_the_shortcut_of_the_first_stage_sees_the_image_unrectified() -> None:
    shortcut = ShakeBlock(4, 6, stride=1).shortcut
    x = -torch.rand(3, 4, 8, 8)
    expected = nn.functional.batch_norm(nn.functional.conv2d(x, shortcut[0].weight), None, None, training=True)
    torch.testing.assert_close(shortcut(x), expected)
    assert expected.std() > 0.5


def test_a_halving_shortcut_makes_half_its_channels_of_the_even_pixels_and_half_of_the_odd_ones() -> None:
    shortcut = ShakeBlock(4, 6, stride=2).shortcut.eval()

    def touched(row: int, column: int) -> tuple[list[int], list[tuple[int, int]]]:
        """The channels and places that change with one pixel."""
        x = torch.ones(1, 4, 8, 8)
        before = shortcut(x)
        x[:, :, row, column] = 2
        _, channels, rows, columns = (shortcut(x) != before).nonzero(as_tuple=True)
        return sorted(set(channels.tolist())), sorted(set(zip(rows.tolist(), columns.tolist(), strict=True)))

    assert touched(2, 6) == ([0, 1, 2], [(1, 3)])
    assert touched(3, 7) == ([3, 4, 5], [(1, 3)])
    assert touched(2, 7) == touched(3, 6) == ([], [])


def test_a_halving_shortcut_is_rectified_before_its_convolution() -> None:
    shortcut = ShakeBlock(4, 6, stride=2).shortcut.eval()
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(shortcut(x), shortcut(x.clamp_min(0)))
    assert not torch.allclose(shortcut(x), shortcut(x.abs()))


# --- shaking --------------------------------------------------------------------------------------------


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def linear_block() -> ShakeBlock:
    """y = x + gate · 2 x - (1 - gate) · 3 x for positive x, so that the gate can be read off."""
    block = ShakeBlock(2, 2, stride=1)
    block.left, block.right = Times(2.0), Times(-3.0)
    return block


def gate_of(factor: Tensor) -> Tensor:
    return (factor - 1 + 3) / 5


def gates(n_images: int) -> tuple[Tensor, Tensor]:
    """What each image's value and each image's gradient were mixed with, place by place."""
    x = (1 + torch.rand(n_images, 2, 3, 3, dtype=torch.float64)).requires_grad_()
    y = linear_block()(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return gate_of(y / x).detach(), gate_of(gradient)


def test_the_gate_is_one_for_the_whole_image_and_another_for_each_image() -> None:
    for gate in gates(500):
        per_image = gate[:, 0, 0, 0]
        torch.testing.assert_close(gate, per_image.view(-1, 1, 1, 1).expand_as(gate))
        assert len(per_image.unique()) == 500


def test_gates_are_uniform_between_zero_and_one() -> None:
    n = 4000
    for gate in gates(n):
        quantiles = gate[:, 0, 0, 0].sort().values
        # Kolmogorov and Smirnov's distance, which exceeds 1.95 / sqrt(n) once in a thousand times.
        assert (quantiles - torch.linspace(0, 1, n)).abs().max() < 1.95 / math.sqrt(n)


def test_the_gradient_is_mixed_independently_of_the_value() -> None:
    forward, backward = (gate[:, 0, 0, 0] for gate in gates(4000))
    assert abs(correlation(forward, backward)) < 4 / math.sqrt(4000)
    assert abs(correlation(forward, (backward - 0.5).abs())) < 4 / math.sqrt(4000)


def test_every_block_draws_its_own_gates() -> None:
    one, two = linear_block(), linear_block()
    x = torch.ones(2000, 2, 1, 1)
    first, second = (gate_of(block(x))[:, 0, 0, 0] for block in (one, two))
    assert abs(correlation(first, second)) < 4 / math.sqrt(2000)


def test_the_mixture_has_the_gradient_of_its_formula_when_both_gates_are_the_same() -> None:
    left, right = (torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    gate, other = torch.rand(2, 3, 1, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(Mixture.apply(left, right, gate, other), gate * left + (1 - gate) * right)
    assert torch.autograd.gradcheck(lambda a, b: Mixture.apply(a, b, gate, gate), (left, right))
    assert torch.autograd.gradgradcheck(lambda a, b: Mixture.apply(a, b, gate, gate).sin(), (left, right))
    # The check can tell: with two gates the gradient is the one of the other mixture.
    assert not torch.autograd.gradcheck(
        lambda a, b: Mixture.apply(a, b, gate, other), (left, right), raise_exception=False
    )
    shaken = torch.autograd.grad(Mixture.apply(left, right, gate, other).sum(), (left, right))
    plain = torch.autograd.grad((other * left + (1 - other) * right).sum(), (left, right))
    torch.testing.assert_close(shaken, plain)


def test_evaluation_takes_the_mean_of_the_branches() -> None:
    for block in small().eval().modules():
        if isinstance(block, ShakeBlock):
            n_in = block.left[0].in_channels
            x = torch.randn(2, n_in, 8, 8)
            rectified = x.clamp_min(0)
            mean = (block.left(rectified) + block.right(rectified)) / 2
            torch.testing.assert_close(block(x), block.shortcut(x) + mean)


def test_training_shakes() -> None:
    network, x = small(), torch.randn(4, 2, 16, 16)
    assert not torch.allclose(network(x), network(x))
