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
from meanteacher.experiment import Recipe, run
from meanteacher.methods import MeanTeacher
from meanteacher.schedules import Constant
from meanteacher.teacher import Teacher
from meanteacher.train import AdamSpec, Declared, Vitals
from support import BATCHES, METHODS, Small, made_up, recipe, stream


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
    assert {alarm.kind for alarm in vitals._check_labels(0)} == {"hidden-labels", "labelled-share"}
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
