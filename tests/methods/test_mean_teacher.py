"""Mean Teacher and its variants."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InputError
from meanteacher.costs import (
    Confident,
    ConsistencyCost,
    CTau,
    Kl,
    Mse,
    c_tau,
    kl_divergence,
    logit_distance,
    softmax_mse,
)
from meanteacher.methods import MeanTeacher
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher
from support import METHODS, PROBLEM, SHAPE, SmallNet, stream


class TwoOutputs(nn.Module):
    """A trunk with a last layer for classification and one for consistency."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU())
        self.classify, self.match = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(x)
        return self.classify(features), self.match(features)


def _method(**changes: Any) -> MeanTeacher:
    sound = METHODS["mean-teacher"]
    assert isinstance(sound, MeanTeacher)
    return dataclasses.replace(sound, **changes)


@pytest.mark.parametrize(
    ("cost", "by_hand"),
    [
        (Mse(), softmax_mse),
        (Kl(), kl_divergence),
        (CTau(0.3), lambda s, t: c_tau(s, t, 0.3)),
    ],
)
def test_consistency_cost_is_the_chosen_one_of_student_and_teacher(cost, by_hand):
    method = _method(cost=cost, weight=Constant(7.0))
    student = SmallNet().eval()
    memory = method.init(SmallNet(), PROBLEM).eval()
    batch = stream()[0]
    output = method.forward(student, memory, batch, 0)
    expected = 7.0 * by_hand(student(batch.views["student"]), memory(batch.views["teacher"]))
    torch.testing.assert_close(output.costs["consistency"].value, expected)


def test_student_matches_with_its_second_output_and_the_teacher_answers_with_its_first():
    method = _method(logit_distance=0.01)
    student, other = TwoOutputs(), TwoOutputs()
    memory = method.init(other, PROBLEM)
    batch = stream()[0]
    output = method.forward(student, memory, batch, 0)
    logits, consistency_logits = student(batch.views["student"])
    target, _ = other(batch.views["teacher"])
    torch.testing.assert_close(output.costs["consistency"].value, 2.0 * softmax_mse(consistency_logits, target))
    torch.testing.assert_close(output.costs["logit distance"].value, 0.01 * logit_distance(logits, consistency_logits))
    torch.testing.assert_close(output.logits, logits)
    assert [output.costs[name].weight for name in ("consistency", "logit distance")] == [2.0, 0.01]


def test_consistency_reaches_the_classifying_layer_only_through_the_logit_distance():
    method = _method(logit_distance=0.01)
    student = TwoOutputs()
    output = method.forward(student, method.init(TwoOutputs(), PROBLEM), stream()[0], 0)
    weight = student.classify.weight
    (untouched,) = torch.autograd.grad(output.costs["consistency"].value, weight, retain_graph=True, allow_unused=True)
    (coupled,) = torch.autograd.grad(output.costs["logit distance"].value, weight)
    assert untouched is None
    assert bool(coupled.any())


@pytest.mark.parametrize(
    ("network", "distance", "outputs"), [(TwoOutputs, None, "two outputs"), (SmallNet, 0.01, "one output")]
)
def test_outputs_and_logit_distance_must_fit(network: type[nn.Module], distance: float | None, outputs: str):
    method = _method(logit_distance=distance)
    student = network()
    with pytest.raises(InputError, match=rf"logit_distance={distance} .*{outputs}\b"):
        method.forward(student, method.init(student, PROBLEM), stream()[0], 0)


@pytest.mark.parametrize("dropout", [None, 0.0, 0.25])
def test_teacher_drops_units_only_if_told_to(dropout: float | None):
    memory = _method(teacher_dropout=dropout).init(SmallNet(), PROBLEM).train()
    x = torch.randn(8, *SHAPE)
    torch.manual_seed(0)
    same = torch.equal(memory(x), memory(x))
    assert same == (dropout == 0)
    assert isinstance(memory, Teacher)
    assert torch.allclose(memory(1e3 * x), memory(x), atol=0.01) == (dropout == 0), "a batch normalises itself"


@pytest.mark.parametrize("dropout", [True, False, -0.1, 1.0, 50])
def test_teachers_dropout_is_a_rate_and_no_longer_a_switch(dropout: float):
    with pytest.raises(InputError, match="teacher_dropout is a rate from 0"):
        _method(teacher_dropout=dropout)


def test_teacher_of_decay_zero_is_the_student():
    method = _method(decay=Constant(0.0))
    student = SmallNet()
    memory = method.init(SmallNet(), PROBLEM)
    method.after_step(student, memory, stream()[0], method.forward(student, memory, stream()[0], 9), 9)
    assert isinstance(memory, Teacher)
    for ours, theirs in zip(memory.network.parameters(), student.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def _weight_with(cost: ConsistencyCost) -> float:
    torch.manual_seed(0)
    student = SmallNet()
    method = _method(cost=cost, weight=Constant(2.0))
    weight = method.forward(student, method.init(student, PROBLEM), stream()[0], 0).costs["consistency"].weight
    assert weight is not None
    return float(weight)


def test_a_confident_cost_says_that_it_rests_while_the_teacher_is_unsure():
    assert _weight_with(Confident(threshold=0.999999)) == 0.0
    assert _weight_with(Confident(threshold=0.0)) == 2.0


@dataclasses.dataclass(frozen=True)
class OnlyPositive(ConsistencyCost):
    """A cost of one's own: it rests while no logit of the target is above the limit."""

    limit: float

    def __call__(self, student_logits: Tensor, target_logits: Tensor, rows: Tensor | None = None) -> Tensor:
        return ((student_logits - target_logits).square() * (target_logits > self.limit)).mean()

    def is_active(self, target_logits: Tensor) -> Tensor:
        return (target_logits > self.limit).any()


def test_a_cost_of_ones_own_can_rest():
    assert _weight_with(OnlyPositive(1e6)) == 0.0
    assert _weight_with(OnlyPositive(-1e6)) == 2.0
