"""The two ways in which well-known toolkits ship a Mean Teacher that trains nothing: both are caught here,
by the contract and by the live vitals of a run."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from meanteacher import testing as contract
from meanteacher.core import Batch, Cost, Problem, StepOutput
from meanteacher.costs import classification_cost, softmax_mse
from meanteacher.experiment import run
from meanteacher.methods import MeanTeacher
from meanteacher.teacher import Teacher
from support import METHODS, recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparesTheTeacherWithItself(MeanTeacher):
    """The student's logits of the consistency cost are read from the teacher's output."""

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits = student(batch.views["student"])
        target = memory(batch.views["teacher"])
        return StepOutput(
            {
                "classification": Cost(classification_cost(logits, batch.labels)),
                "consistency": Cost(self.weight(step) * softmax_mse(target, target), self.weight(step)),
            },
            logits,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetachesTheStudent(MeanTeacher):
    """The cost's value is plausible, its gradient is zero."""

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        logits = student(batch.views["student"])
        with torch.no_grad():
            target = memory(batch.views["teacher"])
        return StepOutput(
            {
                "classification": Cost(classification_cost(logits, batch.labels)),
                "consistency": Cost(self.weight(step) * softmax_mse(logits.detach(), target), self.weight(step)),
            },
            logits,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipliesItAway(MeanTeacher):
    """There is a path to the student, and nothing comes through it."""

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        whole = super().forward(student, memory, batch, step)
        sound = whole.costs["consistency"]
        return StepOutput({**whole.costs, "consistency": Cost(sound.value * 0.0, sound.weight)}, whole.logits)


BROKEN = [ComparesTheTeacherWithItself, DetachesTheStudent, MultipliesItAway]


def _broken(kind: type[MeanTeacher]) -> MeanTeacher:
    sound = METHODS["mean-teacher"]
    assert isinstance(sound, MeanTeacher)
    return kind(decay=sound.decay, buffers=sound.buffers, weight=sound.weight)


@pytest.mark.parametrize("kind", BROKEN)
def test_contract_catches_a_dead_consistency_cost(kind: type[MeanTeacher]):
    with pytest.raises(AssertionError, match="the cost consistency"):
        contract.every_cost_moves_the_student(_broken(kind))


@pytest.mark.parametrize("kind", BROKEN)
def test_live_run_raises_an_alarm_for_a_dead_consistency_cost(kind: type[MeanTeacher], tmp_path: Path):
    broken = recipe(method="mean-teacher", steps=10)
    broken = broken.varied(method=_broken(kind))
    outcome = run(broken, seed=0, out=tmp_path / "run", data=broken.data.source.load(tmp_path))
    assert outcome.record is not None
    (alarm,) = outcome.record.alarms
    assert alarm.kind == "dead-cost/consistency"
    assert "trains nothing" in alarm.sentence


@pytest.mark.parametrize("method", METHODS)
def test_sound_run_raises_no_alarm(method: str, tmp_path: Path):
    sound = recipe(method=method, steps=40)
    outcome = run(sound, seed=0, out=tmp_path / "run", data=sound.data.source.load(tmp_path))
    assert outcome.record is not None
    assert outcome.record.alarms == ()
    read = {reading.step: reading.gradients for reading in outcome.record.vitals}
    # Temporal Ensembling has nothing to agree with in its first epoch, and FixMatch nothing to be certain of.
    assert all(norm > 0 for step in (16, 32) for norm in read[step].values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluatesTheStudent(MeanTeacher):
    """The student stays in evaluation mode, and training goes on in it."""

    def predictor(self, student: nn.Module, memory: Teacher) -> nn.Module:
        return student.eval()


def test_live_run_names_a_predictor_that_leaves_the_student_in_evaluation_mode(tmp_path: Path):
    broken = recipe(method="mean-teacher", steps=20).varied(method=_broken(EvaluatesTheStudent))
    outcome = run(broken, seed=0, out=tmp_path / "run", data=broken.data.source.load(tmp_path))
    assert outcome.record is not None
    (alarm,) = outcome.record.alarms
    assert (alarm.kind, alarm.step) == ("student-in-evaluation", 1)
    assert "student.train() is missing" in alarm.sentence


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountsNoise(MeanTeacher):
    """An extra pass of the student over images that are no views."""

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        student(torch.randn_like(batch.views["student"]))
        return super().forward(student, memory, batch, step)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritesInForward(MeanTeacher):
    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        memory.n_updates += 1
        return super().forward(student, memory, batch, step)


@dataclasses.dataclass(kw_only=True)
class Changeable:
    roles = ("student",)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (EvaluatesTheStudent, "has changed the student's mode"),
        (CountsNoise, "no view of the batch; use passes.untracked"),
        (WritesInForward, r"(has written _extra_state|not the average of the past students)"),
        (DetachesTheStudent, "the cost consistency has no path"),
    ],
)
def test_a_broken_requirement_is_named(kind: type[MeanTeacher], words: str):
    with pytest.raises(AssertionError, match=words):
        contract.check_method(_broken(kind))
    with pytest.raises(AssertionError, match="Changeable can be changed"):
        contract.check_method(Changeable())


@dataclasses.dataclass(frozen=True)
class WritesToTheOriginal:
    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return images


@dataclasses.dataclass(frozen=True)
class DrawsGlobally:
    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return images + torch.randn_like(images)


@dataclasses.dataclass(frozen=True)
class WithUnusedLayer:
    def build(self, problem: Problem) -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
        network[1].unused = nn.Linear(2, 2)
        return network


@pytest.mark.parametrize(
    ("view", "words"), [(WritesToTheOriginal(), "written to the original"), (DrawsGlobally(), "global generator")]
)
def test_a_broken_view_is_named(view: object, words: str):
    with pytest.raises(AssertionError, match=words):
        contract.check_view(view)


def test_a_broken_network_is_named():
    with pytest.raises(AssertionError, match=r"no gradient reaches 1\.unused"):
        contract.check_network(WithUnusedLayer())
