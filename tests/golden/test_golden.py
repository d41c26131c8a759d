"""Twenty steps of every method, cost by cost: a refactoring must leave them unchanged.

After a change that is meant to alter them: UPDATE_GOLDEN=1 pytest tests/golden, and say why in the commit.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from meanteacher.train.state import trained_parameters
from support import METHODS, PROBLEM, SmallNet, stream

CURVES = Path(__file__).parent / "curves.json"
STEPS = 20


def _curve(name: str) -> dict[str, list[float]]:
    method = METHODS[name]
    torch.manual_seed(0)
    student = SmallNet().train()
    memory = method.init(student, PROBLEM).train()
    optimizer = torch.optim.SGD(trained_parameters(student, memory), lr=0.05)
    batches = stream("mixed")
    curve: dict[str, list[float]] = {}
    for step in range(STEPS):
        torch.manual_seed(step)
        batch = batches[step]
        output = method.forward(student, memory, batch, step)
        optimizer.zero_grad()
        torch.stack(list(output.costs.values())).sum().backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)
        for cost, value in output.costs.items():
            curve.setdefault(cost, []).append(value.item())
    return curve


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, list[float]]]:
    if os.environ.get("UPDATE_GOLDEN"):
        curves = {name: _curve(name) for name in METHODS}
        CURVES.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    content: dict[str, dict[str, list[float]]] = json.loads(CURVES.read_text(encoding="utf-8"))
    return content


def test_every_method_has_a_golden_curve(golden: dict[str, dict[str, list[float]]]):
    assert set(golden) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_costs_of_twenty_steps_are_unchanged(name: str, golden: dict[str, dict[str, list[float]]]):
    """To a ten-thousandth: other processors round differently."""
    curve = _curve(name)
    assert set(curve) == set(golden[name])
    for cost, values in curve.items():
        assert values == pytest.approx(golden[name][cost], rel=1e-4, abs=1e-6), cost
