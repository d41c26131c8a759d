"""A folded network computes the same, with less to do."""

import pytest
import torch
from torch import Tensor, nn

from meanteacher.classifier.predict import folded
from meanteacher.core import InitialisesFromData, Problem
from meanteacher.models import FastNetSpec, ModelSpec, WideResNetSpec
from meanteacher.passes import class_output


def trained(network: nn.Module, *, negative: bool = False) -> nn.Module:
    """With statistics and scales as training might leave them."""
    draws = torch.Generator().manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            n = layer.num_features
            layer.running_mean.copy_(torch.randn(n, generator=draws))
            layer.running_var.copy_(torch.rand(n, generator=draws) + 0.1)
            layer.weight.data = torch.rand(n, generator=draws) + 0.5 - 2 * negative * (torch.arange(n) % 2)
            layer.bias.data = torch.randn(n, generator=draws)
    return network.eval()


def n_norms(network: nn.Module, x: Tensor) -> int:
    """How many normalisations a pass goes through."""
    calls = []
    hooks = [
        layer.register_forward_hook(lambda *_: calls.append(1))
        for layer in network.modules()
        if isinstance(layer, nn.BatchNorm2d)
    ]
    network(x)
    for hook in hooks:
        hook.remove()
    return len(calls)


def images() -> Tensor:
    return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("spec", "negative", "left"),
    [
        (FastNetSpec(width=0.125), False, 0),
        (FastNetSpec(width=0.125), True, 3),
        (WideResNetSpec(depth=10, widen=1), True, 3),
        (WideResNetSpec(depth=10, widen=1, outputs=2), False, 3),
    ],
)
@torch.no_grad()
def test_folded_network_computes_the_same(spec: ModelSpec, negative: bool, left: int):
    torch.manual_seed(0)
    network = trained(spec.build(Problem(5, 1, (3, 16, 16))), negative=negative)
    if isinstance(network, InitialisesFromData):
        network.initialise_from(images())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    expected = class_output(network(images()))
    assert expected.std() > 0.01
    faster = folded(network)
    torch.testing.assert_close(class_output(faster(images())), expected, atol=1e-4, rtol=1e-4)
    assert n_norms(faster, images()) == left < n_norms(network, images())
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    assert torch.equal(class_output(network(images())), expected)


class _TwoUses(nn.Module):
    """What the convolution gives is used beside its normalisation too."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, 4, 3)
        self.normalise = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolve(x)
        return x + self.normalise(x)


class _SharedLayer(nn.Module):
    """One convolution stands before a normalisation here, and before none there."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, 3, 3)
        self.normalise = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(self.normalise(self.convolve(x)))


@pytest.mark.parametrize("network", [_TwoUses(), _SharedLayer()], ids=["two uses", "shared layer"])
@torch.no_grad()
def test_what_cannot_be_folded_is_left_alone(network: nn.Module):
    network = trained(network)
    torch.testing.assert_close(folded(network)(images()), network(images()))
    assert n_norms(folded(network), images()) == 1
