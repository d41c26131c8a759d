"""The ONNX graph of a module computes what torch computes, or is refused with the reason."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, Problem
from meanteacher.models import FastNetSpec, LiteSpec, ModelSpec, WideResNetSpec
from meanteacher.models.lite import PadToHalf
from meanteacher.passes import class_output
from meanteacher.photos.features import onnx_graph
from meanteacher.photos.features.compute import session
from meanteacher.photos.features.onnx_graph import UnsupportedError, to_onnx

SHAPE = (3, 15, 14)


def images(n: int = 5, shape: tuple[int, ...] = SHAPE, seed: int = 1) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def trained(network: nn.Module, *, negative: bool = False) -> nn.Module:
    """With statistics and scales as training might leave them."""
    draws = torch.Generator().manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None:
            n = layer.num_features
            layer.running_mean.copy_(torch.randn(n, generator=draws) / 4)
            layer.running_var.copy_(torch.rand(n, generator=draws) + 0.5)
            if layer.affine:
                layer.weight.data = torch.rand(n, generator=draws) + 0.5 - 2 * negative * (torch.arange(n) % 2)
                layer.bias.data = torch.randn(n, generator=draws) / 4
    return network.eval()


def compared(module: nn.Module, given: Tensor) -> Counter[str]:
    """Compare both; returns how often the graph has each operation."""
    kind = np.uint8 if given.dtype is torch.uint8 else np.float32
    model = to_onnx(module, given.shape[1:], kind)
    onnx.checker.check_model(model, full_check=True)
    with torch.no_grad():
        expected = module(given)
    got = session(model.SerializeToString())(given.numpy())
    assert expected.std() > 1e-3, "constant outputs compare nothing"
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-4, rtol=1e-4)
    return Counter(node.op_type for node in model.graph.node)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.layers)


def _both(x: Tensor, convolve: nn.Module, normalise: nn.Module) -> Tensor:
    x = convolve(x)
    return x + normalise(x)


def _twice(x: Tensor, convolve: nn.Module, normalise: nn.Module) -> Tensor:
    return convolve(normalise(convolve(x)))


OPERATIONS: dict[str, nn.Module] = {
    "convolution": nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "uneven convolution": nn.Conv2d(3, 6, (3, 1), stride=(1, 2), padding=(2, 0), dilation=(2, 1), groups=3, bias=False),
    "batch normalisation": nn.BatchNorm2d(3, eps=0.1),
    "batch normalisation without scales": nn.BatchNorm2d(3, affine=False),
    "max pooling": nn.MaxPool2d(3, stride=2, padding=1),
    "max pooling by its kernel": nn.MaxPool2d((2, 3)),
    "padding": nn.ConstantPad2d((1, 2, 3, 4), 1.5),
    "padding of channels": Calls(lambda x: F.pad(x, (0, 0, 0, 1, 1, 0))),
    "relu": nn.ReLU(),
    "relu in place": Calls(lambda x: (x + 1).relu_()),
    "leaky relu": nn.LeakyReLU(0.2),
    "relu6": nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU6(inplace=True)),
    "silu": nn.SiLU(),
    "sigmoid": nn.Sigmoid(),
    "hard sigmoid": Calls(lambda x: F.hardsigmoid(4 * x)),
    "hard swish": Calls(lambda x: F.hardswish(4 * x)),
    "lower limit": Calls(lambda x: x.clamp_min(-0.3)),
    "inverse root": Calls(lambda x: torch.rsqrt(x * x + 1)),
    "reciprocal": Calls(lambda x: 2 / (x * x + 1)),
    "softmax": nn.Softmax(1),
    "arithmetic": Calls(lambda x: (x + 2) * x - x / 3 + (x - 1)),
    "mean": Calls(lambda x: x.mean((2, 3))),
    "mean that keeps its axes": Calls(lambda x: x - x.mean((1, 3), keepdim=True)),
    "pooling to one position": nn.AdaptiveAvgPool2d(1),
    "pooling with channels last": Calls(
        lambda x: nn.functional.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1).flatten(1)
    ),
    "maximum": Calls(lambda x: x.amax((2, 3))),
    "length": Calls(lambda x: x.norm(dim=1, keepdim=True)),
    "variance": Calls(lambda x: torch.var_mean(x, dim=(1, 2, 3), keepdim=True, correction=0)[0] * x),
    "mean with the variance": Calls(lambda x: torch.var_mean(x, dim=(1, 2), keepdim=True, correction=0)[1]),
    "linear": nn.Sequential(nn.Flatten(), nn.Linear(3 * 15 * 14, 4)),
    "linear without bias": nn.Sequential(nn.Flatten(), nn.Linear(3 * 15 * 14, 4, bias=False)),
    "view": Calls(lambda x: x.view(len(x), 9, -1)),
    "channels last": Calls(lambda x: x.contiguous(memory_format=torch.channels_last) * 2),
    "two uses of a convolution": Calls(_both, nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    "one layer in two places": Calls(_twice, nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)),
    "one normalisation after the other": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)),
    "half of the padding": nn.Sequential(PadToHalf(5), nn.Conv2d(3, 4, 5, stride=2)),
    "padding before padding": nn.Sequential(nn.ConstantPad2d(1, 0.5), nn.Conv2d(3, 4, 3, padding=1)),
    "unused": Calls(lambda x: (x.erf(), x + 1)[1]),
    "given back": nn.Identity(),
}  # fmt: skip


@pytest.mark.parametrize("what", OPERATIONS)
def test_operation_computes_what_torch_computes(what: str):
    torch.manual_seed(0)
    compared(trained(OPERATIONS[what]), images())


@pytest.mark.parametrize("n", [1, 2, 8, 9, 20])
def test_batch_may_have_any_size(n: int):
    module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Softmax(1))
    got = session(to_onnx(module.eval(), SHAPE, np.float32).SerializeToString())(images(n).numpy())
    np.testing.assert_allclose(got, module(images(n)).detach(), atol=1e-6)


def test_bytes_become_numbers():
    pixels = (images() * 50 + 128).clamp(0, 255).to(torch.uint8)
    assert compared(Calls(lambda x: x.float().div_(255)), pixels)["Cast"] == 1


POSITIONS = torch.arange(14.0)


def _seen_then_changed(x: Tensor) -> Tensor:
    x = x + 1
    flat = x.flatten(1)
    x.relu_()
    return flat


UNSUPPORTED: dict[str, tuple[nn.Module, str]] = {
    "an unknown operation": (nn.Sequential(nn.Conv2d(3, 4, 1), nn.GELU(), nn.Flatten()), r"gelu.default"),
    "another order of the values": (Calls(lambda x: (x + 1).as_strided(x.shape, x.stride(), 0)), "of other values"),
    "a transposed convolution": (nn.ConvTranspose2d(3, 4, 2), "transposed"),
    "statistics of the batch": (nn.BatchNorm2d(3, track_running_stats=False), "statistics of the batch"),
    "rounding up": (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode"),
    "a batch in another order": (Calls(lambda x: x.view(2 * len(x), -1).view(len(x), -1)), "across the batch"),
    "a row for all": (Calls(lambda x: x.mean((0, 1))), "a row for each input"),
    "two outputs": (Calls(lambda x: (x, x)), "not one tensor"),
    "a corrected variance": (Calls(lambda x: torch.var_mean(x, dim=(1, 2), keepdim=True)[0]), "correction"),
    "another norm": (Calls(lambda x: x.norm(p=1, dim=1)), "of order 1"),
    "a factor": (Calls(lambda x: torch.add(x, x, alpha=2)), "with a factor"),
    "arithmetic of bytes": (Calls(lambda x: (x * 2).to(torch.uint8) / 3), "not of float32"),
    "a tensor of its own": (Calls(lambda x: x + POSITIONS), "neither input nor weight"),
    "double precision": (Calls(lambda x: x.double().mean((2, 3)).float()), "float64"),
    "a view that is changed": (
        Calls(_seen_then_changed),
        "relu.default in place, and other tensors share the memory",
    ),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_cannot_be_written_is_refused_with_the_reason(what: str):
    module, words = UNSUPPORTED[what]
    with pytest.raises(UnsupportedError, match=words):
        to_onnx(module.eval(), SHAPE, np.float32)


def test_weights_that_are_too_large_for_a_file_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx_graph, "_MAX_BYTES", 4 * 108)
    to_onnx(nn.Conv2d(3, 4, 3, bias=False).eval(), SHAPE, np.float32)
    with pytest.raises(UnsupportedError, match="its weights take 448 bytes"):
        to_onnx(nn.Conv2d(3, 4, 3).eval(), SHAPE, np.float32)


@pytest.mark.parametrize("negative", [False, True], ids=["", "negative scales"])
@pytest.mark.parametrize(
    "spec",
    [
        FastNetSpec(width=0.125),
        WideResNetSpec(depth=10, widen=1),
        WideResNetSpec(depth=10, widen=1, outputs=2),
        LiteSpec(width=0.25, depth=0.5),
    ],
    ids=repr,
)
@torch.no_grad()
def test_network_computes_what_torch_computes_and_is_not_changed(spec: ModelSpec, negative: bool):
    torch.manual_seed(0)
    given = images(shape=(3, 23, 32))
    network = trained(spec.build(Problem(5, 1, given.shape[1:])), negative=negative)
    if isinstance(network, InitialisesFromData):
        network.initialise_from(given)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    compared(Calls(lambda x, network: class_output(network(x)), network).eval(), given)
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("cut", [0, 1, 6, 12, 17, 18, 19])
def test_front_part_of_a_network_gives_the_value_at_the_cut(cut: int):
    torch.manual_seed(0)
    network = trained(LiteSpec(width=0.25).build(Problem(5, 1, (3, 64, 64))))
    compared(network[:cut], images(2, (3, 64, 64)))


def test_parity_of_the_whole_network():
    """EfficientNet-Lite0 itself, with random weights."""
    torch.manual_seed(0)
    network = LiteSpec().build(Problem(5, 1, (3, 96, 96)))
    batch = images(12, (3, 96, 96))
    with torch.no_grad():
        network(batch)
    assert compared(network.eval(), batch[:4])["Conv"] == 49
