import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models import WideResNetSpec
from meanteacher.models.residual import PreActivationBlock

CIFAR = Problem(n_classes=10, n_examples=50_000, input_shape=(3, 32, 32))
SMALL = Problem(n_classes=5, n_examples=100, input_shape=(2, 16, 16))


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def small(**spec: object) -> nn.Module:
    return WideResNetSpec(**{"depth": 10, "widen": 1, **spec}).build(SMALL)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def activated(x: Tensor) -> Tensor:
    """A batch normalisation as it starts, and LeakyReLU."""
    y = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 0.001).sqrt()
    return torch.where(y < 0, 0.1 * y, y)


@pytest.mark.parametrize(("depth", "widen", "expected"), [(28, 2, 1_467_610), (28, 8, 23_354_842), (10, 1, 77_850)])
def test_the_network_has_the_parameters_of_its_definition(depth: int, widen: int, expected: int) -> None:
    def norm(n: int) -> int:
        return 2 * n

    def stage(n_in: int, n: int) -> int:
        def block(n_in: int) -> int:
            return norm(n_in) + 9 * n_in * n + norm(n) + 9 * n * n

        projection = 0 if n_in == n else n_in * n
        return block(n_in) + projection + ((depth - 4) // 6 - 1) * block(n)

    n1, n2, n3 = 16 * widen, 32 * widen, 64 * widen
    parts = [9 * 3 * 16, stage(16, n1), stage(n1, n2), stage(n2, n3), norm(n3), n3 * 10 + 10]
    assert sum(parts) == expected
    with torch.device("meta"):
        network = WideResNetSpec(depth=depth, widen=widen).build(CIFAR)
    assert [n for part in network.children() if (n := size(part))] == parts


def test_the_stages_put_out_32_64_and_128_channels_at_full_half_and_quarter_size() -> None:
    network, shapes = WideResNetSpec().build(CIFAR), {}
    for name, part in network.named_children():
        part.register_forward_hook(lambda _part, _x, y, name=name: shapes.update({name: tuple(y.shape)}))
    network(torch.randn(2, 3, 32, 32))
    assert shapes == {
        "stem": (2, 16, 32, 32),
        "stage1": (2, 32, 32, 32),
        "stage2": (2, 64, 16, 16),
        "stage3": (2, 128, 8, 8),
        "activate": (2, 128, 8, 8),
        "pool": (2, 128),
        "head": (2, 10),
    }


def test_it_has_as_many_convolutions_as_its_depth_says() -> None:
    convolutions = [layer for layer in WideResNetSpec().build(CIFAR).modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 28


@pytest.mark.parametrize("activate_shortcut", [True, False])
@pytest.mark.parametrize("n_out", [4, 6])
def test_a_block_normalises_and_activates_before_each_convolution(activate_shortcut: bool, n_out: int) -> None:
    stride = 1 if n_out == 4 else 2
    block = PreActivationBlock(4, n_out, WideResNetSpec(), stride=stride, activate_shortcut=activate_shortcut).double()
    x = torch.randn(3, 4, 8, 8, dtype=torch.float64)
    first, second = block.residual[0].weight, block.residual[2].weight
    y = nn.functional.conv2d(activated(x), first, stride=stride, padding=1)
    y = nn.functional.conv2d(activated(y), second, padding=1)
    shortcut = activated(x) if activate_shortcut else x
    if n_out != 4:
        shortcut = nn.functional.conv2d(shortcut, block.shortcut.weight, stride=2)
    before = x.clone()
    torch.testing.assert_close(block(x), shortcut + y)
    assert torch.equal(x, before)


def test_only_the_very_first_block_activates_its_shortcut() -> None:
    blocks = [block for block in WideResNetSpec().build(CIFAR).modules() if isinstance(block, PreActivationBlock)]
    assert [block.activate_shortcut for block in blocks] == [True] + [False] * 11


def test_the_features_are_the_mean_of_the_activated_pixels() -> None:
    network, seen = small().double(), {}
    network.stage3.register_forward_hook(lambda _part, _x, y: seen.update(last=y))
    network.head.register_forward_pre_hook(lambda _part, given: seen.update(features=given[0]))
    network(torch.randn(8, 2, 16, 16, dtype=torch.float64))
    torch.testing.assert_close(seen["features"], activated(seen["last"]).mean((2, 3)))


@pytest.mark.parametrize("decay", [0.999, 0.9])
def test_the_running_statistics_keep_the_share_of_the_past_asked_for(decay: float) -> None:
    network, seen = small(norm_decay=decay), {}
    network.stem.register_forward_hook(lambda _part, _x, y: seen.update(mean=y.detach().mean((0, 2, 3))))
    network(5 + torch.randn(8, 2, 16, 16))
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    torch.testing.assert_close(norms[0].running_mean, (1 - decay) * seen["mean"])
    assert {round(1 - norm.momentum, 6) for norm in norms} == {decay}


def test_weights_start_as_the_conventions_say() -> None:
    network = WideResNetSpec().build(CIFAR)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            expected = math.sqrt(2 / (layer.kernel_size[0] ** 2 * layer.out_channels))
        elif isinstance(layer, nn.Linear):
            expected = math.sqrt(2 / (128 + 10))
            assert not layer.bias.any()
        else:
            continue
        # Four standard errors of a standard deviation.
        tolerance = 4 / math.sqrt(2 * layer.weight.numel())
        assert layer.weight.std().item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 8, 8), (3, 13, 30), (3, 96, 96)])
def test_images_of_any_size_fit(shape: tuple[int, int, int]) -> None:
    network = WideResNetSpec(depth=10, widen=1).build(Problem(n_classes=4, n_examples=10, input_shape=shape))
    assert network(torch.randn(5, *shape)).shape == (5, 4)


@pytest.mark.parametrize("depth", [4, 27, 30, -2])
def test_a_depth_that_cannot_be_built_is_refused(depth: int) -> None:
    with pytest.raises(InputError, match=rf"depth .*10, 16, 22, 28.* {depth}\b"):
        small(depth=depth)


def test_a_network_without_channels_is_refused() -> None:
    with pytest.raises(InputError, match=r"widen .* 0\b"):
        small(widen=0)
