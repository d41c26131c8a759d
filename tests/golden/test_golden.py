"""Twenty steps of every method, cost by cost, and what the evaluated network makes of all images after each step.

A refactoring must leave them unchanged. After a change that is meant to alter them: `make golden`, and say why in the
commit.

Everything is float64, the draws too, and no draw depends on the machine. Instruction sets differ by up to 1e-12 here,
a weight that is one per cent higher makes 3e-5 or more. In float32 a processor's rounding makes 5e-4 by way of VAT.
"""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import Method
from meanteacher.data import ImageStream
from meanteacher.evaluate import predict_logits
from meanteacher.schedules import Constant
from meanteacher.train.checkpoint import trained_parameters
from support import DECAY, METHODS, PROBLEM, SmallNet, in_double, stream

Curve = dict[str, list[float]]
CURVES = Path(__file__).parent / "curves.json"
STEPS = 20
DIGITS = 10
"""That are kept: the last ones differ between machines, and would change the file each time it is regenerated."""
TOLERANCE = 1e-8
"""Relative and absolute: ten thousand times what instruction sets differ by, a thousandth of a change that matters."""


class ExactDropout(nn.Dropout):
    """Dropout whose draws are the same on every machine; torch's own are MKL's where there is MKL."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(x.shape, dtype=torch.float64) >= self.p) / (1 - self.p)


def curve(method: Method) -> Curve:
    batches = stream("mixed")
    batches.normalise.double()
    with in_double():
        return _trained_on(batches, method)


def _trained_on(batches: ImageStream, method: Method) -> Curve:
    torch.manual_seed(0)
    student = SmallNet()
    student.layers[3] = ExactDropout(0.25)
    student.train()
    memory = method.init(student, PROBLEM).train()
    optimizer = torch.optim.SGD(trained_parameters(student, memory), lr=0.05)
    data = batches.dataset
    values: Curve = {}
    for step in range(STEPS):
        torch.manual_seed(step)
        batch = batches[step]
        output = method.forward(student, memory, batch, step)
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)
        logits = predict_logits(method.predictor(student, memory), data.images, normalise=batches.normalise)
        costs = {name: cost.value for name, cost in output.costs.items()}
        for name, value in {**costs, "evaluated": F.cross_entropy(logits, data.labels)}.items():
            assert value.dtype == torch.float64, f"{name} is {value.dtype}: its digits depend on the processor"
            values.setdefault(name, []).append(float(f"{value.item():.{DIGITS}g}"))
    return values


def differences(ours: Curve, golden: Curve) -> list[str]:
    """The names of the curves that differ by more than the tolerance."""
    assert set(ours) == set(golden)
    return [name for name in ours if ours[name] != pytest.approx(golden[name], rel=TOLERANCE, abs=TOLERANCE)]


@pytest.fixture(scope="module")
def golden() -> dict[str, Curve]:
    content: dict[str, Curve] = json.loads(CURVES.read_text(encoding="utf-8"))
    return content


def test_every_method_has_a_golden_curve(golden: dict[str, Curve]):
    assert set(golden) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_twenty_steps_are_unchanged(name: str, golden: dict[str, Curve]):
    assert differences(curve(METHODS[name]), golden[name]) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_decay_one_per_cent_higher_is_noticed(name: str, golden: dict[str, Curve]):
    changed = dataclasses.replace(METHODS[name], decay=Constant(1.01 * DECAY))
    assert "evaluated" in differences(curve(changed), golden[name])


@pytest.mark.parametrize("name", [name for name in METHODS if name != "supervised"])
def test_a_weight_one_per_cent_higher_is_noticed(name: str, golden: dict[str, Curve]):
    """In every curve: the costs are those of other weights from the second step on."""
    changed = dataclasses.replace(METHODS[name], weight=Constant(2.02))
    assert differences(curve(changed), golden[name]) == list(golden[name])


if __name__ == "__main__":
    print(json.dumps({name: curve(method) for name, method in METHODS.items()}, indent=1))  # noqa: T201
