"""Every method trains with every cost alive on every kind of output, or refuses it at construction."""

import dataclasses
from pathlib import Path

import outputs
import pytest
import torch
from outputs import CASES, DENSE, REFUSED, TRAINS, Pixels, batches

from meanteacher import methods
from meanteacher.core import UNLABELLED, Batch, InputError, Method, Problem
from meanteacher.passes import LogitsOf
from support import METHODS, N_CLASSES, PROBLEM, SHAPE, SmallNet, train_steps

PAGE = Path(__file__).parents[2] / "docs" / "outputs.md"
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.fixture(scope="module")
def page() -> str:
    return outputs.page()


def test_page_is_what_the_methods_do_today(page: str):
    assert page == PAGE.read_text(encoding="utf-8"), "write it again: make outputs"


def test_every_method_trains_on_every_output_that_is_declared_and_selected(page: str):
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [name.strip("`") for name, *_ in rows] == [*methods.METHODS]
    trains = [CASES.index(case) for case in CASES if case.problem is DENSE or "the same" in case.title]
    for name, *cells in rows:
        for position, cell in enumerate(cells):
            assert cell == (TRAINS if position in trains else REFUSED), (name, CASES[position].title)


@every_method
def test_a_dense_step_is_the_same_with_the_labels_in_other_types(method: Method):
    """int32, and bytes with 255 for no label."""
    costs = []
    for dtype, hidden in ((torch.int64, UNLABELLED), (torch.int32, UNLABELLED), (torch.uint8, 255)):
        torch.manual_seed(0)
        student = Pixels().train()
        chosen = dataclasses.replace(method, ignore_index=hidden)
        memory = chosen.init(student, DENSE).train()

        def batch(step: int, dtype: torch.dtype = dtype, hidden: int = hidden) -> Batch:
            given = batches(DENSE)(step)
            labels = given.labels.masked_fill(given.labels == UNLABELLED, hidden).to(dtype)
            return Batch(given.views, labels, given.index)

        train_steps(chosen, student, memory, steps=3, batches=batch)
        output = chosen.forward(student, memory, batch(3), 3)
        costs.append({name: cost.value.item() for name, cost in output.costs.items()})
    assert costs[0] == costs[1] == costs[2]


@every_method
def test_a_network_of_other_logits_than_the_problems_is_refused(method: Method):
    words = rf"returns \[B, 4\], but the problem needs logits \[B, {N_CLASSES}\]\. Build the network for this problem"
    with pytest.raises(InputError, match=words):
        method.init(SmallNet(n_classes=4), PROBLEM)
    with pytest.raises(InputError, match="softmax of a single logit is always 1"):
        method.init(SmallNet(n_classes=1), Problem(1, 60, SHAPE))


@every_method
def test_as_many_classes_as_places_are_refused_until_the_axis_is_named(method: Method):
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv1d(2, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    problem = Problem(n_classes=4, n_examples=60, input_shape=(2, 4), label_shape=(4,))
    with pytest.raises(InputError, match="as many classes"):
        method.init(Tokens(), problem)
    method.init(LogitsOf(Tokens(), class_axis=1), problem)
    method.init(LogitsOf(Tokens(), class_axis=-1), problem)
