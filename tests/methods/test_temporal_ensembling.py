"""Temporal Ensembling: the targets, by hand."""

import dataclasses

import torch

from meanteacher.core import Batch, Problem, StepOutput
from meanteacher.methods.temporal_ensembling import EnsembleTable, TemporalEnsembling
from meanteacher.teacher import Memory, Teacher
from support import METHODS, PROBLEM, SmallNet, stream

METHOD = METHODS["temporal-ensembling"]
assert isinstance(METHOD, TemporalEnsembling)
MOMENTUM = METHOD.momentum


def _table(n: int = 4) -> EnsembleTable:
    return EnsembleTable(Problem(n_classes=3, n_examples=n, input_shape=(1, 6, 6)))


def _predictions(seed: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).softmax(1)


def test_target_is_the_bias_corrected_sum_of_past_predictions():
    table = _table()
    history = [_predictions(seed) for seed in range(5)]
    for predictions in history:
        table.note(torch.arange(4), predictions)
        table.end_epoch(MOMENTUM)
    n = len(history)
    by_hand = sum((1 - MOMENTUM) * MOMENTUM ** (n - 1 - k) * z for k, z in enumerate(history)) / (1 - MOMENTUM**n)
    target, known = table.target(torch.arange(4), MOMENTUM)
    torch.testing.assert_close(target.softmax(1), by_hand)
    assert bool(known.all())


def test_first_target_is_the_first_prediction():
    table = _table()
    table.note(torch.arange(4), _predictions(0))
    table.end_epoch(MOMENTUM)
    torch.testing.assert_close(table.target(torch.arange(4), MOMENTUM)[0].softmax(1), _predictions(0))


def test_row_that_is_not_visited_keeps_its_target():
    table = _table()
    table.note(torch.arange(4), _predictions(0))
    table.end_epoch(MOMENTUM)
    before = table.target(torch.tensor([3]), MOMENTUM)[0]
    for seed in (1, 2):
        table.note(torch.arange(3), _predictions(seed)[:3])
        table.end_epoch(MOMENTUM)
    torch.testing.assert_close(table.target(torch.tensor([3]), MOMENTUM)[0], before)
    assert float(table.target(torch.tensor([3]), MOMENTUM)[0].exp().sum()) == torch.tensor(1.0)


def test_targets_change_once_an_epoch_and_not_before():
    assert isinstance(METHOD, TemporalEnsembling)
    method = dataclasses.replace(METHOD, epoch_steps=3)
    student = SmallNet()
    memory = method.init(student, PROBLEM)
    assert isinstance(memory, Memory)
    updates = []
    for step in range(7):
        batch = stream()[step]
        method.after_step(student, memory, batch, method.forward(student, memory, batch, step), step)
        updates.append(int(memory.own.n_updates.sum()) > 0)
        if step == 2:
            after_first = memory.own.average.clone()
        if step in (3, 4):
            assert torch.equal(memory.own.average, after_first)
    assert updates == [False, False, True, True, True, True, True]
    assert not torch.equal(memory.own.average, after_first)


def test_rows_without_a_target_yet_have_no_consistency_cost():
    student = SmallNet()
    memory = METHOD.init(student, PROBLEM)
    output = METHOD.forward(student, memory, stream()[0], 0)
    assert output.costs["consistency"].value.item() == 0
    assert output.costs["consistency"].weight == 0


def test_target_is_a_constant_and_a_row_its_own():
    table = _table(60)
    table.note(torch.arange(60), torch.randn(60, 3).softmax(1))
    table.end_epoch(MOMENTUM)
    student = SmallNet().eval()
    batch = stream()[0]
    output = METHOD.forward(student, Memory(Teacher(student, buffers="average"), table), batch, 0)
    target = table.average[batch.index] / (1 - MOMENTUM)
    expected = 2.0 * (student(batch.views["student"]).softmax(1) - target).square().mean()
    torch.testing.assert_close(output.costs["consistency"].value, expected)


def test_memory_grows_with_the_data_set_and_with_nothing_else():
    def n_values(n: int) -> int:
        memory = METHOD.init(SmallNet(), Problem(n_classes=3, n_examples=n, input_shape=(1, 6, 6)))
        return sum(t.numel() for t in memory.state_dict().values())

    assert n_values(3000) - n_values(2000) == n_values(2000) - n_values(1000) == 1000 * (2 * 3 + 2)


def test_predictions_are_noted_from_the_training_pass():
    student = SmallNet()
    memory = METHOD.init(student, PROBLEM)
    assert isinstance(memory, Memory)
    batch = stream()[0]
    output = StepOutput({}, torch.randn(len(batch.index), 3))
    METHOD.after_step(student, memory, Batch(batch.views, batch.labels, batch.index), output, 0)
    torch.testing.assert_close(memory.own.latest[batch.index], output.logits.softmax(1))
