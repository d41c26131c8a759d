import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, InputError, Problem
from meanteacher.models import FastNetSpec, LaptopNetSpec

CIFAR = Problem(n_classes=10, n_examples=50_000, input_shape=(3, 32, 32))


def network(size: int = 32, n_classes: int = 10, **fields: float) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem = Problem(n_classes=n_classes, n_examples=100, input_shape=(3, size, size))
        return FastNetSpec(**fields).build(problem)


def images(n: int = 16, size: int = 32) -> Tensor:
    """Smooth ones, whose neighbouring pixels are alike as those of photos are."""
    noise = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))
    return F.avg_pool2d(noise, 3, stride=1, padding=1) + noise.mean(1, keepdim=True)


def test_the_network_has_the_parameters_of_its_definition() -> None:
    def stage(n_in: int, n_out: int) -> int:
        return 9 * n_in * n_out + 9 * n_out * n_out + 4 * n_out

    expected = 24 * 3 * 4 + stage(24, 32) + stage(32, 128) + stage(128, 128) + 128 * 10
    assert sum(p.numel() for p in FastNetSpec().build(CIFAR).parameters()) == expected


def test_the_first_layer_decorrelates_patches_of_the_data() -> None:
    net = network()
    assert isinstance(net, InitialisesFromData)
    net.initialise_from(images())
    seen = net.whitening(images())[:, :12].transpose(0, 1).flatten(1)
    correlation = seen @ seen.T / seen.shape[1]
    assert torch.allclose(correlation, torch.eye(12), atol=0.05)


def test_each_direction_is_seen_with_both_signs() -> None:
    net = network()
    net.initialise_from(images())
    first, second = net.whitening(images()).chunk(2, dim=1)
    assert torch.allclose(first, -second)


def test_the_first_layer_is_not_trained_and_everything_else_is() -> None:
    net = network()
    net.initialise_from(images())
    net(images()).square().sum().backward()
    moved = {name for name, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert {name for name, _ in net.named_parameters()} - moved == {"whitening.weight"}


@pytest.mark.parametrize("size", [16, 28, 32, 40, 64, 96])
def test_images_of_any_size_are_classified(size: int) -> None:
    net = network(size, n_classes=3, width=0.25)
    net.initialise_from(images(size=size))
    assert net(images(4, size)).shape == (4, 3)


def test_a_network_that_goes_on_training_keeps_its_first_layer() -> None:
    net = network()
    net.initialise_from(images())
    fitted = net.whitening.weight.clone()
    net.initialise_from(2 * images())
    assert torch.equal(net.whitening.weight, fitted)


def test_grey_images_have_fewer_directions() -> None:
    problem = Problem(n_classes=2, n_examples=9, input_shape=(1, 28, 28))
    net = FastNetSpec(width=0.25).build(problem)
    net.initialise_from(images(size=28)[:, :1])
    assert net.whitening.weight.shape == (8, 1, 2, 2)
    assert net(images(size=28)[:, :1]).shape == (16, 2)


def test_a_larger_image_costs_about_as_much_as_a_small_one() -> None:
    areas = {size: network(size, width=0.25).whitening(images(1, size)).shape[-1] for size in (32, 64, 96, 128)}
    assert set(areas.values()) == {31}


def test_the_first_outputs_do_not_saturate_the_softmax() -> None:
    net = network()
    net.initialise_from(images())
    assert float(net(images()).detach().softmax(1).max()) < 0.5


@pytest.mark.parametrize(
    ("fields", "size", "words"),
    [({}, 8, r"16x16 .*\(3, 8, 8\)"), ({"width": 0.0}, 32, r"width .* got 0")],
)
def test_what_cannot_be_built_is_refused(fields: dict[str, float], size: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        network(size, **fields)


def test_the_laptop_network_has_149_000_trained_weights_and_a_last_map_of_3x3() -> None:
    net = LaptopNetSpec().build(CIFAR)
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == 148_736
    maps = []
    net.get_submodule("stage3").register_forward_hook(lambda _module, _x, y: maps.append(y.shape))
    net(images())
    assert maps == [(16, 64, 3, 3)]


@pytest.mark.parametrize(("dropout", "differs"), [(0.0, False), (0.25, True)])
def test_the_laptop_network_drops_values_in_training_alone(dropout: float, differs: bool) -> None:
    net = LaptopNetSpec(dropout=dropout).build(CIFAR)
    net.initialise_from(images())
    assert torch.equal(net(images()), net(images())) is not differs
    net.eval()
    assert torch.equal(net(images()), net(images()))
