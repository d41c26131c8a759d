"""Every network with one output and with two."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models import Conv13Spec, MlpSpec, ModelSpec, ResNeXt152Spec, Shake26Spec, WideResNetSpec
from meanteacher.models.layers import TwoHeads

PROBLEM = Problem(n_classes=5, n_examples=100, input_shape=(2, 16, 16))
SPECS: dict[str, ModelSpec] = {
    "conv13": Conv13Spec(width=0.1),
    "mlp": MlpSpec(hidden=(20, 10), dropout=0.1),
    "resnext152": ResNeXt152Spec(width=0.1),
    "shake26": Shake26Spec(width=0.1),
    "wrn": WideResNetSpec(depth=10, widen=1),
}
every_network = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def built(spec: ModelSpec, **changes: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return replace(spec, **changes).build(PROBLEM)


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, *PROBLEM.input_shape)


def heads_of(network: nn.Module) -> TwoHeads:
    (heads,) = (part for part in network.modules() if isinstance(part, TwoHeads))
    return heads


def in_part(network: nn.Module, part: nn.Module) -> set[str]:
    """The names that the parameters of a part have in the network."""
    wanted = {id(parameter) for parameter in part.parameters()}
    return {name for name, parameter in network.named_parameters() if id(parameter) in wanted}


@every_network
def test_one_output_is_a_tensor_of_logits(spec: ModelSpec, images: Tensor) -> None:
    logits = built(spec)(images)
    assert isinstance(logits, Tensor)
    assert logits.shape == (6, 5)


@every_network
@pytest.mark.parametrize("training", [True, False])
def test_two_outputs_are_two_different_tensors(spec: ModelSpec, training: bool, images: Tensor) -> None:
    outputs = built(spec, outputs=2).train(training)(images)
    assert isinstance(outputs, tuple)
    for_class, for_consistency = outputs
    assert for_class.shape == for_consistency.shape == (6, 5)
    assert (for_class - for_consistency).abs().max() > 1e-3


@every_network
def test_the_second_output_costs_one_more_last_layer_and_changes_nothing_else(spec: ModelSpec, images: Tensor) -> None:
    one, two = built(spec), built(spec, outputs=2)
    one_size, two_size = (sum(p.numel() for p in network.parameters()) for network in (one, two))
    heads = heads_of(two)
    assert two_size - one_size == sum(p.numel() for p in heads.consistency.parameters())
    assert two_size - one_size == sum(p.numel() for p in heads.classification.parameters())
    # Built from the same seed, the two are one network up to the second head.
    torch.manual_seed(1)
    alone = one(images)
    torch.manual_seed(1)
    assert torch.equal(two(images)[0], alone)


@every_network
@pytest.mark.parametrize("output", [0, 1])
def test_the_gradient_of_an_output_reaches_its_own_last_layer_and_the_trunk(
    spec: ModelSpec, output: int, images: Tensor
) -> None:
    network = built(spec, outputs=2)
    # A weighted sum: the plain one does not move a layer that subtracts its batch mean.
    logits = network(images)[output]
    (logits * torch.randn_like(logits)).sum().backward()
    heads = heads_of(network)
    own = (heads.classification, heads.consistency)[output]
    reached = {name for name, p in network.named_parameters() if p.grad is not None}
    trunk = {name for name, _ in network.named_parameters()} - in_part(network, heads)
    assert reached == trunk | in_part(network, own)


@every_network
def test_a_deep_copy_has_the_same_two_outputs(spec: ModelSpec, images: Tensor) -> None:
    network = built(spec, outputs=2)
    network(images)
    teacher = copy.deepcopy(network).eval()
    torch.testing.assert_close(teacher(images), network.eval()(images), rtol=0, atol=0)


@every_network
@pytest.mark.parametrize("outputs", [0, 3])
def test_any_other_number_of_outputs_is_refused(spec: ModelSpec, outputs: int) -> None:
    with pytest.raises(InputError, match=f"outputs=1, or outputs=2 for separate .* got {outputs}"):
        built(spec, outputs=outputs)


@every_network
def test_the_network_starts_as_the_global_seed_says(spec: ModelSpec) -> None:
    one, same = (built(spec, outputs=2).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    torch.manual_seed(1)
    other = replace(spec, outputs=2).build(PROBLEM).state_dict()
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_both_last_layers_of_the_convnet_are_initialised_from_data(images: Tensor) -> None:
    network = built(replace(SPECS["conv13"], dropout=0.0), outputs=2)
    network.initialise_from(images)
    for logits in network(images):
        torch.testing.assert_close(logits.mean(0), torch.zeros(5), atol=1e-4, rtol=0)
        torch.testing.assert_close(logits.var(0, correction=0), torch.ones(5), atol=1e-3, rtol=0)


def test_with_one_output_the_parameters_keep_their_names() -> None:
    assert "softmax.direction" in built(SPECS["conv13"]).state_dict()
    assert "7.weight" in built(SPECS["mlp"]).state_dict()
    assert "head.weight" in built(SPECS["shake26"]).state_dict()
