"""Any module in any loop: what docs/own-module.md promises, and its Python."""

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import meanteacher as mt
from meanteacher.core import UNLABELLED, Batch, InputError, Method, Problem
from meanteacher.experiment.describe import describe
from meanteacher.methods import supervised
from meanteacher.passes import LogitsOf, copied, tried_out
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher, teacher_of
from meanteacher.train import AdamSpec, MuonSpec, SgdSpec
from meanteacher.train.checkpoint import trained_parameters
from support import METHODS, N_CLASSES, PROBLEM, SHAPE, SmallNet, parameters_of, stream, train_steps

PAGE = (Path(__file__).parent.parent / "docs" / "own-module.md").read_text(encoding="utf-8")
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def test_python_of_the_page_runs_and_trains(capsys: pytest.CaptureFixture[str]):
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    teacher_loop, method_loop, dense, watched, audited, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)

    exec(teacher_loop, names)
    student, teacher = names["student"], names["teacher"]
    distance = (parameters_of(student) - parameters_of(teacher)).norm()
    assert 0 < distance < 10
    assert torch.equal(parameters_of(names["shipped"]), parameters_of(teacher))
    assert not any(module.training for module in names["shipped"].modules())

    exec(method_loop, names)
    assert {name: bool(cost.value > 0) for name, cost in names["output"].costs.items()} == {
        "classification": True,
        "consistency": True,
    }
    assert names["shipped"](names["words"]).shape == (8, 3, 12)

    exec(dense, names)
    names["cost"].backward()
    assert names["student"].weight.grad.abs().sum() > 0

    exec(watched, names)
    assert names["watch"].alarms == ()
    exec(audited, names)
    assert capsys.readouterr().out.startswith(("The control did ", "The consistency cost helps"))


# --- what a module takes and returns ----------------------------------------------------------------------


class Pair(nn.Module):
    """Takes and returns more than one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor, *, scale: float, shift: Tensor | None = None) -> dict[str, Any]:
        logits = self.norm(self.layer(x)) * scale
        return {"logits": logits if shift is None else logits + shift, "scale": scale}


@pytest.mark.parametrize("buffers", ["own", "average", "copy"])
def test_teacher_passes_every_argument_through_and_returns_what_the_student_does(buffers: Any):
    student = Pair().train()
    teacher, x = Teacher(student, buffers=buffers), torch.randn(8, 4)
    for shift in (None, torch.ones(3)):
        ours, theirs = (network(x, scale=2.0, shift=shift) for network in (teacher, student))
        assert ours["scale"] == 2.0
        torch.testing.assert_close(ours["logits"], theirs["logits"].detach())
        assert not ours["logits"].requires_grad
    teacher.eval()
    assert teacher(x=x, scale=1.0)["logits"].shape == (8, 3)


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "dict": (lambda logits: {"logits": logits}, "logits"),
    "list": (lambda logits: [None, logits], 1),
    "object": (lambda logits: SimpleNamespace(logits=logits), "logits"),
    "logits and features": (lambda logits: (logits, torch.zeros(len(logits), 7)), 0),
    "three": (lambda logits: (logits, logits, logits), lambda out: out[0]),
}


class Returning(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.network, self.wrap = SmallNet(), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.network(x))


@pytest.mark.parametrize("kind", OUTPUTS)
@every_method
def test_what_is_no_logits_is_refused_at_construction_and_works_when_selected(method: Method, kind: str):
    wrap, select = OUTPUTS[kind]
    with pytest.raises(InputError, match=r"The network returns an? .*LogitsOf\("):
        method.init(Returning(wrap), PROBLEM)
    student = LogitsOf(Returning(wrap), select).train()
    memory = method.init(student, PROBLEM).train()
    train_steps(method, student, memory, steps=1)
    assert method.predictor(student, memory)(torch.zeros(2, *SHAPE)).shape == (2, N_CLASSES)


def test_two_outputs_of_one_shape_need_a_logit_distance_at_construction():
    two = Returning(lambda logits: (logits, logits + 1))
    method = METHODS["mean-teacher"]
    with pytest.raises(InputError, match="logit_distance=None does not fit a network with two outputs"):
        method.init(two, PROBLEM)
    with pytest.raises(InputError, match=r"logit_distance=0.01 does not fit a network with one output"):
        dataclasses.replace(method, logit_distance=0.01).init(SmallNet(), PROBLEM)
    dataclasses.replace(method, logit_distance=0.01).init(two, PROBLEM)


class LastWithFeatures(nn.Module):
    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=x.flatten(1)[:, None, :3], features=x)


def test_logits_that_are_selected_by_name_survive_a_pickle():
    x = torch.arange(2.0 * 7).view(2, 7)
    student = pickle.loads(pickle.dumps(LogitsOf(LastWithFeatures(), "logits", class_axis=-1)))
    torch.testing.assert_close(student(x), x[:, :3, None])


@pytest.mark.parametrize(
    ("network", "output"),
    [(LastWithFeatures(), "probabilities"), (LastWithFeatures(), 0), (Returning(lambda x: {"scores": x}), "logits")],
    ids=["no attribute", "no position", "no key"],
)
def test_an_output_that_the_network_does_not_have_is_refused_by_name(network: nn.Module, output: str | int):
    with pytest.raises(InputError, match=rf"has no output {output!r}\. Give LogitsOf"):
        LogitsOf(network, output)(torch.zeros(2, *SHAPE))


def test_both_outputs_have_their_classes_moved():
    two = Returning(lambda logits: (logits[:, None], 2 * logits[:, None]))
    first, second = LogitsOf(two, class_axis=-1).eval()(torch.ones(2, *SHAPE))
    assert first.shape == second.shape == (2, N_CLASSES, 1)
    torch.testing.assert_close(second, 2 * first)


# --- trying a student out -----------------------------------------------------------------------------------


class Remembering(nn.Module):
    """Writes to all that a module can write to in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout, self.norm = nn.Linear(4, 2), nn.Dropout(0.5), nn.BatchNorm1d(2)
        self.n_passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_passes += 1
        with torch.no_grad():
            self.layer.bias.add_(1)
        return self.norm(self.dropout(self.layer(x)))


def test_a_student_that_is_tried_out_is_left_as_it_was_and_so_is_the_generator():
    student = Remembering().train()
    before, noise = copy.deepcopy(student.state_dict()), torch.get_rng_state()
    assert tried_out(student, (4,)).shape == (2, 2)
    METHODS["mean-teacher"].init(student, Problem(2, 10, (4,)))
    assert student.n_passes == 0
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert torch.equal(torch.get_rng_state(), noise)
    assert student.training


def test_indices_are_tried_where_numbers_are_not_taken():
    assert tried_out(nn.Embedding(5, 3), (4,)).shape == (2, 4, 3)
    assert tried_out(nn.Linear(4, 3), (5,)) is None
    assert tried_out(nn.Linear(4, 3).double(), (4,)).dtype == torch.float64


def test_a_student_that_takes_no_zeros_is_checked_in_its_first_step():
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            if not x.any():
                raise ValueError("empty")
            return {"logits": self.layer(x)}

    method, student = METHODS["supervised"], Picky()
    memory = method.init(student, Problem(2, 10, (4,)))
    batch = Batch({"student": torch.ones(2, 4)}, torch.tensor([0, 1]), torch.arange(2))
    with pytest.raises(InputError, match="The network returns a dict"):
        method.forward(student, memory, batch, 0)


# --- kinds of weights -----------------------------------------------------------------------------------


def older_weight_norm(layer: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning, match="deprecated"):
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize("normalised", [older_weight_norm, nn.utils.parametrizations.weight_norm], ids=["old", "new"])
def test_both_weight_norms_are_averaged_in_their_own_parameters(normalised: Callable[[nn.Module], nn.Module]):
    student = nn.Sequential(normalised(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))
    student(torch.randn(2, 4)).sum().backward()  # the older one now holds a computed weight
    teacher = Teacher(student, 0.5, warm_up=False)
    start = parameters_of(student)
    x = torch.randn(5, 4)
    torch.testing.assert_close(teacher(x), student(x).detach())
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter))
    teacher.update(student)
    torch.testing.assert_close(parameters_of(teacher), (start + parameters_of(student)) / 2, atol=1e-6, rtol=1e-6)
    expected = copied(student)
    with torch.no_grad():
        for own, average in zip(expected.parameters(), teacher.parameters(), strict=True):
            own.copy_(average)
    torch.testing.assert_close(teacher(x), expected(x).detach())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_lazy_layers_are_refused_until_they_have_weights():
    student = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(InputError, match=r"lazy layers.*Pass one batch"):
        Teacher(student)
    with pytest.raises(InputError, match="lazy layers"):
        METHODS["mean-teacher"].init(student, Problem(3, 10, (4,)))
    student(torch.zeros(1, 4))
    METHODS["mean-teacher"].init(student, Problem(3, 10, (4,)))


@every_method
def test_frozen_and_tied_weights_train_with_the_rest(method: Method):
    student = SmallNet().train()
    student.layers[0].weight.requires_grad_(requires_grad=False)
    frozen, moved = student.layers[0].weight.clone(), student.layers[5].weight.clone()
    memory = method.init(student, PROBLEM).train()
    train_steps(method, student, memory, steps=3)
    predictor = method.predictor(student, memory)
    assert torch.equal(student.layers[0].weight, frozen)
    assert torch.equal(predictor.layers[0].weight, frozen)
    assert not torch.equal(predictor.layers[5].weight, moved)


@every_method
def test_a_student_in_bfloat16_trains_beside_a_teacher_in_float32(method: Method, monkeypatch: pytest.MonkeyPatch):
    """With tensors without values: on some machines a real bfloat16 convolution ends the process."""
    monkeypatch.setattr(supervised, "tried_out", lambda *given: None)
    student = SmallNet().to(torch.bfloat16).train()
    memory = method.init(student, PROBLEM).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        views = {role: torch.randn(6, *SHAPE, dtype=torch.bfloat16) for role in method.roles}
        batch = Batch(views, torch.tensor([0, 1, *[UNLABELLED] * 4]), torch.arange(6))
        output = method.forward(student, memory, batch, 2)
        assert {cost.value.dtype for cost in output.costs.values()} == {torch.float32}
        torch.autograd.grad(output.total, trained_parameters(student, memory), allow_unused=True)
        method.after_step(student, memory, batch, output, 2)
        assert {p.dtype for p in teacher_of(memory).network.parameters()} == {torch.float32}


# --- labels -----------------------------------------------------------------------------------------------


@every_method
def test_labels_of_smaller_types_and_another_number_for_none_give_the_same_costs(method: Method):
    found = []
    for dtype, hidden in (
        (torch.int64, -1),
        (torch.int32, -1),
        (torch.int8, -1),
        (torch.int64, 255),
        (torch.uint8, 255),
    ):
        torch.manual_seed(0)
        chosen, student = dataclasses.replace(method, ignore_index=hidden), SmallNet().train()
        memory = chosen.init(student, PROBLEM).train()
        given = stream()[0]
        labels = given.labels.masked_fill(given.labels == UNLABELLED, hidden).to(dtype)
        batch = Batch(given.views, labels, given.index)
        output = chosen.forward(student, memory, batch, 0)
        chosen.after_step(student, memory, batch, output, 0)
        found.append({name: cost.value.item() for name, cost in output.costs.items()})
    assert all(costs == found[0] for costs in found)


@every_method
def test_an_ignored_index_that_is_a_class_is_refused_at_construction(method: Method):
    with pytest.raises(InputError, match="ignore_index=2 is one of the 3 classes"):
        dataclasses.replace(method, ignore_index=2).init(SmallNet(), PROBLEM)


# --- schedules and the predictor --------------------------------------------------------------------------


@every_method
def test_a_number_is_a_constant_schedule_and_the_same_value(method: Method):
    fields = {"decay": 0.5, **({"weight": 3} if hasattr(method, "weight") else {})}
    by_number = dataclasses.replace(method, **fields)
    by_schedule = dataclasses.replace(method, **{name: Constant(float(value)) for name, value in fields.items()})
    assert by_number == by_schedule
    assert describe(by_number) == describe(by_schedule)


def test_a_number_is_a_constant_schedule_for_every_optimiser():
    constant = Constant(0.1)
    assert AdamSpec(learning_rate=0.1, beta1=0.1, beta2=0.1) == AdamSpec(
        learning_rate=constant, beta1=constant, beta2=constant
    )
    assert SgdSpec(learning_rate=0.1) == SgdSpec(learning_rate=constant)
    assert MuonSpec(learning_rate=0.1, sgd_learning_rate=0.1) == MuonSpec(
        learning_rate=constant, sgd_learning_rate=constant
    )


@every_method
def test_the_predictor_is_in_evaluation_mode_and_training_goes_on_as_if_it_had_not_been_asked_for(method: Method):
    ends = []
    for asks in (False, True):
        torch.manual_seed(0)
        student = SmallNet().train()
        memory = method.init(student, PROBLEM).train()

        def ask(step: int, student: nn.Module = student, memory: nn.Module = memory) -> None:
            predictor = method.predictor(student, memory)
            assert not any(module.training for module in predictor.modules())
            with torch.no_grad():
                predictor(torch.ones(2, *SHAPE))

        train_steps(method, student, memory, steps=3, each=ask if asks else lambda step: None)
        ends.append({**student.state_dict(), **{f"memory {name}": x for name, x in memory.state_dict().items()}})
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_public_names_of_the_page_exist():
    for name in set(re.findall(r"\bmt\.([A-Za-z_]+)", PAGE)):
        assert hasattr(mt, name)
