"""Every network and every generator of the package holds to the contract. Its bfloat16 part is test_bfloat16.py."""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from instances import GENERATORS, NETWORKS, PROBLEM
from torch import Tensor, nn

from meanteacher import models
from meanteacher import testing as contract
from meanteacher.core import InitialisesFromData, InputError, Problem
from meanteacher.models import ExternalSpec, MlpSpec, ModelSpec
from meanteacher.passes import without_dropout

ALL_NETWORKS: dict[str, ModelSpec] = {**NETWORKS, **GENERATORS}
every_network = pytest.mark.parametrize("name", ALL_NETWORKS)
every_classifier = pytest.mark.parametrize("name", NETWORKS)

NOISY = {"conv13", "conv13-two-outputs", "laptop", "laptop-two-outputs", "mirrored", "mlp", "shake26"}
"""Those that draw while they train: dropout, or Shake-Shake's gates."""
NO_GRADIENT = {"lite": "project.1.bias", "lite-pair": "project.1.bias", "shake26": "shortcut.2.bias"}
"""Ends of the names of parameters that change nothing: such a bias is subtracted by the normalisation behind it."""

WITH_OUTPUTS: dict[str, Any] = {
    type(spec).__name__: dataclasses.replace(spec, outputs=1) for spec in NETWORKS.values() if hasattr(spec, "outputs")
}
"""Those that can be asked for one output or two."""
WITH_HEADS = [name for name, spec in WITH_OUTPUTS.items() if not isinstance(spec, ExternalSpec)]
"""Those whose second output is a layer of its own, rather than the second half of a layer of twice the size."""


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def given(spec: ModelSpec, n: int = 6, seed: int = 1) -> Tensor:
    """Images for a network, noise for a generator."""
    shape = (spec.n_noise,) if spec in GENERATORS.values() else PROBLEM.input_shape
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def built(spec: ModelSpec, *, seed: int = 0) -> nn.Module:
    """As a run begins with it, in training mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = spec.build(PROBLEM)
        if isinstance(network, InitialisesFromData):
            network.initialise_from(given(spec, 16, seed=2))
        return network


def outputs_of(network: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    output = network(x)
    return output if isinstance(output, tuple) else (output,)


def loss(outputs: tuple[Tensor, ...]) -> Tensor:
    """A weighted sum: the plain one does not move a layer that subtracts its batch mean."""
    draws = torch.Generator().manual_seed(4)
    return torch.stack([(y * torch.randn(y.shape, generator=draws)).sum() for y in outputs]).sum()


def trained(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def size(network: nn.Module, within: str = "") -> int:
    return sum(parameter.numel() for name, parameter in network.named_parameters() if within in name)


def test_every_network_of_the_package_is_held_to_the_contract():
    exported = {getattr(models, name) for name in models.__all__} - {ModelSpec}
    held = {kind for spec in ALL_NETWORKS.values() for kind in type(spec).__mro__}
    assert [kind.__name__ for kind in exported - held] == []


# --- what a pass gives ------------------------------------------------------------------------------------


@every_network
@pytest.mark.parametrize("training", [True, False])
def test_outputs_have_the_shape_that_the_problem_asks_for(name: str, training: bool):
    spec = ALL_NETWORKS[name]
    network = built(spec).train(training)
    shape = PROBLEM.input_shape if name in GENERATORS else (PROBLEM.n_classes,)
    for n in (6,) if training else (6, 1):
        outputs = outputs_of(network, given(spec, n))
        inside = getattr(spec, "model", spec)
        assert len(outputs) == getattr(inside, "outputs", 1)
        assert {output.shape for output in outputs} == {(n, *shape)}
        assert all(output.isfinite().all() for output in outputs)


@every_network
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_does_not_write_its_input(name: str, training: bool):
    x = given(ALL_NETWORKS[name])
    before = x.clone()
    built(ALL_NETWORKS[name]).train(training)(x)
    assert torch.equal(x, before)


@every_network
def test_the_gradient_reaches_every_parameter(name: str):
    spec = ALL_NETWORKS[name]
    network = built(spec).double()
    loss(outputs_of(network, given(spec, 8).double())).backward()
    assert size(network) > 0
    for parameter_name, parameter in trained(network).items():
        if not parameter_name.endswith(NO_GRADIENT.get(name, "none")):
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().max() > 1e-5, parameter_name


@every_network
def test_evaluation_is_deterministic_draws_nothing_and_writes_nothing(name: str):
    spec = ALL_NETWORKS[name]
    network, x = built(spec).eval(), given(spec)
    draws, before = torch.get_rng_state(), copy.deepcopy(network.state_dict())
    first = outputs_of(network, x)
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    assert all(torch.equal(y, again) for y, again in zip(first, outputs_of(network, x), strict=True))


@every_network
def test_evaluation_sees_every_row_as_if_it_were_alone(name: str):
    spec = ALL_NETWORKS[name]
    network, x = built(spec).double(), given(spec).double()
    network(x)
    network.eval()
    together = outputs_of(network, x)
    assert all(len(y.unique(dim=0)) == len(x) for y in together)
    for k in range(len(x)):
        for y, alone in zip(together, outputs_of(network, x[k : k + 1]), strict=True):
            torch.testing.assert_close(y[k], alone[0], rtol=1e-6, atol=1e-9)


@every_network
def test_a_training_pass_is_reproducible_from_the_global_seed(name: str):
    spec = ALL_NETWORKS[name]
    network, x = built(spec).double(), given(spec).double()

    def step(seed: int, *, draws_in_between: int = 0) -> list[Tensor]:
        torch.manual_seed(seed)
        outputs = outputs_of(network, x)
        torch.rand(draws_in_between)
        return [*outputs, *torch.autograd.grad(loss(outputs), list(trained(network).values()))]

    once = step(1)
    assert all(torch.equal(a, b) for a, b in zip(once, step(1), strict=True))
    assert torch.allclose(once[0], step(2)[0]) == (name not in NOISY)
    # What draws between the forward and the backward pass changes nothing.
    assert all(torch.equal(a, b) for a, b in zip(once, step(1, draws_in_between=3), strict=True))


@every_network
@pytest.mark.parametrize("training", [True, False])
def test_the_memory_layout_does_not_matter(name: str, training: bool):
    spec = ALL_NETWORKS[name]
    x, seen = given(spec).double(), []
    for layout in (torch.contiguous_format, torch.channels_last):
        network = built(spec).double().train(training).to(memory_format=layout)
        torch.manual_seed(3)
        with without_dropout(network):  # its mask is drawn in the order of memory
            outputs = outputs_of(network, x.contiguous(memory_format=layout) if x.ndim == 4 else x)
        gradients = torch.autograd.grad(loss(outputs), list(trained(network).values()))
        seen.append([tensor.detach() for tensor in (*outputs, *gradients, *network.buffers())])
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9 * max(1.0, float(one.abs().max())))


@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_computes_and_learns_in_the_precision_it_is_given(name: str, dtype: torch.dtype):
    spec = ALL_NETWORKS[name]
    network, x = built(spec).to(dtype), given(spec).to(dtype)
    outputs = outputs_of(network, x)
    loss(outputs).backward()
    kept = [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]
    gradients = [parameter.grad for parameter in trained(network).values() if parameter.grad is not None]
    assert {tensor.dtype for tensor in (*outputs, *kept, *gradients, *outputs_of(network.eval(), x))} == {dtype}


@pytest.mark.parametrize("name", NETWORKS)
def test_network_holds_to_the_published_contract(name: str):
    contract.check_network(NETWORKS[name], PROBLEM)


# --- what is built, saved and copied ----------------------------------------------------------------------


@every_network
def test_it_starts_as_the_global_seed_says(name: str):
    one, same, other = (dict(built(ALL_NETWORKS[name], seed=seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(one[key], same[key]) for key in one)
    # Directions of weights are drawn. Lengths and biases may start alike, and a layer may be fitted to the data.
    drawn = [key for key, parameter in trained(built(ALL_NETWORKS[name])).items() if parameter.ndim > 1]
    assert drawn
    assert not any(torch.equal(one[key], other[key]) for key in drawn)


@every_network
def test_its_state_survives_being_saved_and_loaded(name: str):
    spec = ALL_NETWORKS[name]
    network, restored, x = built(spec), built(spec, seed=1), given(spec)
    network(x)
    before = outputs_of(network.eval(), x)
    assert not torch.equal(outputs_of(restored.eval(), x)[0], before[0])
    restored.load_state_dict({key: tensor.clone() for key, tensor in network.state_dict().items()})
    assert all(torch.equal(y, again) for y, again in zip(before, outputs_of(restored, x), strict=True))


@every_network
def test_a_deep_copy_is_a_network_of_its_own(name: str):
    spec = ALL_NETWORKS[name]
    network, x = built(spec), given(spec)
    loss(outputs_of(network, x)).backward()
    teacher = copy.deepcopy(network).eval()
    before = outputs_of(network.eval(), x)
    assert all(torch.equal(y, copied) for y, copied in zip(before, outputs_of(teacher, x), strict=True))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert all(torch.equal(y, copied) for y, copied in zip(before, outputs_of(teacher, x), strict=True))
    assert not torch.equal(outputs_of(network, x)[0], before[0])


@pytest.mark.parametrize("name", [name for name, spec in NETWORKS.items() if not isinstance(spec, MlpSpec)])
def test_tables_are_refused(name: str):
    inside = getattr(NETWORKS[name], "model", NETWORKS[name])
    kind = type(inside).__name__.removesuffix("Spec")
    named = {"Conv13": "13-layer ConvNet", "ExternalStandIn": "timm's any", "PooledStandIn": "timm's any"}
    named |= {"ShallowResNeXt": "ResNeXt152", "LitePair": "EfficientNet-Lite"}
    network = named.get(kind, kind)
    with pytest.raises(InputError, match=rf"{network} takes images .*\(20,\).* Mlp"):
        NETWORKS[name].build(Problem(n_classes=2, n_examples=10, input_shape=(20,)))


# --- one output and two -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_OUTPUTS)
@pytest.mark.parametrize("training", [True, False])
def test_one_output_is_a_tensor_and_two_are_two_different_ones(name: str, training: bool):
    one, two = (built(dataclasses.replace(WITH_OUTPUTS[name], outputs=n)).train(training) for n in (1, 2))
    x = given(WITH_OUTPUTS[name])
    for network in (one, two):
        if isinstance(network, InitialisesFromData):
            network.initialise_from(x)
    logits, both = one(x), two(x)
    assert isinstance(logits, Tensor)
    assert isinstance(both, tuple)
    for_class, for_consistency = both
    assert logits.shape == for_class.shape == for_consistency.shape == (6, PROBLEM.n_classes)
    assert (for_class - for_consistency).abs().max() > 0.1 * for_class.abs().max() > 0


@pytest.mark.parametrize("name", WITH_HEADS)
def test_the_second_output_costs_one_more_last_layer_and_changes_nothing_else(name: str):
    spec = WITH_OUTPUTS[name]
    torch.manual_seed(0)
    one = spec.build(PROBLEM)
    torch.manual_seed(0)
    two = dataclasses.replace(spec, outputs=2).build(PROBLEM)
    assert size(two) - size(one) == size(two, "classification") == size(two, "consistency") > 0
    # Built from the same seed, the two are one network up to the second head.
    torch.manual_seed(1)
    alone = one(given(spec))
    torch.manual_seed(1)
    assert torch.equal(two(given(spec))[0], alone)


@pytest.mark.parametrize("name", WITH_HEADS)
@pytest.mark.parametrize("output", [0, 1])
def test_the_gradient_of_an_output_reaches_its_own_last_layer_and_the_trunk(name: str, output: int):
    spec = dataclasses.replace(WITH_OUTPUTS[name], outputs=2)
    network = built(spec)
    loss((network(given(spec))[output],)).backward()
    other = ("consistency", "classification")[output]
    reached = {key for key, parameter in network.named_parameters() if parameter.grad is not None}
    assert reached == {key for key in trained(network) if other not in key}


@pytest.mark.parametrize("name", WITH_OUTPUTS)
@pytest.mark.parametrize("outputs", [0, 3])
def test_any_other_number_of_outputs_is_refused(name: str, outputs: int):
    with pytest.raises(InputError, match=rf"outputs=1.* outputs=2.* got {outputs}"):
        dataclasses.replace(WITH_OUTPUTS[name], outputs=outputs).build(PROBLEM)
