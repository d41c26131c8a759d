"""A watch in a loop of one's own: it names each fault, and accuses no sound loop."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

import meanteacher as mt
from meanteacher.core import Cost, InputError
from meanteacher.train import Alarm, Audit, Vitals
from meanteacher.train.checkpoint import trained_parameters
from support import METHODS, PROBLEM, SmallNet, parameters_of, stream


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize("plain", [True, False], ids=["tensors", "costs"])
@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_accused(name: str, plain: bool):
    """Forty steps of each, in which readings of the gradients happen at seven."""
    torch.manual_seed(0)
    method, student, batches = METHODS[name], SmallNet().train(), stream()
    memory = method.init(student, PROBLEM)
    trained = trained_parameters(student, memory)
    optimizer = torch.optim.SGD(trained, lr=0.1)
    watch = mt.Watch(student, method.predictor(student, memory), trained=trained, raise_on=mt.Watch.KINDS)
    for step in range(40):
        batch = batches[step]
        output = method.forward(student, memory, batch, step)
        watch.before_backward({name: cost.value if plain else cost for name, cost in output.costs.items()})
        optimizer.zero_grad()
        output.total.backward()
        optimizer.step()
        method.after_step(student, memory, batch, output, step)
        watch.after_step()
    assert watch.alarms == ()
    assert [reading.step for reading in watch._vitals.readings] == [0, 1, 2, 4, 8, 16, 32]
    assert all(norm > 0 for norm in watch._vitals.readings[-1].gradients.values())


class Loop:
    """Mean Teacher on points, with gradients of several batches per step."""

    def __init__(self, *, accumulated: int = 1, weight: float = 5.0) -> None:
        torch.manual_seed(1)
        self.student = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.teacher = mt.Teacher(self.student, decay=0.9)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)
        self.accumulated, self.weight = accumulated, weight

    def costs(self, step: int) -> dict[str, Tensor]:
        x = torch.randn(8, 3)
        logits, target = self.student(x + 0.1 * torch.randn_like(x)), self.teacher(x)
        return {
            "classification": mt.costs.classification_cost(logits, (x[:, 0] > 0).long()),
            "consistency": self.weight * mt.costs.softmax_mse(logits, target),
        }

    def train(self, watch: mt.Watch, steps: int = 40, *, after_every_batch: bool = False) -> mt.Watch:
        for step in range(steps):
            costs = self.costs(step)
            watch.before_backward(costs)
            torch.stack(list(costs.values())).sum().backward()
            steps_now = (step + 1) % self.accumulated == 0
            if steps_now:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.teacher.update(self.student)
            if steps_now or after_every_batch:
                watch.after_step()
        return watch


@pytest.mark.parametrize("after_every_batch", [False, True])
@pytest.mark.parametrize("accumulated", [1, 3, 8])
def test_accumulated_gradients_are_no_fault(accumulated: int, after_every_batch: bool):
    loop = Loop(accumulated=accumulated)
    watch = mt.Watch(loop.student, loop.teacher, raise_on=mt.Watch.KINDS)
    assert loop.train(watch, steps=100, after_every_batch=after_every_batch).alarms == ()


def test_watching_changes_no_weight():
    weights = []
    for watched in (True, False):
        loop = Loop()
        watch = mt.Watch(loop.student, loop.teacher)
        if not watched:
            watch._reads = lambda: False  # type: ignore[method-assign]
        loop.train(watch)
        weights.append(parameters_of(loop.teacher))
    assert torch.equal(*weights)


def test_cost_before_its_ramp_up_is_inactive_and_one_that_never_begins_is_named():
    loop = Loop(weight=0.0)
    watch = mt.Watch(loop.student, loop.teacher)
    with quiet():
        loop.train(watch, steps=990)
        assert watch.alarms == ()
        loop.train(watch, steps=20)
    assert [alarm.kind for alarm in watch.alarms] == ["resting-cost/consistency"]


def test_cost_with_a_weight_and_without_a_gradient_is_dead_although_its_value_is_zero():
    loop = Loop(weight=0.0)
    watch = mt.Watch(loop.student, loop.teacher)
    with quiet():
        for _ in range(5):
            watch.before_backward({"consistency": Cost(loop.costs(0)["consistency"], 5.0)})
            watch.after_step()
    assert [alarm.kind for alarm in watch.alarms] == ["dead-cost/consistency"]


def test_an_alarm_is_one_warning_or_with_raise_on_an_error():
    loop = Loop()
    dead = {"consistency": loop.costs(0)["consistency"].detach()}
    watch = mt.Watch(loop.student, loop.teacher, raise_on=["stale-teacher"])
    with pytest.warns(RuntimeWarning, match="Step 0, dead-cost/consistency: .* it trains nothing"):
        watch.before_backward(dead)
    watch.after_step()
    watch.before_backward(dead)  # not said twice
    watch.after_step()
    with pytest.raises(RuntimeError, match="Step 0, dead-cost/consistency"):
        mt.Watch(loop.student, loop.teacher, raise_on=["dead-cost"]).before_backward(dead)
    assert not torch_optimizer._global_optimizer_post_hooks


def test_optimisers_of_other_networks_are_no_step_of_the_student():
    loop, other = Loop(), nn.Linear(1, 1)
    watch = mt.Watch(loop.student, loop.teacher, raise_on=mt.Watch.KINDS)
    for step in range(3):
        costs = loop.costs(step)
        watch.before_backward(costs)
        torch.stack(list(costs.values())).sum().backward()
        loop.optimizer.step()
        loop.teacher.update(loop.student)
        torch.optim.SGD(other.parameters(), lr=0.1).step()  # after the update, which is not early
        watch.after_step()
    assert not torch_optimizer._global_optimizer_post_hooks


def test_optimiser_that_calls_the_loss_itself_is_followed():
    """As Lightning and skorch do: the passes happen within `step`."""
    for early in (False, True):
        loop = Loop()
        watch = mt.Watch(loop.student, loop.teacher)

        def closure(loop: Loop = loop, watch: mt.Watch = watch, early: bool = early) -> Tensor:
            loop.optimizer.zero_grad()
            costs = loop.costs(0)
            watch.before_backward(costs)
            total = torch.stack(list(costs.values())).sum()
            total.backward()
            if early:
                loop.teacher.update(loop.student)
            return total

        with quiet():
            for _ in range(5):
                loop.optimizer.step(closure)
                if not early:
                    loop.teacher.update(loop.student)
                watch.after_step()
        assert [alarm.kind for alarm in watch.alarms] == (["early-update"] if early else [])


def test_teacher_on_another_device_or_in_another_precision_is_compared():
    loop = Loop()
    loop.student.to(torch.bfloat16)
    watch = mt.Watch(loop.student, loop.teacher, raise_on=mt.Watch.KINDS)
    watch.after_step()
    assert watch.alarms == ()


def test_what_cannot_be_watched_is_refused():
    loop = Loop()
    with pytest.raises(InputError, match=r"The student has 4 parameters, and the teacher's 2 are not"):
        mt.Watch(loop.student, nn.Linear(3, 8))
    with pytest.raises(InputError, match=r"no alarm 'dead'. raise_on takes kinds of: dead-cost, "):
        mt.Watch(loop.student, loop.teacher, raise_on=["dead"])


def _trained(seed: int, factor: float, *, gain: float, dead: bool = False) -> tuple[float, mt.Watch]:
    loop = Loop(weight=5.0 * factor)
    watch = mt.Watch(loop.student, loop.teacher)
    if dead:
        loop.teacher.network = copy.deepcopy(loop.student)
        loop.teacher.update = lambda student: None  # type: ignore[method-assign, assignment]
    loop.train(watch, steps=12)
    return 0.3 - gain * factor + 0.01 * (7 * seed % 3) * (1 + 0.1 * factor), watch


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (0.1, "The consistency cost helps: the error is 21.1 % with the consistency cost and 31.0 % without it"),
        (0.0005, "The control did as well: "),
        (-0.1, "The control did better: "),
    ],
)
def test_audit_says_whether_the_control_did_as_well(gain: float, verdict: str):
    found = mt.audit(lambda seed, factor: _trained(seed, factor, gain=gain))
    assert str(found).startswith(verdict)
    assert "over 3 seeds." in str(found)
    assert len(found.errors) == len(found.control) == 3
    assert found.alarms == ()


def test_audit_names_the_alarms_of_the_loop_and_not_those_of_its_control():
    with quiet():
        found = mt.audit(lambda seed, factor: _trained(seed, factor, gain=0.0, dead=factor == 1.0), seeds=2)
    assert [alarm.kind for alarm in found.alarms] == ["stale-teacher"]
    assert "Alarm at step 4, stale-teacher: The student moves" in str(found)
    with pytest.raises(InputError, match="at least 2 seeds, got seeds=1"):
        mt.audit(lambda seed, factor: _trained(seed, factor, gain=0.0), seeds=1)


def test_it_reads_at_powers_of_two_and_at_every_tenth_step(monkeypatch: pytest.MonkeyPatch):
    loop, read = Loop(), list[int]()
    watch, real = mt.Watch(loop.student, loop.teacher), Vitals.read

    def reading(self: Vitals, step: int, *rest: Any) -> list[Alarm]:
        read.append(step)
        return real(self, step, *rest)

    monkeypatch.setattr(Vitals, "read", reading)
    loop.train(watch, steps=42)
    assert read == [0, 1, 2, 4, 8, 10, 16, 20, 30, 32, 40]


def test_a_warning_names_the_line_of_the_loop():
    loop = Loop()
    watch = mt.Watch(loop.student.eval(), loop.teacher)
    with pytest.warns(RuntimeWarning, match="student-in-evaluation") as warned:
        watch.before_backward(loop.costs(0))
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("errors", "control", "said"),
    [
        pytest.param(
            (0.10, 0.12, 0.14),
            (0.13, 0.12, 0.20),
            "The control did as well: the error is 12.0 % with the consistency cost and 15.0 % without it, a gain of "
            "3.0 points (95 % interval −4.5 to 10.5) over 3 seeds.",
            id="an interval around zero",
        ),
        pytest.param((0.1, 0.2), (0.1, 0.2), "The control did as well: ", id="no difference at all"),
        pytest.param((0.1, 0.2), (0.3, 0.4), "The consistency cost helps: ", id="the same gain of all"),
        pytest.param((0.3, 0.4), (0.1, 0.2), "The control did better: ", id="the same loss of all"),
    ],
)
def test_an_audit_says_its_gain_paired_by_seed(errors: tuple[float, ...], control: tuple[float, ...], said: str):
    assert str(Audit(errors=errors, control=control, alarms=())).startswith(said)


def test_an_audit_has_both_errors_of_each_seed():
    with pytest.raises(ValueError, match="shorter"):
        str(Audit(errors=(0.1, 0.2, 0.3), control=(0.1, 0.2), alarms=()))
