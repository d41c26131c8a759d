"""Every network and every method trains in bfloat16: only products are computed in it, and no two types clash.

Shown with tensors without values. On some virtual machines a real bfloat16 convolution ends the process
(docs/experiments/compile-and-precision.md).
"""

import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch
from instances import NETWORKS, PROBLEM
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from meanteacher.core import UNLABELLED, Batch, InitialisesFromData, Method
from meanteacher.methods import ImprovedGan
from meanteacher.models import Conv13Spec, ImageGeneratorSpec
from meanteacher.train.checkpoint import trained_parameters
from meanteacher.train.execution import autocast
from support import METHODS

CPU = torch.device("cpu")


def _outputs(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def _kept(network: nn.Module) -> list[Tensor]:
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


@pytest.mark.parametrize("name", NETWORKS)
def test_network_computes_in_bfloat16_and_keeps_float32(name: str):
    network = NETWORKS[name].build(PROBLEM).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        images = torch.randn(4, 3, 32, 32)
        with autocast("bfloat16", CPU):
            outputs = _outputs(network(images))
        assert {output.dtype for output in outputs} == {torch.bfloat16}
        torch.stack([output.float().sum() for output in outputs]).sum().backward()
        gradients = [parameter.grad for parameter in network.parameters() if parameter.requires_grad]
        assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
        assert {tensor.dtype for tensor in _kept(network)} == {torch.float32}
        with autocast("bfloat16", CPU):
            assert {output.dtype for output in _outputs(network.eval()(images))} == {torch.bfloat16}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_the_convnet_in_bfloat16(name: str):
    method: Method = METHODS[name]
    if isinstance(method, ImprovedGan):
        method = dataclasses.replace(method, generator=ImageGeneratorSpec(width=0.05))
    student = Conv13Spec(width=0.05).build(PROBLEM).train()
    memory = method.init(student, PROBLEM).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        views = {role: torch.randn(6, 3, 32, 32) for role in method.roles}
        batch = Batch(views, torch.tensor([0, 1, *[UNLABELLED] * 4]), torch.arange(6))
        with autocast("bfloat16", CPU):
            output = method.forward(student, memory, batch, 0)
        assert {cost.value.dtype for cost in output.costs.values()} == {torch.float32}
        total = output.total
        torch.autograd.grad(total, trained_parameters(student, memory), allow_unused=True)
        method.after_step(student, memory, batch, output, 0)


@pytest.mark.parametrize("name", ["conv13", "conv13-two-outputs"])
def test_first_weights_are_found_in_bfloat16_too(name: str):
    network = NETWORKS[name].build(PROBLEM).train()
    assert isinstance(network, InitialisesFromData)
    with FakeTensorMode(allow_non_fake_inputs=True), autocast("bfloat16", CPU):
        network.initialise_from(torch.randn(4, 3, 32, 32))


# --- a GPU's autocast, which has other lists than a CPU's -------------------------------------------------


class OnGpu(Tensor):
    """A tensor without values that torch takes for a GPU's, so that a GPU's autocast applies to it. No gradients."""

    shape_only: Tensor

    @staticmethod
    def __new__(cls, shape_only: Tensor) -> "OnGpu":
        made = Tensor._make_wrapper_subclass(
            cls, shape_only.shape, strides=shape_only.stride(), dtype=shape_only.dtype, device=torch.device("cuda", 0)
        )
        made.shape_only = shape_only
        return made

    def __getitem__(self, index: Any) -> "OnGpu":
        return OnGpu(self.shape_only[index])  # torch itself would ask a real GPU

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        written = {id(x.shape_only): x for x in tree_leaves((args, kwargs)) if isinstance(x, OnGpu)}
        args, kwargs = tree_map(lambda x: x.shape_only if isinstance(x, OnGpu) else x, (args, kwargs))

        def wrapped(x: object) -> object:
            return x if not isinstance(x, Tensor) else written[id(x)] if id(x) in written else OnGpu(x)

        return tree_map(wrapped, func(*args, **kwargs))


class _Factories(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return OnGpu.__torch_dispatch__(func, types, args, kwargs)


def _on_gpu(network: nn.Module) -> nn.Module:
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                made = OnGpu(torch.empty_like(parameter, device="meta"))
                module._parameters[name] = nn.Parameter(made, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = OnGpu(torch.empty_like(buffer, device="meta"))
    return network


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_network_computes_in_bfloat16_on_a_gpu(name: str):
    network = _on_gpu(NETWORKS[name].build(PROBLEM).train())
    images = OnGpu(torch.empty(4, 3, 32, 32, device="meta"))
    with (
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
        mock.patch("torch.cuda._lazy_init"),
        _Factories(),
        autocast("bfloat16", torch.device("cuda")),
    ):
        assert torch.is_autocast_enabled("cuda")
        for mode in (True, False):
            network.train(mode)
            assert {output.dtype for output in _outputs(network(images))} == {torch.bfloat16}
    assert {tensor.dtype for tensor in _kept(network)} == {torch.float32}
