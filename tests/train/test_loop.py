"""The loop: when it logs, evaluates, saves and stops, what an entry holds, and what a step leaves alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import Batch, Cost, DivergedError, Problem, StepOutput
from meanteacher.distributed import Ranks, shared_generator
from meanteacher.train import (
    Alarm,
    Callback,
    Checkpoints,
    Evaluation,
    Intervals,
    LogEntry,
    SgdSpec,
    TrainState,
    Vitals,
    loop,
    start,
    take_step,
    train,
)
from thread_ranks import in_threads

PROBLEM = Problem(n_classes=2, n_examples=9, input_shape=(1,))
N_ROWS = 3


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 50.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    return made


@dataclass
class Steps:
    """A stream whose batch t has the images t, t, t. Each takes a quarter of a second."""

    clock: Clock = field(default_factory=Clock)

    def __getitem__(self, step: int) -> Batch:
        self.clock.now += 0.25
        images = torch.full((N_ROWS, 1), float(step))
        return Batch({"student": images}, torch.tensor([0, 1, -1]), torch.tensor([4, 8, 1]))


@dataclass(frozen=True)
class Counting:
    """A method whose costs are the number of the step, and ten. Both have the gradient one."""

    roles: ClassVar[tuple[str, ...]] = ("student",)
    value_of: Callable[[int], float] = float
    after: Callable[[int], None] = lambda step: None

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        return nn.Identity()

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        (weight,) = student.parameters()
        one = (weight - weight.detach()).sum()
        costs = {"step": Cost(one + self.value_of(step), weight=100.0 + step), "ten": Cost(one + 10.0)}
        return StepOutput(costs, student(batch.views["student"]))

    def after_step(self, student: nn.Module, memory: nn.Module, batch: Batch, output: StepOutput, step: int) -> None:
        self.after(step)

    def predictor(self, student: nn.Module, memory: nn.Module) -> nn.Module:
        return student


class Noting(Callback):
    """What happened, in order; it asks to stop, or is satisfied, after some steps."""

    def __init__(self, *, stops: int | None = None, satisfied: int | None = None) -> None:
        self.happened: list[tuple[str, int]] = []
        self.entries: list[LogEntry] = []
        self.asked: list[str] = []
        self.stops, self.satisfied = stops, satisfied

    def on_log(self, entry: LogEntry) -> None:
        self.happened.append(("log", entry.step))
        self.entries.append(entry)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.happened.append(("evaluation", evaluation.step))

    def on_alarm(self, alarm: Alarm) -> None:
        self.happened.append((alarm.kind, alarm.step))

    def should_stop(self) -> bool:
        self.asked.append("stop")
        return self.asked.count("stop") == self.stops

    def is_satisfied(self) -> bool:
        self.asked.append("satisfied")
        return self.asked.count("satisfied") == self.satisfied


def _optim(rate: Callable[[int], float] = lambda step: 0.5) -> SgdSpec:
    return SgdSpec(learning_rate=rate, momentum=0.0)


def _state(method: Any = None, student: nn.Module | None = None, stream: Any = None, **given: Any) -> TrainState:
    student = student or nn.Linear(1, 1, bias=False)
    stream = stream or Steps()
    return start(
        student, method or Counting(), _optim(), stream, normalise=nn.Identity(), problem=PROBLEM, seed=3, **given
    )


def _train(state: TrainState, *, clock: Clock | None = None, method: Any = None, **given: Any) -> bool:
    clock = clock or Clock()

    def evaluate(state: TrainState) -> Evaluation:
        clock.now += 1000.0
        return Evaluation(state.step, "test", 0.5, 0.25)

    options: dict[str, Any] = {"steps": 7, "seed": 3, "every": Intervals(evaluate=4, log=2), "vitals": Vitals(None)}
    optim = given.pop("optim", _optim())
    return train(state, method or Counting(), optim, Steps(clock), evaluate=evaluate, **{**options, **given})


# --- entries ---------------------------------------------------------------------------------------------------------


def test_an_entry_holds_the_means_over_its_steps_and_a_speed_without_evaluations(clock: Clock):
    noting = Noting()
    assert _train(_state(), clock=clock, callbacks=[noting], optim=_optim(lambda step: 0.5 + step)) is True
    assert noting.happened == [
        *[("log", 2), ("log", 4), ("evaluation", 4)],
        *[("log", 6), ("log", 7), ("evaluation", 7)],
    ]
    assert [entry.costs for entry in noting.entries] == [{"step": mean, "ten": 10.0} for mean in (0.5, 2.5, 4.5, 6.0)]
    assert [entry.weights for entry in noting.entries] == [{"step": weight} for weight in (101.0, 103.0, 105.0, 106.0)]
    assert [entry.learning_rate for entry in noting.entries] == [1.5, 3.5, 5.5, 6.5]
    assert [entry.images_per_second for entry in noting.entries] == [12.0] * 4
    assert [entry.seconds_per_step for entry in noting.entries] == [0.25] * 4


def test_an_entry_of_a_moment_has_a_speed(clock: Clock):
    log = loop.Log([noting := Noting()])
    log.add(StepOutput({"c": Cost(torch.tensor(2.0))}, torch.zeros(N_ROWS, 2)), [])
    log.close(1, 0.1)
    assert math.isfinite(noting.entries[0].images_per_second)


def test_a_cost_that_is_not_finite_ends_the_run_before_it_is_logged():
    noting, method = Noting(), Counting(value_of=lambda step: float("inf") if step == 2 else 1.0)
    with pytest.raises(DivergedError, match=r"The cost 'step' is inf within the 2 steps before step 4\."):
        _train(_state(method), method=method, callbacks=[noting])
    assert noting.happened == [("log", 2)]


def test_an_alarm_is_reported_to_every_callback_at_its_step():
    first, second = Noting(), Noting()
    state = _state()
    state.student.eval()
    assert _train(state, callbacks=[first, second], every=Intervals(evaluate=9, log=9)) is True
    assert first.happened[0] == second.happened[0] == ("student-in-evaluation", 0)
    assert state.vitals["alarms"][0]["kind"] == "student-in-evaluation"


# --- the end ---------------------------------------------------------------------------------------------------------


def _saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def test_a_run_that_is_stopped_logs_saves_and_does_not_evaluate(tmp_path: Path):
    noting, state = Noting(stops=3), _state()
    assert _train(state, callbacks=[Noting(), noting], checkpoints=Checkpoints(tmp_path, {})) is False
    assert noting.happened == [("log", 2), ("log", 3)]
    assert (state.step, state.curve) == (3, [])
    assert _saved(tmp_path) == [3]
    assert _train(state, callbacks=[Noting()]) is True
    assert state.step == 7


def test_a_run_is_asked_to_stop_after_each_step_but_the_last_and_whether_it_suffices_after_evaluations():
    noting = Noting()
    _train(_state(), callbacks=[noting], steps=8, every=Intervals(evaluate=3, log=20))
    assert noting.asked == ["stop"] * 3 + ["satisfied"] + ["stop"] * 3 + ["satisfied"] + ["stop"]


def test_a_run_that_suffices_is_complete_at_that_evaluation(tmp_path: Path):
    noting, state = Noting(satisfied=2), _state()
    given: Any = {"steps": 20, "every": Intervals(evaluate=3), "checkpoints": Checkpoints(tmp_path, {})}
    assert _train(state, callbacks=[noting], **given) is True
    assert state.step == 6
    assert [point.step for point in state.curve] == [3, 6]
    assert _saved(tmp_path) == [3, 6]


def test_a_crash_costs_five_minutes_unless_asked_otherwise():
    assert Intervals(evaluate=1).save_seconds == 5 * 60


def test_a_run_that_has_all_its_steps_trains_nothing():
    state = _state()
    _train(state)
    before = state.student.weight.clone()
    assert _train(state) is True
    assert torch.equal(state.student.weight, before)
    assert state.step == 7


# --- the start -------------------------------------------------------------------------------------------------------


class FromData(nn.Linear):
    """Notes the images that it is initialised from, and draws."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        self.images: list[Tensor] = []

    def initialise_from(self, images: Tensor) -> None:
        self.images.append(images)
        self.weight.data.fill_(float(torch.randint(1000, ())))


@dataclass(frozen=True)
class WithMemory(Counting):
    """Its memory has first weights that are drawn."""

    def init(self, student: nn.Module, problem: Problem) -> nn.Module:
        memory = nn.Linear(1, 1, bias=False)
        memory.weight.data.fill_(float(torch.randint(1000, ())))
        return memory


class Pictures:
    """A stream of images that differ by step and role."""

    def __getitem__(self, step: int) -> Batch:
        views = {role: torch.full((2, 1), 10.0 * step + k) for k, role in enumerate(("teacher", "student"))}
        return Batch(views, torch.zeros(2, dtype=torch.int64), torch.arange(2))


def test_first_weights_are_those_of_the_first_batch_and_the_seed_as_in_earlier_versions():
    student = FromData().eval()
    before = torch.get_rng_state()
    state = _state(WithMemory(), student, Pictures())
    assert torch.equal(torch.get_rng_state(), before), "the caller's generator"
    assert [images.tolist() for images in student.images] == [[[1.0], [1.0]]]
    assert (state.student, state.student.training, state.memory.training) == (student, True, True)
    # A run is repeated by a later version: the generator of a CPU draws the same whole numbers on every machine.
    assert [network.weight.tolist() for network in (student, state.memory)] == [[[471.0]], [[179.0]]]
    assert [len(group["params"]) for group in state.optimizer.param_groups] == [2], "both are trained"


def test_first_weights_of_all_ranks_are_those_of_the_first():
    class ByRank(FromData):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.register_buffer("mean", torch.tensor(7.0 + rank))
            self.rank = rank

        def initialise_from(self, images: Tensor) -> None:
            self.images.append(images)
            self.weight.data.fill_(20.0 + self.rank)

    def begun(ranks: Ranks) -> list[float]:
        student = ByRank(ranks.rank)
        _state(Counting(), student, Pictures(), ranks=ranks)
        return [*student.weight.flatten().tolist(), float(student.mean), len(student.images)]

    assert in_threads(begun, 2) == [[20.0, 7.0, 1], [20.0, 7.0, 0]]


# --- a step ----------------------------------------------------------------------------------------------------------


def _step(state: TrainState, method: Any, **given: Any) -> Any:
    options: dict[str, Any] = {"seed": 3, "vitals": Vitals(None), "reads": False}
    return take_step(state, method, _optim(), Steps()[state.step], **{**options, **given})


def test_a_step_moves_the_student_once_and_returns_its_costs_and_alarms():
    state = _state()
    state.student.weight.data.fill_(4.0)
    state.student.eval()
    output, alarms = _step(state, Counting())
    assert state.student.weight.item() == 4.0 - 0.5 * 2, "two costs of gradient one"
    assert state.step == 1
    assert {name: cost.value.item() for name, cost in output.costs.items()} == {"step": 0.0, "ten": 10.0}
    assert [alarm.kind for alarm in alarms] == ["student-in-evaluation"]


@pytest.mark.parametrize(
    ("log", "n_readings"),
    [
        pytest.param(3, 5, id="at steps 0, 1, 2, 4 and 5"),
        pytest.param(20, 4, id="at steps 0, 1, 2 and 4"),
        pytest.param(1, 7, id="at all steps"),
    ],
)
def test_weights_are_read_when_the_run_logs_and_when_gradients_are_read(log: int, n_readings: int):
    vitals = Vitals(None)
    _train(_state(), every=Intervals(evaluate=50, log=log), vitals=vitals)
    assert vitals.state()["streaks"]["read"] == n_readings
    assert [reading.step for reading in vitals.readings] == [0, 1, 2, 4]


def test_a_parameter_without_a_gradient_in_a_step_does_not_move_in_it():
    """Momentum would move it on if its gradient was zero instead."""

    @dataclass(frozen=True)
    class Once(Counting):
        def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
            used = student if step == 0 else student.inner
            return StepOutput({"sum": Cost(used(torch.ones(1, 1)).sum())}, torch.zeros(N_ROWS, 2))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x))  # type: ignore[no-any-return]

    student, method, optim = Outer(), Once(), SgdSpec(learning_rate=0.1)
    state = start(student, method, optim, Steps(), normalise=nn.Identity(), problem=PROBLEM, seed=3)
    kept = []
    for step in range(3):
        take_step(state, method, optim, Steps()[step], seed=3, vitals=Vitals(None), reads=False)
        kept.append([layer.bias.item() for layer in (student.inner, student.outer)])
    assert kept[0][1] == kept[1][1] == kept[2][1]
    assert kept[0][0] > kept[1][0] > kept[2][0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(1.0, r"^The teacher is lost\.$", id="costs that are finite"),
        pytest.param(math.nan, r"^The cost 'step' is not finite in step 0\. The teacher is lost\.$", id="a cost"),
    ],
)
def test_an_update_that_diverges_names_the_costs_that_are_not_finite(value: float, said: str):
    def after(step: int) -> None:
        raise DivergedError("The teacher is lost.")

    with pytest.raises(DivergedError, match=said):
        _step(_state(), Counting(value_of=lambda step: value, after=after))


def test_an_error_in_a_backward_pass_of_ones_own_is_no_lost_process():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise RuntimeError("of mine")

    @dataclass(frozen=True)
    class Own(Counting):
        def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
            logits = student(batch.views["student"])
            return StepOutput({"own": Cost(Failing.apply(logits).sum())}, logits)

    state = _state(Own())
    state.step = 3  # at which no gradients are read
    with pytest.raises(RuntimeError, match=r"^of mine$"):
        _step(state, Own())


def test_what_ranks_draw_alike_is_a_function_of_seed_and_step_as_in_earlier_versions():
    drawn: dict[tuple[int, int, int], list[int]] = {}

    def noting(rank: int, seed: int, step: int) -> Counting:
        def value_of(step: int) -> float:
            drawn[rank, seed, step] = torch.randint(1000, (3,), generator=shared_generator()).tolist()
            return 1.0

        return Counting(value_of=value_of)

    def steps(ranks: Ranks) -> None:
        for seed, step in ((3, 5), (3, 6), (4, 5)):
            method = noting(ranks.rank, seed, step)
            student = nn.Linear(1, 1, bias=False)
            student.weight.data.fill_(1.0)
            state = _state(method, student)
            state.step = step
            whole = Steps()[step]
            batch = replace(whole, views={"student": whole.views["student"][ranks.rows]})
            take_step(state, method, _optim(), batch, seed=seed, vitals=Vitals(None), reads=False, ranks=ranks)

    in_threads(steps, 2)
    for seed, step in ((3, 5), (3, 6), (4, 5)):
        assert drawn[0, seed, step] == drawn[1, seed, step]
    assert len({tuple(each) for each in drawn.values()}) == 3
    assert drawn[0, 3, 5] == [143, 120, 746]
