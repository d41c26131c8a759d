"""The Pi model: one network, two passes."""

import dataclasses

import pytest
import torch

from meanteacher.costs import softmax_mse
from support import METHODS, PROBLEM, SmallNet, stream


@pytest.mark.parametrize("one_sided", [False, True])
def test_gradient_is_that_of_both_sides_or_of_one(one_sided: bool):
    method = dataclasses.replace(METHODS["pi-model"], one_sided=one_sided)
    student = SmallNet().eval()
    batch = stream()[0]
    parameters = list(student.parameters())
    cost = method.forward(student, method.init(student, PROBLEM), batch, 0).costs["consistency"].value
    first, second = student(batch.views["student"]), student(batch.views["teacher"])
    expected = 2.0 * softmax_mse(first, second.detach() if one_sided else second)
    for ours, theirs in zip(
        torch.autograd.grad(cost, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
