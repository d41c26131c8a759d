"""FixMatch and FreeMatch: who is certain, and what is learnt from it."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch
from meanteacher.methods import FixMatch, FreeMatch
from meanteacher.methods.pseudo_label import Certainty
from support import METHODS, PROBLEM, SmallNet, stream

METHOD = METHODS["fixmatch"]
assert isinstance(METHOD, FixMatch)


class Says(nn.Module):
    """Gives the first three pixels back as logits, times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.flatten(1)[:, :3]


def _batch(weak: list[list[float]], strong: list[list[float]], labels: list[int]) -> Batch:
    def images(rows: list[list[float]]) -> Tensor:
        return F.pad(torch.tensor(rows), (0, 33)).view(-1, 1, 6, 6)

    return Batch({"student": images(weak), "strong": images(strong)}, torch.tensor(labels), torch.arange(len(labels)))


CERTAIN, UNCERTAIN = [9.0, 0.0, 0.0], [0.2, 0.0, 0.0]


def test_rows_under_the_threshold_are_ignored():
    method = dataclasses.replace(METHOD, threshold=0.95)
    student = Says()
    memory = method.init(student, PROBLEM)

    def cost(strong_of_uncertain: float) -> float:
        batch = _batch([CERTAIN, UNCERTAIN], [[1.0, 2.0, 3.0], [strong_of_uncertain, 0.0, 0.0]], [UNLABELLED] * 2)
        return method.forward(student, memory, batch, 0).costs["pseudo-label"].item()

    assert cost(0.0) == cost(50.0)
    by_hand = F.cross_entropy(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([0])).item()
    assert cost(0.0) == pytest.approx(2.0 * by_hand / 2)  # one of two unlabelled rows, weight 2


def test_labelled_rows_are_not_given_pseudo_labels():
    student = Says()
    batch = _batch([CERTAIN, CERTAIN], [[0.0, 5.0, 0.0]] * 2, [2, 1])
    output = METHOD.forward(student, METHOD.init(student, PROBLEM), batch, 0)
    assert output.costs["pseudo-label"].item() == 0
    assert output.weights["pseudo-label"] == 0


def test_weak_view_gives_the_label_and_takes_no_gradient():
    student = Says()
    batch = _batch([CERTAIN], [[0.0, 1.0, 0.0]], [UNLABELLED])
    batch.views["student"].requires_grad_()
    batch.views["strong"].requires_grad_()
    cost = METHOD.forward(student, METHOD.init(student, PROBLEM), batch, 0).costs["pseudo-label"]
    weak, strong = torch.autograd.grad(cost, [batch.views["student"], batch.views["strong"]])
    assert not bool(weak.any())
    assert bool(strong.any())


@pytest.mark.parametrize("labelled_by", ["student", "teacher"])
def test_label_comes_from_the_chosen_model(labelled_by: str):
    method = dataclasses.replace(METHOD, labelled_by=labelled_by)
    student = Says()
    memory = method.init(student, PROBLEM)
    with torch.no_grad():
        memory.network.weight.fill_(-1.0)
    batch = _batch([[9.0, 0.0, -9.0]], [[1.0, 2.0, 3.0]], [UNLABELLED])
    cost = method.forward(student, memory, batch, 0).costs["pseudo-label"].item()
    label = 0 if labelled_by == "student" else 2
    by_hand = F.cross_entropy(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([label])).item()
    assert cost == pytest.approx(2.0 * by_hand)


def test_own_statistics_are_for_a_teacher_that_labels():
    assert dataclasses.replace(METHOD, labelled_by="teacher", buffers="own").buffers == "own"


EVERY = torch.tensor([True, True, True])
FREE = METHODS["freematch"]
assert isinstance(FREE, FreeMatch)


def _certainty() -> Certainty:
    memory = FREE.init(SmallNet(), PROBLEM)
    assert isinstance(memory, Certainty)
    return memory


def test_threshold_starts_at_one_over_the_number_of_classes_and_follows_the_confidence():
    memory = _certainty()
    torch.testing.assert_close(memory.threshold(), torch.full((3,), 1 / 3))
    for _ in range(200):
        memory.note(torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]), EVERY[:3], 0.9)
    torch.testing.assert_close(memory.threshold(), torch.full((3,), 0.9), atol=1e-3, rtol=0)


def test_harder_class_has_a_lower_threshold():
    memory = _certainty()
    for _ in range(200):
        memory.note(torch.tensor([[0.9, 0.05, 0.05], [0.3, 0.6, 0.1]]), EVERY[:2], 0.9)
    first, second, third = memory.threshold().tolist()
    assert first > second > third
    assert first == pytest.approx(0.75, abs=1e-3)


def test_only_the_rows_it_is_told_of_count_and_none_change_nothing():
    said = torch.tensor([[0.9, 0.05, 0.05], [0.3, 0.6, 0.1]])
    two, one, none = _certainty(), _certainty(), _certainty()
    two.note(said, torch.tensor([False, True]), 0.9)
    one.note(said[1:], EVERY[:1], 0.9)
    none.note(said, torch.tensor([False, False]), 0.9)
    torch.testing.assert_close(two.threshold(), one.threshold())
    assert torch.equal(none.threshold(), _certainty().threshold())
    assert not torch.equal(one.threshold(), _certainty().threshold())


def test_thresholds_are_written_after_the_step_only():
    student = SmallNet()
    memory = FREE.init(student, PROBLEM)
    assert isinstance(memory, Certainty)
    batch = stream()[0]
    output = FREE.forward(student, memory, batch, 0)
    before = memory.threshold().clone()
    FREE.forward(student, memory, batch, 0)
    assert torch.equal(memory.threshold(), before)
    FREE.after_step(student, memory, batch, output, 0)
    assert not torch.equal(memory.threshold(), before)
