import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from meanteacher.core import Problem
from meanteacher.models import ResNeXt152Spec
from meanteacher.models.residual import Bottleneck

IMAGENET = Problem(n_classes=1000, n_examples=1_281_167, input_shape=(3, 224, 224))


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def on_paper(problem: Problem = IMAGENET, **spec: object) -> nn.Module:
    """The network without its numbers: full size is a quarter of a gigabyte."""
    with torch.device("meta"):
        return ResNeXt152Spec(**spec).build(problem)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_network_has_the_parameters_of_resnext_152_32x4d() -> None:
    def norm(n: int) -> int:
        return 2 * n

    def stage(n_blocks: int, n_in: int, n: int) -> int:
        def block(n_in: int) -> int:
            in_a_group = n // 32
            return n_in * n + norm(n) + 9 * n * in_a_group + norm(n) + n * 2 * n + norm(2 * n)

        projection = n_in * 2 * n + norm(2 * n)
        return block(n_in) + projection + (n_blocks - 1) * block(2 * n)

    stem = 7 * 7 * 3 * 64 + norm(64)
    stages = [stage(3, 64, 128), stage(8, 256, 256), stage(36, 512, 512), stage(3, 1024, 1024)]
    head = 2048 * 1000 + 1000
    assert stem + sum(stages) + 2 * head == 62_000_400

    one = on_paper()
    assert [n for part in one.children() if (n := size(part))] == [stem, *stages, head]
    assert size(on_paper(outputs=2)) == 62_000_400


def test_it_has_152_layers_with_weights() -> None:
    weighted = [
        layer
        for name, layer in on_paper().named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(weighted) == 152


def test_the_stages_put_out_256_to_2048_channels_at_a_quarter_to_a_32nd_of_the_size() -> None:
    network, shapes = on_paper(), {}
    for name, part in network.named_children():
        part.register_forward_hook(lambda _part, _x, y, name=name: shapes.update({name: tuple(y.shape)}))
    network(torch.empty(2, 3, 224, 224, device="meta"))
    assert shapes == {
        "stem": (2, 64, 56, 56),
        "stage1": (2, 256, 56, 56),
        "stage2": (2, 512, 28, 28),
        "stage3": (2, 1024, 14, 14),
        "stage4": (2, 2048, 7, 7),
        "pool": (2, 2048),
        "head": (2, 1000),
    }


def test_the_image_is_halved_by_the_grouped_convolution() -> None:
    for name, layer in on_paper().named_modules():
        if isinstance(layer, nn.Conv2d) and "residual" in name:
            assert layer.groups == (32 if layer.kernel_size == (3, 3) else 1)
            halves = layer.kernel_size == (3, 3) and name.startswith(("stage2.0", "stage3.0", "stage4.0"))
            assert layer.stride == ((2, 2) if halves else (1, 1)), name


def test_only_the_first_block_of_a_stage_has_a_shortcut_with_weights() -> None:
    network = on_paper()
    for n_blocks, stage in zip((3, 8, 36, 3), list(network.children())[1:5], strict=True):
        assert [size(block.shortcut) > 0 for block in stage] == [True] + [False] * (n_blocks - 1)


def test_a_block_activates_after_each_convolution_and_after_the_sum() -> None:
    block, x = Bottleneck(6, 64, stride=2).double(), torch.randn(4, 6, 8, 8, dtype=torch.float64)
    reduce, across, expand = (layer for layer in block.residual if isinstance(layer, nn.Conv2d))

    def normalised(y: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(y, None, None, training=True)

    y = normalised(nn.functional.conv2d(x, reduce.weight)).clamp_min(0)
    y = normalised(nn.functional.conv2d(y, across.weight, stride=2, padding=1, groups=32)).clamp_min(0)
    y = normalised(nn.functional.conv2d(y, expand.weight))
    shortcut = normalised(nn.functional.conv2d(x, block.shortcut[0].weight, stride=2))
    torch.testing.assert_close(block(x), (shortcut + y).clamp_min(0))


def test_the_identity_shortcut_leaves_its_input_untouched() -> None:
    block, x = Bottleneck(64, 64, stride=1), torch.randn(2, 64, 4, 4)
    before = x.clone()
    y = block(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(y, (x + block.residual(x)).clamp_min(0))


def test_convolutions_start_normal_with_a_variance_of_two_over_their_outputs() -> None:
    layer = Bottleneck(64, 256, stride=1).residual[3]
    expected = math.sqrt(2 / (9 * 128))
    assert layer.weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * layer.weight.numel()))


@pytest.mark.parametrize("width", [0.01, 0.25, 0.3, 0.5, 0.77, 2.0])
def test_any_width_keeps_whole_groups(width: float) -> None:
    network = on_paper(width=width)
    assert network(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 32, 32), (2, 33, 47)])
def test_small_images_run(shape: tuple[int, int, int]) -> None:
    network = ResNeXt152Spec(width=0.1).build(Problem(n_classes=4, n_examples=10, input_shape=shape))
    assert network(torch.randn(3, *shape)).shape == (3, 4)
