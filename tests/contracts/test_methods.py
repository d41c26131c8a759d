"""Every method holds to the contract."""

import dataclasses

import pytest
import torch

from meanteacher import methods
from meanteacher import testing as contract
from meanteacher.core import UNLABELLED, Batch, InputError, Method
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.schedules import Constant
from support import METHODS, stream

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
semi_supervised = pytest.mark.parametrize("name", [name for name in METHODS if name != "supervised"])
consistency = pytest.mark.parametrize("name", [n for n, m in METHODS.items() if isinstance(m, ConsistencyMethod)])


def test_every_method_of_the_package_is_held_to_the_contract():
    assert {name: type(method) for name, method in METHODS.items()} == methods.METHODS


@every_method
def test_every_cost_moves_the_student(method: Method):
    contract.every_cost_moves_the_student(method)


@every_method
def test_nothing_but_the_average_moves_the_teacher(method: Method):
    contract.nothing_but_the_average_moves_the_teacher(method)


@every_method
def test_teacher_is_the_average_of_past_students(method: Method):
    contract.teacher_is_the_average_of_past_students(method)


@consistency
def test_no_gradient_flows_through_a_sharpened_target(name: str):
    method = METHODS[name]
    assert isinstance(method, ConsistencyMethod)
    contract.no_gradient_flows_through_a_sharpened_target(method)


@every_method
def test_predictor_classifies(method: Method):
    contract.predictor_classifies(method)


@every_method
def test_forward_writes_no_memory(method: Method):
    contract.forward_writes_no_memory(method)


@every_method
def test_statistics_count_views_alone(method: Method):
    contract.statistics_count_views_alone(method)


@every_method
def test_steps_are_reproducible(method: Method):
    contract.steps_are_reproducible(method)


@every_method
def test_method_is_a_frozen_value_with_a_stable_description(method: Method):
    contract.is_a_frozen_value(method)


@semi_supervised
def test_reported_weight_is_the_factor_inside_the_cost(name: str):
    student, memory = contract.begin(METHODS[name])
    costs = {}
    for weight in (1.0, 3.0):
        method = dataclasses.replace(METHODS[name], weight=Constant(weight))
        torch.manual_seed(0)
        output = method.forward(student, memory, stream()[3], 3)
        weighted = {part: cost for part, cost in output.costs.items() if cost.weight is not None}
        costs[weight] = {part: (cost.value.item(), cost.weight) for part, cost in weighted.items()}
    assert costs[1.0]
    for part, (cost, factor) in costs[1.0].items():
        assert costs[3.0][part] == (pytest.approx(3 * cost, rel=1e-5), pytest.approx(3 * factor))


@every_method
def test_labelled_share_divides_the_classification_cost_by_the_expected_count_and_nothing_else(method: Method):
    student, memory = contract.begin(method)
    batch = stream()[3]
    n_labelled, n = int((batch.labels != UNLABELLED).sum()), len(batch.labels)
    assert 0 < n_labelled < n
    seen = []
    for share in (None, 0.125):
        torch.manual_seed(0)
        output = dataclasses.replace(method, labelled_share=share).forward(student, memory, batch, 3)
        seen.append({name: cost.value.item() for name, cost in output.costs.items()})
    counted, expected = seen
    assert expected.pop("classification") == pytest.approx(
        counted.pop("classification") * n_labelled / (0.125 * n), rel=1e-5
    )
    assert expected == pytest.approx(counted, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
@every_method
def test_impossible_labelled_share_is_refused(method: Method, share: float):
    with pytest.raises(InputError, match=r"labelled_share is above 0 and at most 1"):
        dataclasses.replace(method, labelled_share=share)


@semi_supervised
def test_unlabelled_rows_train_the_student(name: str):
    """Without a single label, the student still learns."""
    method = METHODS[name]
    student, memory = contract.begin(method)
    batch = stream()[3]
    batch = Batch(batch.views, torch.full_like(batch.labels, UNLABELLED), batch.index)
    output = method.forward(student, memory, batch, 3)
    assert output.costs["classification"].value.item() == 0
    output.total.backward()
    assert any(bool(p.grad.any()) for p in student.parameters() if p.grad is not None)


@consistency
def test_consistency_on_unlabelled_rows_ignores_the_labelled_ones(name: str):
    """The gradient on the views of labelled rows comes from their classification alone."""
    method = dataclasses.replace(METHODS[name], consistency_on="unlabelled")
    student, memory = contract.begin(METHODS[name])
    student.eval()
    batch = stream()[3]
    labelled = batch.labels != UNLABELLED
    assert 0 < int(labelled.sum()) < len(labelled)
    view = batch.views["student"].clone().requires_grad_()
    watched = Batch({**batch.views, "student": view}, batch.labels, batch.index)
    output = method.forward(student, memory, watched, 3)
    (gradient,) = torch.autograd.grad(output.costs["consistency"].value, view)
    moved = gradient.flatten(1).abs().sum(1) > 0
    if name != "gamma-model":  # its denoiser normalises over the batch, so every row has a part in every other
        assert not bool(moved[labelled].any())
    assert bool(moved[~labelled].any())


def test_pi_model_trains_both_sides():
    """A pass whose gradient were stopped would leave half of it."""
    student, memory = contract.begin(METHODS["pi-model"])
    student.eval()
    batch = stream()[3]
    swapped = Batch({"student": batch.views["teacher"], "teacher": batch.views["student"]}, batch.labels, batch.index)

    def gradient(of: Batch) -> torch.Tensor:
        cost = METHODS["pi-model"].forward(student, memory, of, 3).costs["consistency"].value
        return torch.cat([g.flatten() for g in torch.autograd.grad(cost, list(student.parameters()))])

    torch.testing.assert_close(gradient(batch), gradient(swapped))


def test_mean_teacher_trains_the_student_side_only():
    method = METHODS["mean-teacher"]
    student, memory = contract.begin(method)
    output = method.forward(student, memory, stream()[3], 3)
    output.costs["consistency"].value.backward()
    assert all(p.grad is None for p in memory.parameters())
    assert any(p.grad is not None for p in student.parameters())


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("mean-teacher")])
def test_a_teacher_that_never_runs_cannot_keep_its_own_statistics(name: str):
    with pytest.raises(InputError, match="never runs its teacher"):
        dataclasses.replace(METHODS[name], buffers="own")


@pytest.mark.parametrize("buffers", ["own", "average", "copy"])
def test_buffer_policy_reaches_the_teacher(buffers: str):
    method = dataclasses.replace(METHODS["mean-teacher"], buffers=buffers)
    student, memory = contract.begin(method, warm_up=6)
    theirs = dict(student.named_buffers())["layers.1.running_mean"]
    ours = dict(memory.named_buffers())["network.layers.1.running_mean"]
    assert torch.equal(ours, theirs) == (buffers == "copy")
    if buffers == "own":
        before = ours.clone()
        memory(stream()[7].views["teacher"])
        assert not torch.equal(ours, before)
    else:
        before = ours.clone()
        memory(stream()[7].views["teacher"])
        assert torch.equal(ours, before)
