"""No step reads a value from the device: on a GPU each such reading stops everything until the step is computed.

Tensors without values stand in for the device: whoever reads one, by `bool`, `item` or a mask that decides a shape,
fails. RandAugment is left out: it reads, once per batch, which operation each image drew.
"""

import dataclasses

import pytest
import torch
from instances import ALL_VIEWS, shown_shape
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from meanteacher.core import Augment, Batch, Method
from meanteacher.costs import Confident, CTau
from meanteacher.train import Declared, Vitals
from meanteacher.train.checkpoint import trained_parameters
from meanteacher.train.loop import Log
from meanteacher.views import RandAugment
from support import METHODS, PROBLEM, SHAPE, SmallNet

MORE = {
    "a confident cost": dataclasses.replace(METHODS["mean-teacher"], cost=Confident(threshold=0.5)),
    "c_tau": dataclasses.replace(METHODS["mean-teacher"], cost=CTau(0.5)),
    "unlabelled rows only": dataclasses.replace(METHODS["mean-teacher"], consistency_on="unlabelled"),
}
VIEWS = {name: view for name, view in ALL_VIEWS.items() if not isinstance(view, RandAugment)}


def a_step(method: Method, student: nn.Module, memory: nn.Module, device: str = "cpu") -> None:
    """All of a step but its optimiser, which is torch's."""
    views = {role: torch.randn(6, *SHAPE, device=device) for role in method.roles}
    labels = torch.tensor([0, 1, -1, -1, -1, -1]).to(device)
    batch = Batch(views, labels, torch.arange(6, device=device))
    output = method.forward(student, memory, batch, 2)
    total = output.total
    torch.autograd.grad(total, trained_parameters(student, memory), allow_unused=True)
    method.after_step(student, memory, batch, output, 2)
    Vitals(Declared(n_labelled=2, labelled_share=1 / 3, exact=True, steps=10)).note_labels(batch)
    Log(()).add(output, [])


@pytest.mark.parametrize("method", [*METHODS.values(), *MORE.values()], ids=[*METHODS, *MORE])
def test_no_method_reads_a_value(method: Method):
    student = SmallNet().train()
    memory = method.init(student, PROBLEM).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        a_step(method, student, memory)


class Peeking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.mean() > 0 else x


@pytest.mark.parametrize("read", [Peeking(), lambda x: x[x > 0], torch.Tensor.item], ids=["branch", "mask", "item"])
def test_reading_a_value_would_be_noticed(read):
    with FakeTensorMode(), pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        read(torch.randn(1))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_no_view_reads_a_value(view: Augment):
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert view(torch.randn(4, 3, 16, 16), torch.Generator().manual_seed(0)).shape == shown_shape(
            view, (4, 3, 16, 16)
        )
