import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, Problem
from meanteacher.models import FastNetSpec, MirroredSpec, ModelSpec, WideResNetSpec
from meanteacher.passes import both_outputs

PROBLEM = Problem(n_classes=3, n_examples=10, input_shape=(3, 16, 16))
every_spec = pytest.mark.parametrize(
    "spec",
    [FastNetSpec(width=0.25), WideResNetSpec(depth=10, widen=1), WideResNetSpec(depth=10, widen=1, outputs=2)],
    ids=repr,
)


def images() -> Tensor:
    return torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def built(spec: ModelSpec) -> nn.Module:
    torch.manual_seed(0)
    network = spec.build(PROBLEM)
    if isinstance(network, InitialisesFromData):
        network.initialise_from(images())
    return network.train()


@every_spec
def test_training_is_that_of_the_network_alone(spec: ModelSpec):
    alone, mirrored = built(spec), built(MirroredSpec(spec))
    for _ in range(3):
        torch.testing.assert_close(mirrored(images()), alone(images()), rtol=0, atol=0)
    for one, other in zip(alone.state_dict().values(), mirrored.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@every_spec
def test_evaluation_is_the_mean_over_the_image_and_its_mirror_image(spec: ModelSpec):
    alone, mirrored = built(spec), built(MirroredSpec(spec))
    for _ in range(50):
        for network in (alone, mirrored):
            network(images())  # until the statistics are those of the images
    alone.eval()
    mirrored.eval()
    x = images()[:3]
    for one, other, mean in zip(
        both_outputs(alone(x)), both_outputs(alone(x.flip(-1))), both_outputs(mirrored(x)), strict=True
    ):
        torch.testing.assert_close(mean, (one + other) / 2)
        assert (mean - one).abs().max() > 1e-3


@every_spec
def test_an_image_and_its_mirror_image_are_judged_alike(spec: ModelSpec):
    mirrored = built(MirroredSpec(spec)).eval()
    for one, other in zip(both_outputs(mirrored(images())), both_outputs(mirrored(images().flip(-1))), strict=True):
        torch.testing.assert_close(one, other)
