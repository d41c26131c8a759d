"""Every method trains every network of the paper: neither knows of the other."""

import dataclasses

import pytest
import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, Batch, Problem
from meanteacher.methods import ImprovedGan
from meanteacher.models import (
    Conv13Spec,
    ImageGeneratorSpec,
    ModelSpec,
    PointGeneratorSpec,
    ResNeXt152Spec,
    Shake26Spec,
    WideResNetSpec,
)
from meanteacher.train.checkpoint import trained_parameters
from support import METHODS

PROBLEM = Problem(n_classes=4, n_examples=20, input_shape=(3, 32, 32))
NETWORKS: dict[str, ModelSpec] = {
    "conv13": Conv13Spec(width=0.05),
    "shake26": Shake26Spec(width=0.05),
    "wrn": WideResNetSpec(depth=10, widen=1),
}


def _batch(step: int) -> Batch:
    draws = torch.Generator().manual_seed(step)

    def view() -> Tensor:
        return torch.randn(6, 3, 32, 32, generator=draws)

    labels = torch.tensor([0, 1, 2, UNLABELLED, UNLABELLED, UNLABELLED])
    return Batch({role: view() for role in ("student", "teacher", "strong")}, labels, torch.arange(6) + step)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", METHODS)
def test_method_trains_network(name: str, network: str):
    torch.manual_seed(0)
    method = METHODS[name]
    if isinstance(method, ImprovedGan):
        method = dataclasses.replace(method, generator=ImageGeneratorSpec(width=0.05))
    student = NETWORKS[network].build(PROBLEM).train()
    memory = method.init(student, PROBLEM).train()
    trained = trained_parameters(student, memory)
    optimizer = torch.optim.SGD(trained, lr=0.01)
    for step in range(2):
        output = method.forward(student, memory, _batch(step), step)
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, _batch(step), output, step)
        assert all(bool(torch.isfinite(cost.value)) for cost in output.costs.values())
    assert all(p.grad is not None for p in student.parameters()), "every weight takes part"
    assert method.predictor(student, memory).eval()(_batch(0).views["student"]).shape == (6, 4)


def test_resnext_trains_with_two_outputs():
    method = dataclasses.replace(METHODS["mean-teacher"], logit_distance=0.01)
    student = ResNeXt152Spec(width=0.1, outputs=2).build(PROBLEM).train()
    output = method.forward(student, method.init(student, PROBLEM), _batch(0), 0)
    assert set(output.costs) == {"classification", "consistency", "logit distance"}
    output.total.backward()
    assert all(bool(parameter.grad.any()) for parameter in student.parameters())


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (PointGeneratorSpec(), (2,)),
        (ImageGeneratorSpec(width=0.1), (3, 32, 32)),
        (ImageGeneratorSpec(width=0.1), (1, 32, 32)),
    ],
)
def test_generator_makes_examples_of_the_datas_shape(
    spec: PointGeneratorSpec | ImageGeneratorSpec, shape: tuple[int, ...]
):
    generator = spec.build(Problem(n_classes=2, n_examples=9, input_shape=shape))
    assert generator(torch.randn(5, spec.n_noise)).shape == (5, *shape)
