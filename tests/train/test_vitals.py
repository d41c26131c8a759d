"""Every alarm sounds for its fault, in a live run, and for nothing else."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from meanteacher.core import UNLABELLED, Batch, Cost, Problem, StepOutput
from meanteacher.costs import Confident
from meanteacher.data import ImageStream, make_split
from meanteacher.distributed import Ranks
from meanteacher.experiment import Recipe, run
from meanteacher.methods import MeanTeacher
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher
from meanteacher.train import AdamSpec, Declared, Vitals
from support import BATCHES, METHODS, Small, made_up, recipe, stream
from thread_ranks import in_threads


def _alarms(faulty: Recipe, out: Path) -> dict[str, str]:
    outcome = run(faulty, seed=0, out=out, data=faulty.data.source.load(out))
    assert outcome.record is not None
    return {alarm.kind: alarm.sentence for alarm in outcome.record.alarms}


def _mean_teacher(kind: type[MeanTeacher] = MeanTeacher, **changes: Any) -> MeanTeacher:
    sound = METHODS["mean-teacher"]
    assert isinstance(sound, MeanTeacher)
    return kind(**{"decay": sound.decay, "buffers": sound.buffers, "weight": sound.weight, **changes})


def test_teacher_that_does_not_follow_is_an_alarm(tmp_path: Path):
    stale = _mean_teacher(decay=Constant(1.0))
    faulty = recipe(method="mean-teacher", steps=80)

    @contextmanager
    def without_warm_up() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("meanteacher.teacher.warmed_up", lambda decay, updates: decay)
            yield

    with without_warm_up():
        alarms = _alarms(faulty.varied(method=stale), tmp_path / "r")
    assert set(alarms) == {"stale-teacher"}
    assert "the average is not updated" in alarms["stale-teacher"]


def test_teacher_with_the_students_weights_is_an_alarm(tmp_path: Path):
    faulty = recipe(steps=80).varied(method=_mean_teacher(decay=Constant(0.0)))
    assert set(_alarms(faulty, tmp_path / "r")) == {"teacher-is-student"}


def test_student_that_does_not_move_is_an_alarm(tmp_path: Path):
    still = AdamSpec(learning_rate=Constant(0.0), beta1=Constant(0.9), beta2=Constant(0.99))
    alarms = _alarms(recipe(steps=160).varied(optim=still), tmp_path / "r")
    assert set(alarms) == {"still-student"}
    assert "learning rate is 0" in alarms["still-student"]


@pytest.mark.parametrize("name", ["vat", "temporal-ensembling", "supervised"])
def test_methods_that_evaluate_the_student_itself_raise_no_alarm(name: str, tmp_path: Path):
    student_only = dataclasses.replace(METHODS[name], decay=Constant(0.0), buffers="copy")
    assert _alarms(recipe(name, steps=80).varied(method=student_only), tmp_path / "r") == {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainsTheTeacher(MeanTeacher):
    """The teacher runs with gradient and its parameters take part."""

    def init(self, student: nn.Module, problem: Problem) -> Teacher:
        memory = super().init(student, problem)
        return memory.requires_grad_()

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        whole = super().forward(student, memory, batch, step)
        anchor = memory.network(batch.views["teacher"]).square().mean()
        cost = whole.costs["consistency"]
        return StepOutput({**whole.costs, "consistency": Cost(cost.value + anchor, cost.weight)}, whole.logits)


def test_gradient_on_the_teacher_is_an_alarm(tmp_path: Path):
    faulty = recipe(steps=20).varied(method=_mean_teacher(TrainsTheTeacher))
    assert "teacher-gradient" in _alarms(faulty, tmp_path / "r")


@dataclasses.dataclass(frozen=True)
class SaysOneClass:
    """A network whose first class always wins."""

    def build(self, problem: Problem) -> nn.Module:
        class Biased(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = Small().build(problem)

            def forward(self, x: Tensor) -> Tensor:
                logits: Tensor = self.net(x) + torch.tensor([1e3, 0.0, 0.0])
                return logits

        return Biased()


def test_collapsed_predictions_are_an_alarm(tmp_path: Path):
    alarms = _alarms(recipe(steps=80, model=SaysOneClass()), tmp_path / "r")
    assert "100.0 %" in alarms["collapse"]


@pytest.mark.parametrize("batch", BATCHES)
def test_leaking_labels_are_an_alarm(batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The stream forgets to hide: every row shows its label."""
    real = ImageStream.__getitem__

    def leaking(self: ImageStream, step: int) -> Batch:
        sound = real(self, step)
        return Batch(sound.views, self.dataset.labels[sound.index], sound.index)

    monkeypatch.setattr(ImageStream, "__getitem__", leaking)
    alarms = _alarms(recipe(batch=batch, steps=40), tmp_path / "r")
    assert {"hidden-labels", "labelled-share"} <= set(alarms)
    assert "100.00 %" in alarms["labelled-share"]


def _declared(n_labelled: int, share: float, *, exact: bool) -> Declared:
    return Declared(n_labelled=n_labelled, labelled_share=share, exact=exact, steps=100)


@pytest.mark.parametrize("n_labelled", [3, 9, 30, 60])
def test_varying_share_of_a_sound_stream_never_alarms(n_labelled: int):
    batches = stream("mixed", n_labelled=n_labelled)
    vitals = Vitals(_declared(n_labelled, n_labelled / 60, exact=False))
    for step in range(300):
        vitals.note_labels(batches[step])
        assert vitals._check_labels(step) == []


def test_row_of_dense_labels_is_labelled_where_any_of_its_places_is():
    labels = torch.full((4, 2, 3), UNLABELLED)
    labels[0], labels[1, 0, 2] = 1, 0
    batch = Batch({"student": torch.zeros(4, 1, 2, 3)}, labels, torch.tensor([7, 5, 2, 3]))
    for declared, alarms in ((_declared(2, 0.5, exact=True), []), (_declared(1, 0.5, exact=True), ["hidden-labels"])):
        vitals = Vitals(declared)
        vitals.note_labels(batch)
        assert [alarm.kind for alarm in vitals._check_labels(0)] == alarms
        assert vitals.state()["labelled"] == [5, 7]


def test_labelled_set_of_another_seed_is_noticed():
    """Two processes that each draw their own labels see more of them than were declared."""
    vitals = Vitals(_declared(9, 9 / 60, exact=False))
    for step in range(30):
        for seed in (0, 1):
            vitals.note_labels(stream("mixed", seed=seed)[step])
    assert [alarm.kind for alarm in vitals._check_labels(29)] == ["hidden-labels"]


def test_batch_without_labels_is_no_dead_classification_cost():
    data = made_up(60, seed=0)
    split = make_split(data.labels, n_classes=3, n_labelled=3, seed=0)
    assert len(split.unlabelled) == 57
    student = Small().build(Problem(n_classes=3, n_examples=60, input_shape=(1, 6, 6)))
    batch = stream()[0]
    empty = Batch(batch.views, torch.full_like(batch.labels, UNLABELLED), batch.index)
    vitals = Vitals(_declared(3, 0.05, exact=False))
    for step in range(10):
        output = METHODS["supervised"].forward(student, student, empty, step)
        assert vitals.read_gradients(step, output.costs, student, list(student.parameters()), empty.labels) == []


@dataclasses.dataclass(frozen=True)
class Late:
    """Zero at first."""

    step: int

    def __call__(self, step: int) -> float:
        return float(step >= self.step)


def test_cost_may_rest_for_a_while(tmp_path: Path):
    late = _mean_teacher(weight=Late(115))
    assert _alarms(recipe(steps=240).varied(method=late), tmp_path / "r") == {}


@pytest.mark.parametrize(
    "never", [{"weight": Late(70)}, {"cost": Confident(threshold=0.999, temperature=1.0)}], ids=["weight", "threshold"]
)
def test_cost_that_rests_for_half_of_the_run_is_an_alarm(never: dict[str, Any], tmp_path: Path):
    slow = AdamSpec(learning_rate=Constant(1e-6), beta1=Constant(0.9), beta2=Constant(0.99))
    resting = recipe(steps=120).varied(method=_mean_teacher(**never), optim=slow)
    alarms = _alarms(resting, tmp_path / "r")
    assert set(alarms) == {"resting-cost/consistency"}


def test_nothing_is_said_of_a_run_of_a_few_readings(tmp_path: Path):
    short = recipe(steps=12).varied(method=_mean_teacher(weight=Late(70)))
    assert _alarms(short, tmp_path / "r") == {}


def test_an_alarm_sounds_once_a_run():
    vitals = Vitals(_declared(0, 0.0, exact=True))
    vitals.note_labels(stream()[0])
    assert [alarm.kind for alarm in vitals._check_labels(0)] == ["hidden-labels", "labelled-share"]
    assert vitals._check_labels(1) == []
    assert len(vitals.alarms) == 2


def test_reading_changes_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    weights = []
    for name, reads in (("a", True), ("b", False)):
        monkeypatch.setattr(Vitals, "reads_gradients", lambda self, step, reads=reads: reads)
        whole = recipe()
        run(whole, seed=0, out=tmp_path / name, data=whole.data.source.load(tmp_path))
        folder = tmp_path / name / "checkpoints" / "step_00000020"
        weights.append((folder / "memory.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_what_vitals_remember_survives_a_checkpoint():
    before = Vitals(_declared(9, 0.25, exact=True))
    for step in range(5):
        before.note_labels(stream()[step])
    before._streak("collapse", condition=True)
    after = Vitals(before.declared)
    after.load(before.state())
    assert after.state() == before.state()


def test_labels_noted_since_the_last_reading_are_in_a_checkpoint():
    vitals = Vitals(_declared(0, 0.0, exact=True))
    batch = stream()[0]
    vitals.note_labels(batch)
    state = vitals.state()
    assert (state["rows"], state["labelled_rows"]) == (len(batch.labels), int((batch.labels != UNLABELLED).sum()))


class Operations(TorchDispatchMode):
    """Counts the operations of a block."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_a_network_of_more_tensors_is_read_with_no_more_operations():
    """Each is a kernel that a GPU starts. `torch._foreach` operations take all tensors at once."""
    counts = []
    for depth in (2, 40):
        student = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))
        teacher = Teacher(student, decay=0.9).network
        vitals = Vitals(Declared(n_labelled=1, labelled_share=0.5, exact=True, steps=9))
        with Operations() as of_reading:
            vitals.read(1, {}, student, teacher)
        cost, trained = student(torch.ones(1, 4)).sum(), list(student.parameters())
        with Operations() as of_backward:
            torch.autograd.grad(cost * 1.0, trained, retain_graph=True)
        with Operations() as of_gradients:
            vitals.read_gradients(0, {"": Cost(cost)}, student, trained)
        counts.append((of_reading.n, of_gradients.n - of_backward.n))
    assert counts[0] == counts[1]
    assert sum(counts[0]) < 20


# --- exactly when an alarm sounds, and what a reading holds -----------------------------------------------------------


def test_gradients_are_read_at_powers_of_two_and_then_every_thousand_steps() -> None:
    vitals = Vitals(_declared(3, 0.5, exact=True))
    read = [step for step in range(4_200) if vitals.reads_gradients(step)]
    assert read == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000, 4000]


def _linear(*weights: float) -> nn.Linear:
    """A network of one output per weight, without bias."""
    network = nn.Linear(1, len(weights), bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor(weights)[:, None])
    return network


def _kinds(vitals: Vitals) -> list[str]:
    return [alarm.kind for alarm in vitals.alarms]


def test_a_reading_holds_the_gradient_norms_the_distance_and_the_shares() -> None:
    student, teacher = _linear(3.0, 4.0), _linear(3.0, 1.0)
    vitals = Vitals(_declared(9, 0.25, exact=False))
    vitals.note_labels(Batch({}, torch.tensor([2, -1, -1, -1]), torch.tensor([8, 1, 0, 7])))
    costs = {
        "classification": Cost(student(torch.tensor([[2.0]])).sum()),
        "consistency": Cost(5.0 * student.weight[1, 0] + 7.0, weight=2.0),
    }
    assert vitals.read_gradients(4, costs, student, [student.weight], scale=64.0) == []
    logits = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0], [0.5, 1.0]])
    assert vitals.read(4, costs, student, teacher, logits) == []
    (reading,) = vitals.readings
    assert reading.step == 4
    assert reading.gradients == pytest.approx({"classification": 8**0.5, "consistency": 5.0})
    assert reading.distance == pytest.approx(3.0 / 5.0)
    assert reading.labelled_share == 0.25
    assert reading.largest_class_share == 0.75
    vitals.read(4, costs, student, teacher, logits)
    assert len(vitals.readings) == 1, "gradients are recorded once"
    vitals.read_gradients(8, {"consistency": Cost(student.weight.sum() * float("inf"))}, student, [student.weight])
    vitals.read(8, {}, student, teacher, logits)
    assert len(vitals.readings) == 1, "an overflow is no reading"


def test_a_student_in_evaluation_mode_is_an_alarm() -> None:
    student, vitals = _linear(1.0), Vitals(None)
    assert vitals.read_gradients(0, {}, student, [student.weight]) == []
    vitals.read_gradients(1, {}, student.eval(), [student.weight])
    assert _kinds(vitals) == ["student-in-evaluation"]


@pytest.mark.parametrize(
    ("path", "weight", "sounds_at"),
    [
        pytest.param(True, 1.0, 2, id="zero gradients thrice"),
        pytest.param(True, None, 2, id="without a weight"),
        pytest.param(False, 1.0, 0, id="no path to the student"),
        pytest.param(True, 0.0, None, id="inactive"),
        pytest.param(False, 0.0, None, id="inactive and without a path"),
    ],
)
def test_a_dead_cost_sounds_at(path: bool, weight: float | None, sounds_at: int | None) -> None:
    student, vitals = _linear(1.0, 2.0), Vitals(_declared(1, 0.5, exact=True))
    value = (student.weight - student.weight.detach()).square().sum()  # its gradient is zero
    cost = Cost(value if path else value.detach(), weight=weight)
    raised = [vitals.read_gradients(step, {"consistency": cost}, student, [student.weight]) for step in range(5)]
    assert [step for step, alarms in enumerate(raised) if alarms] == ([] if sounds_at is None else [sounds_at])
    assert _kinds(vitals) == ([] if sounds_at is None else ["dead-cost/consistency"])


def test_a_cost_that_is_dead_now_and_then_is_no_alarm() -> None:
    student, vitals = _linear(1.0, 2.0), Vitals(_declared(1, 0.5, exact=True))
    for step in range(9):
        factor = float(step % 3 == 2)
        cost = Cost(factor * student.weight.sum(), weight=1.0)
        assert vitals.read_gradients(step, {"consistency": cost}, student, [student.weight]) == []


def test_a_stream_without_labels_sounds_after_a_thousand_steps_and_is_read_until_one_comes() -> None:
    student, vitals = _linear(1.0), Vitals(None)
    costs, hidden = {"classification": Cost(student.weight.sum())}, torch.tensor([-1, -1])
    for step in range(999):
        assert vitals.read_gradients(step, costs, student, [student.weight], hidden) == []
        assert vitals.reads_gradients(3)
    (alarm,) = vitals.read_gradients(999, costs, student, [student.weight], hidden)
    assert alarm.kind == "no-labels"
    assert alarm.sentence.startswith("No label has arrived in 1,000 steps:")
    vitals.read_gradients(1000, costs, student, [student.weight], torch.tensor([-1, 0]))
    assert not vitals.reads_gradients(3)


@pytest.mark.parametrize(
    ("online", "n_rows", "wrong", "first_step", "sounds_at"),
    [
        pytest.param(False, 100, 4, 20, 22, id="96 %"),
        pytest.param(False, 100, 5, 20, None, id="95 %"),
        pytest.param(False, 100, 4, 18, 22, id="not in the first fifth"),
        pytest.param(False, 4, 0, 20, 22, id="few rows"),
        pytest.param(True, 20, 0, 400, 402, id="on-line"),
        pytest.param(True, 19, 0, 400, None, id="few rows on-line"),
        pytest.param(True, 20, 0, 398, 402, id="not in the first steps on-line"),
    ],
)
def test_a_collapse_sounds_at(online: bool, n_rows: int, wrong: int, first_step: int, sounds_at: int | None) -> None:
    vitals = Vitals(None if online else _declared(1, 0.0, exact=True))
    network = _linear(1.0)
    logits = torch.eye(3)[[1] * (n_rows - wrong) + [2] * wrong]
    for step in range(first_step, first_step + 6):
        raised = vitals.read(step, {}, network, network, logits)
        assert [alarm.kind for alarm in raised] == (["collapse"] if step == sounds_at else [])


@pytest.mark.parametrize(
    ("fault", "online", "alarm", "sounds_at"),
    [
        pytest.param("still", False, "still-student", 10, id="a student that stays"),
        pytest.param("stale", False, "stale-teacher", 3, id="a teacher that stays"),
        pytest.param("equal", False, "teacher-is-student", 3, id="a teacher that is the student"),
        pytest.param("equal", True, "teacher-is-student", 3, id="the same on-line"),
        pytest.param("sound", False, None, None, id="a teacher that follows"),
    ],
)
def test_a_teacher_that_does_not_follow_sounds_at(
    fault: str, online: bool, alarm: str | None, sounds_at: int | None
) -> None:
    student, teacher = _linear(1.0, 2.0), _linear(5.0, 6.0)
    vitals = Vitals(None if online else _declared(0, 0.0, exact=True))
    sounded = {}
    for step in range(14):
        with torch.no_grad():
            student.weight.add_(0.0 if fault == "still" else 1.0)
            teacher.weight.copy_(
                {
                    "still": teacher.weight,
                    "stale": teacher.weight,
                    "equal": student.weight,
                    "sound": student.weight / 2,
                }[fault]
            )
        for raised in vitals.read(step, {}, student, teacher):
            sounded[raised.kind] = step
    assert sounded == ({} if alarm is None else {alarm: sounds_at})


def test_a_teacher_may_be_the_student_if_nothing_learns_from_it() -> None:
    student, teacher = _linear(1.0), _linear(1.0)
    declared = Declared(n_labelled=0, labelled_share=0.0, exact=True, steps=100, evaluates_student=True)
    vitals = Vitals(declared)
    for step in range(12):
        with torch.no_grad():
            student.weight.add_(1.0)
            teacher.weight.copy_(student.weight)
        assert vitals.read(step, {}, student, teacher) == []


@pytest.mark.parametrize(
    ("inactive_until", "steps", "sounds_at"),
    [
        pytest.param(99, 40, 20, id="half of the run"),
        pytest.param(99, 12, 9, id="at least ten readings"),
        pytest.param(0, 40, None, id="active"),
        pytest.param(15, 40, None, id="active before the half"),
    ],
)
def test_an_inactive_cost_sounds_at(inactive_until: int, steps: int, sounds_at: int | None) -> None:
    declared = Declared(n_labelled=0, labelled_share=0.0, exact=True, steps=steps)
    vitals, network = Vitals(declared), _linear(1.0)
    for step in range(steps):
        costs = {"consistency": Cost(torch.ones(()), weight=float(step >= inactive_until))}
        raised = vitals.read(step, costs, network, network)
        assert [alarm.kind for alarm in raised] == (["resting-cost/consistency"] if step == sounds_at else [])


@pytest.mark.parametrize(
    ("exact", "n_labelled", "alarms"),
    [
        pytest.param(True, 25, [], id="as declared"),
        pytest.param(True, 26, ["labelled-share"], id="one more than declared"),
        pytest.param(False, 51, [], id="six standard errors and a row"),
        pytest.param(False, 52, ["labelled-share"], id="more than six standard errors and a row"),
        pytest.param(False, 0, [], id="none, within six standard errors"),
    ],
)
def test_a_share_of_labels_sounds_beyond_its_chance(exact: bool, n_labelled: int, alarms: list[str]) -> None:
    # Of 100 rows 25 are declared: the standard error of their number is 4.33.
    vitals = Vitals(_declared(100, 0.25, exact=exact))
    labels = torch.full((100,), -1)
    labels[:n_labelled] = 0
    vitals.note_labels(Batch({}, labels, torch.arange(100)))
    assert [alarm.kind for alarm in vitals._check_labels(0)] == alarms
    assert vitals._check_labels(1) == []


def test_a_step_that_moves_the_teacher_first_is_an_alarm() -> None:
    teacher, vitals = _linear(1.0, 2.0), Vitals(None)
    vitals.note_teacher(teacher)
    assert vitals.check_order(3, teacher) == []
    with torch.no_grad():
        teacher.weight[1] = 2.5
    assert [alarm.kind for alarm in vitals.check_order(4, teacher)] == ["early-update"]


def test_a_reading_without_logits_has_no_largest_class() -> None:
    student, vitals = _linear(0.0, 0.0), Vitals(None)
    vitals.read_gradients(0, {"c": Cost(student.weight.sum())}, student, [student.weight])
    vitals.read(0, {}, student, _linear(3.0, 1.0))
    (reading,) = vitals.readings
    assert (reading.largest_class_share, reading.labelled_share) == (0.0, 0.0)
    assert reading.distance == 0.0, "relative to a student without length"


def test_gradients_of_a_cost_are_those_of_the_whole_batch_on_every_rank() -> None:
    def norms(ranks: Ranks) -> dict[str, float]:
        student, vitals = _linear(1.0, 2.0), Vitals(None)
        own = torch.tensor([[3.0, 0.0], [5.0, 6.0]])[ranks.rank]
        costs = {"own": Cost((own * student.weight[:, 0]).sum()), "none": Cost(torch.ones(()))}
        vitals.read_gradients(2, costs, student, [student.weight], ranks=ranks, scale=8.0)
        vitals.read(2, {}, student, student)
        return vitals.readings[0].gradients

    assert in_threads(norms, 2) == [{"own": pytest.approx(5.0), "none": 0.0}] * 2


def _with_labels(*labels: int) -> Batch:
    return Batch({}, torch.tensor(labels), torch.arange(len(labels)))


@pytest.mark.parametrize(("share", "exact"), [(1.0, True), (0.001, False)])
def test_a_batch_of_one_labelled_row_is_no_alarm(share: float, exact: bool) -> None:
    student, vitals = _linear(1.0), Vitals(_declared(1, share, exact=exact))
    vitals.note_labels(_with_labels(0))
    vitals.read_gradients(0, {"c": Cost(student.weight.sum())}, student, [student.weight])
    assert vitals.read(0, {}, student, student) == []
    assert vitals.readings[0].labelled_share == 1.0


def test_labels_that_arrive_one_by_one_are_counted_until_one_is_too_many() -> None:
    vitals = Vitals(_declared(2, 1.0, exact=True))
    found = []
    for position in (4, 9, 4, 7, 1, 3):
        vitals.note_labels(Batch({}, torch.tensor([0]), torch.tensor([position])))
        found.append([alarm.kind for alarm in vitals._check_labels(0)])
    assert found == [[], [], [], ["hidden-labels"], [], []]
    assert vitals.state()["labelled"] == [4, 7, 9], "the memory is bounded"


@pytest.mark.parametrize(
    ("online", "step", "said"), [(False, 50, "in half of the run."), (True, 1200, "in the first 1,200 steps.")]
)
def test_an_inactive_cost_is_named_with_the_time_that_it_had(online: bool, step: int, said: str) -> None:
    vitals, network = Vitals(None if online else _declared(0, 0.0, exact=True)), _linear(1.0)
    for _ in range(9):
        vitals.read(0, {"c": Cost(torch.ones(()), weight=0.0)}, network, network)
    (alarm,) = vitals.read(step, {"c": Cost(torch.ones(()), weight=0.0)}, network, network)
    assert said in alarm.sentence


def test_a_student_that_rests_for_nine_readings_is_no_alarm() -> None:
    student, teacher, vitals = _linear(1.0), _linear(1.0), Vitals(None)
    for step in range(60):
        with torch.no_grad():
            student.weight.add_(float(step % 10 == 0))
            teacher.weight.add_(0.5 * float(step % 10 == 0))
        assert vitals.read(step, {}, student, teacher) == []


def test_what_is_declared_learns_from_its_average_unless_it_says_otherwise() -> None:
    assert not Declared(n_labelled=1, labelled_share=0.5, exact=True, steps=9).evaluates_student
