import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, InputError, Problem
from meanteacher.models import Conv13Spec
from meanteacher.models.layers import WeightNormConv2d, WeightNormLayer, WeightNormLinear

CIFAR = Problem(n_classes=10, n_examples=50_000, input_shape=(3, 32, 32))
# The rows of Table 6 that have parameters: filters in, filters out, kernel.
TABLE_5 = [
    (3, 128, 3),
    (128, 128, 3),
    (128, 128, 3),
    (128, 256, 3),
    (256, 256, 3),
    (256, 256, 3),
    (256, 512, 3),
    (512, 256, 1),
    (256, 128, 1),
    (128, 10, 1),
]
# Every row of Table 6 after the augmentations, and what a 32x32 image is after it.
SHAPES = {
    "conv1a": (128, 32, 32),
    "conv1b": (128, 32, 32),
    "conv1c": (128, 32, 32),
    "pool1": (128, 16, 16),
    "dropout1": (128, 16, 16),
    "conv2a": (256, 16, 16),
    "conv2b": (256, 16, 16),
    "conv2c": (256, 16, 16),
    "pool2": (256, 8, 8),
    "dropout2": (256, 8, 8),
    "conv3a": (512, 6, 6),
    "conv3b": (256, 6, 6),
    "conv3c": (128, 6, 6),
    "pool3": (128, 1, 1),
    "softmax": (10,),
}


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def built(problem: Problem = CIFAR, *, seed: int = 0, **spec: float) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Conv13Spec(**spec).build(problem)


def small(**spec: float) -> nn.Module:
    return built(Problem(n_classes=5, n_examples=100, input_shape=(2, 16, 16)), width=0.1, **spec)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def watched(module: nn.Module, log: dict[str, Tensor], kind: type[nn.Module] | None = None) -> None:
    """Note what each child, or each submodule of a kind, puts out: a copy, since activations are made in place."""
    chosen = module.named_children() if kind is None else module.named_modules()
    for name, part in chosen:
        if kind is None or isinstance(part, kind):
            part.register_forward_hook(lambda _part, _x, y, name=name: log.update({name: y.detach().clone()}))


# --- the network of Table 6 -----------------------------------------------------------------------------


def test_the_convnet_has_the_parameters_that_table_5_defines() -> None:
    # A weight-normalised layer has a direction v, a length g for each filter and a bias b for each filter.
    by_layer = [n_out * n_in * kernel**2 + n_out + n_out for n_in, n_out, kernel in TABLE_5]
    assert sum(by_layer) == 3_121_812
    layers = [layer for layer in built().modules() if isinstance(layer, WeightNormLayer)]
    assert [sum(p.numel() for p in layer.parameters()) for layer in layers] == by_layer
    assert sum(p.numel() for p in built().parameters()) == 3_121_812


def test_every_layer_puts_out_the_shape_of_table_5() -> None:
    network, log = built(), {}
    watched(network, log)
    logits = network(normal(2, 3, 32, 32))
    del log["flatten"]
    assert {name: tuple(y.shape[1:]) for name, y in log.items()} == SHAPES
    assert list(log) == list(SHAPES)
    assert logits.shape == (2, 10)


def test_every_convolution_and_nothing_else_is_followed_by_a_leaky_relu_of_a_tenth() -> None:
    network, before, after = small(dropout=0.0), {}, {}
    watched(network, before, WeightNormLayer)
    watched(network, after)
    network(normal(4, 2, 16, 16))
    for name in (name for name in after if name.startswith("conv")):
        x = before[f"{name}.0"]
        assert (x < 0).any()
        assert torch.equal(after[name], torch.where(x < 0, 0.1 * x, x))
    assert torch.equal(after["softmax"], before["softmax"])
    assert after["softmax"].min() < 0


@pytest.mark.parametrize("width", [0.25, 0.5])
def test_the_width_scales_every_filter_count_and_nothing_else(width: float) -> None:
    network, log = built(width=width), {}
    watched(network, log)
    network(normal(2, 3, 32, 32))
    del log["flatten"]
    expected = {name: (int(shape[0] * width), *shape[1:]) for name, shape in SHAPES.items()}
    assert {name: tuple(y.shape[1:]) for name, y in log.items()} == expected | {"softmax": (10,)}


@pytest.mark.parametrize("size", [(12, 12), (13, 30), (64, 48)])
def test_any_image_of_at_least_twelve_pixels_fits(size: tuple[int, int]) -> None:
    network = built(Problem(n_classes=7, n_examples=10, input_shape=(1, *size)), width=0.05)
    assert network(normal(3, 1, *size)).shape == (3, 7)


@pytest.mark.parametrize("shape", [(3, 11, 32), (3, 32, 11), (1, 8, 8), (20,), (2, 3, 32, 32)])
def test_too_small_images_and_tables_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"12x12 .* Mlp") as caught:
        built(Problem(n_classes=10, n_examples=10, input_shape=shape))
    assert str(shape) in str(caught.value)


def test_dropout_silences_single_values_after_both_poolings_in_training_only() -> None:
    network, log = small(dropout=0.5), {}
    watched(network, log)
    network(normal(16, 2, 16, 16))
    for row in ("1", "2"):
        before, after = log[f"pool{row}"], log[f"dropout{row}"]
        kept = after != 0
        assert kept.double().mean() == pytest.approx(0.5, abs=0.05)
        torch.testing.assert_close(after[kept], 2 * before[kept])
        # Element by element, not whole channels.
        assert 0 < kept.double().flatten(2).mean(2).median() < 1
    network.eval()
    network(normal(16, 2, 16, 16))
    assert torch.equal(log["dropout1"], log["pool1"])
    assert torch.equal(log["dropout2"], log["pool2"])


def test_with_one_output_the_last_layer_keeps_its_name() -> None:
    assert "softmax.direction" in small().state_dict()


# --- data-dependent initialisation ----------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_initialisation_gives_every_layer_zero_mean_and_unit_variance_on_its_batch(dropout: float) -> None:
    network, log = small(dropout=dropout), {}
    assert isinstance(network, InitialisesFromData)
    watched(network, log, WeightNormLayer)
    network.initialise_from(3 + 5 * normal(32, 2, 16, 16))
    assert len(log) == 10
    for y in log.values():
        by_channel = y.transpose(0, 1).flatten(1)
        n_out = len(by_channel)
        torch.testing.assert_close(by_channel.mean(1), torch.zeros(n_out), atol=1e-4, rtol=0)
        torch.testing.assert_close(by_channel.var(1, correction=0), torch.ones(n_out), atol=1e-3, rtol=0)


def test_the_initialised_network_gives_the_same_outputs_when_it_trains() -> None:
    network, images = small(dropout=0.0), normal(32, 2, 16, 16)
    network.initialise_from(images)
    logits = network(images)
    torch.testing.assert_close(logits.mean(0), torch.zeros(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits.var(0, correction=0), torch.ones(5), atol=1e-3, rtol=0)


def test_both_last_layers_are_initialised_from_data() -> None:
    network, images = small(dropout=0.0, outputs=2), normal(6, 2, 16, 16)
    network.initialise_from(images)
    for logits in network(images):
        torch.testing.assert_close(logits.mean(0), torch.zeros(5), atol=1e-4, rtol=0)
        torch.testing.assert_close(logits.var(0, correction=0), torch.ones(5), atol=1e-3, rtol=0)


@pytest.mark.parametrize("training", [True, False])
def test_initialisation_leaves_modes_running_means_and_gradients_alone(training: bool) -> None:
    network = small().train(training)
    network.initialise_from(normal(8, 2, 16, 16))
    for module in network.modules():
        assert module.training == training
        if isinstance(module, WeightNormLayer):
            assert not module.running_mean.any()
            assert module.n_batches == 0
    assert all(p.requires_grad and p.grad is None for p in network.parameters())


def test_a_failed_initialisation_can_be_repeated() -> None:
    network = small()
    with pytest.raises(RuntimeError):
        network.initialise_from(normal(8, 3, 16, 16))
    network.initialise_from(normal(8, 2, 16, 16))
    scales = network.conv3b[0].scale.clone()
    network(10 * normal(8, 2, 16, 16))
    assert torch.equal(network.conv3b[0].scale, scales)


# --- its layers -----------------------------------------------------------------------------------------

LAYERS = {
    "convolution": (lambda **spec: WeightNormConv2d(3, 6, 3, padding=1, **spec), (8, 3, 5, 7)),
    "linear": (lambda **spec: WeightNormLinear(4, 6, **spec), (8, 4)),
}
every_layer = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


def randomised(layer: WeightNormLayer, seed: int = 1) -> WeightNormLayer:
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + i))
    return layer


def per_channel_mean(y: Tensor) -> Tensor:
    return y.mean((0, *range(2, y.ndim)))


def applied(layer: WeightNormLayer, x: Tensor, weight: Tensor) -> Tensor:
    if isinstance(layer, WeightNormLinear):
        return x @ weight.T
    return nn.functional.conv2d(x, weight, padding=1)


def weight_of(layer: WeightNormLayer) -> Tensor:
    """g v / ‖v‖, filter by filter, from the definition."""
    filters = [g * v / v.pow(2).sum().sqrt() for g, v in zip(layer.scale, layer.direction, strict=True)]
    return torch.stack(filters)


@every_layer
def test_the_length_of_each_filter_is_the_absolute_scale(make: type[WeightNormLayer], shape: tuple[int, ...]) -> None:
    layer = randomised(make()).eval()
    with torch.no_grad():
        layer.bias.zero_()
    # The response to every unit input is the weight itself.
    n_in = math.prod(layer.direction.shape[1:])
    if isinstance(layer, WeightNormLinear):
        weight = layer(torch.eye(n_in)).T
    else:
        weight = layer(torch.eye(n_in).view(n_in, *layer.direction.shape[1:]))[:, :, 1, 1].T
    torch.testing.assert_close(weight.norm(dim=1), layer.scale.abs())
    torch.testing.assert_close(weight, weight_of(layer).flatten(1))


@every_layer
def test_in_training_the_mean_of_the_output_is_the_bias(make: type[WeightNormLayer], shape: tuple[int, ...]) -> None:
    layer = randomised(make())
    torch.testing.assert_close(per_channel_mean(layer(4 + normal(*shape))), layer.bias, atol=1e-5, rtol=0)


@every_layer
def test_in_training_the_variance_is_not_normalised(make: type[WeightNormLayer], shape: tuple[int, ...]) -> None:
    layer, x = randomised(make()), normal(*shape)
    torch.testing.assert_close(layer(10 * x) - layer(0 * x), 10 * (layer(x) - layer(0 * x)), atol=1e-4, rtol=0)


@every_layer
def test_evaluation_subtracts_the_running_mean(make: type[WeightNormLayer], shape: tuple[int, ...]) -> None:
    layer, x = randomised(make()).eval(), normal(*shape)
    layer.running_mean.copy_(normal(6, seed=9))
    n_batches, running = layer.n_batches.clone(), layer.running_mean.clone()
    offset = (layer.bias - running).view(1, -1, *[1] * (x.ndim - 2))
    torch.testing.assert_close(layer(x), applied(layer, x, weight_of(layer)) + offset, atol=1e-5, rtol=0)
    assert torch.equal(layer.running_mean, running)
    assert torch.equal(layer.n_batches, n_batches)


@every_layer
def test_the_running_mean_is_a_plain_mean_first_and_then_an_exponential_one(
    make: type[WeightNormLayer], shape: tuple[int, ...]
) -> None:
    layer = randomised(make(mean_decay=0.8))
    means, tracked = [], []
    for step in range(12):
        x = normal(*shape, seed=step) + step
        means.append(per_channel_mean(applied(layer, x, weight_of(layer))).detach())
        layer(x)
        tracked.append(layer.running_mean.clone())
    for t in range(1, 6):  # up to 1 / (1 - 0.8) batches
        torch.testing.assert_close(tracked[t - 1], torch.stack(means[:t]).mean(0), atol=1e-4, rtol=1e-4)
    for t in range(6, 13):
        first = torch.stack(means[:5]).mean(0) * 0.8 ** (t - 5)
        later = sum(0.2 * 0.8 ** (t - i) * means[i - 1] for i in range(6, t + 1))
        torch.testing.assert_close(tracked[t - 1], first + later, atol=1e-4, rtol=1e-4)
    assert layer.n_batches == 12


def test_a_network_can_be_evaluated_after_its_first_batch() -> None:
    network, images = small(dropout=0.0), 2 + normal(8, 2, 16, 16)
    trained = network(images)
    torch.testing.assert_close(network.eval()(images), trained, atol=1e-4, rtol=1e-4)


@every_layer
def test_the_gradient_flows_through_the_batch_mean(make: type[WeightNormLayer], shape: tuple[int, ...]) -> None:
    layer = randomised(make()).double()
    x = normal(*shape).double().requires_grad_()
    wanted = [x, layer.direction, layer.scale, layer.bias]

    def gradients(y: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((y * normal(*y.shape, seed=5)).sin().sum(), wanted))

    def explicit(*, through_mean: bool) -> Tensor:
        y = applied(layer, x, weight_of(layer))
        mean = per_channel_mean(y)
        view = (1, -1, *[1] * (y.ndim - 2))
        return y - (mean if through_mean else mean.detach()).view(view) + layer.bias.view(view)

    for ours, expected in zip(gradients(layer(x)), gradients(explicit(through_mean=True)), strict=True):
        torch.testing.assert_close(ours, expected)
    # The comparison can tell: without that path the gradients are others.
    assert not torch.allclose(gradients(layer(x))[0], gradients(explicit(through_mean=False))[0], rtol=1e-2)


def test_the_running_mean_carries_no_graph() -> None:
    layer = WeightNormLinear(4, 6)
    for step in range(3):
        layer(normal(8, 4, seed=step)).sum().backward()
    assert not layer.running_mean.requires_grad
    assert not layer.n_batches.requires_grad
