"""Where a run was interrupted cannot be seen in its weights."""

import dataclasses
import hashlib
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forking import run_script
from meanteacher.data import Dataset, TrainTest
from meanteacher.data.download import Progress
from meanteacher.experiment import DataSpec, Outcome, run
from meanteacher.models import Conv13Spec
from meanteacher.schedules import Constant, Cosine
from meanteacher.train import (
    Checkpoints,
    Declared,
    Evaluation,
    Intervals,
    SgdSpec,
    StopWhen,
    TrainState,
    Vitals,
    start,
    train,
)
from meanteacher.views import Chain, Flip, Noise, Normaliser, PerImage, Translate, Zca
from support import BATCHES, METHODS, PROBLEM, SmallNet, recipe, stream

every_kind = pytest.mark.parametrize(("method", "batch"), [(m, b) for m in METHODS for b in BATCHES])


def _run(
    out: Path, *, method: str, batch: str, resume: bool = False, stop: Callable[[], bool] = lambda: False
) -> Outcome:
    whole = recipe(method, batch)
    return run(whole, seed=3, out=out, data=whole.data.source.load(out), resume=resume, callbacks=[StopWhen(stop)])


def _weights(out: Path) -> dict[str, str]:
    """Digests of the final files of student and memory."""
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


def _stops_after(n_steps: int) -> Callable[[], bool]:
    asked = iter(range(n_steps))
    return lambda: next(asked, None) is None


@every_kind
def test_killed_and_resumed_run_ends_with_the_same_bytes(method: str, batch: str, tmp_path: Path):
    """SIGKILL at an arbitrary step, in a process of its own: nothing gets a chance to clean up."""
    kill_at = random.Random(f"{method} {batch}").randint(1, 18)
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import test_resume\n"
        "from pathlib import Path\n"
        "stop = test_resume._stops_after(int(sys.argv[5]))\n"
        "kill = lambda: stop() and os.kill(os.getpid(), signal.SIGKILL)\n"
        "test_resume._run(Path(sys.argv[2]), method=sys.argv[3], batch=sys.argv[4], stop=kill)\n"
    )
    here = Path(__file__).parent
    killed = run_script(script, here, tmp_path / "killed", method, batch, kill_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "record.json").exists()

    resumed = _run(tmp_path / "killed", method=method, batch=batch, resume=True)
    straight = _run(tmp_path / "straight", method=method, batch=batch)
    assert _weights(tmp_path / "killed") == _weights(tmp_path / "straight")
    assert resumed.record is not None
    assert straight.record is not None
    for field in ("curve", "errors", "vitals", "alarms", "split_fingerprint"):
        assert getattr(resumed.record, field) == getattr(straight.record, field), field


@pytest.mark.parametrize("stops", [(1, 1), (4, 5), (7,), (19,)])
def test_interrupted_run_saves_where_it_is_and_resumes_exactly(stops: tuple[int, ...], tmp_path: Path):
    done = 0
    for number, after in enumerate(stops):
        outcome = _run(
            tmp_path / "a", method="mean-teacher", batch="fixed", resume=number > 0, stop=_stops_after(after - 1)
        )
        done += after
        assert (outcome.complete, outcome.step) == (False, done)
    _run(tmp_path / "a", method="mean-teacher", batch="fixed", resume=True)
    _run(tmp_path / "b", method="mean-teacher", batch="fixed")
    assert _weights(tmp_path / "a") == _weights(tmp_path / "b")
    logs = [(tmp_path / name / "metrics.jsonl").read_text().count('"event": "evaluation"') for name in "ab"]
    assert logs == [4, 4]


@dataclasses.dataclass(frozen=True)
class Photos:
    """Images large enough for the paper's network."""

    def load(self, folder: Path, progress: Progress | None = None) -> TrainTest:
        draws = torch.Generator().manual_seed(0)
        labels = torch.arange(60) % 3
        images = torch.randint(0, 256, (60, 3, 12, 12), dtype=torch.uint8, generator=draws)
        return TrainTest(*(Dataset(images[i::2], labels[i::2], ("a", "b", "c")) for i in (0, 1)))


@pytest.mark.parametrize("normalise", [PerImage(), Zca(contrast=True, epsilon=0.1)], ids=["per-image", "zca"])
def test_run_with_the_papers_parts_resumes_exactly(normalise: Normaliser, tmp_path: Path):
    """Data-dependent initialisation, weight normalisation, dropout, whitening, SGD with momentum and a cosine."""
    view = Chain((Flip(), Translate(2), Noise(0.15)))
    whole = recipe(
        data=DataSpec(source=Photos(), n_labelled=6),
        model=Conv13Spec(width=0.03),
        normalise=normalise,
        views={"student": view, "teacher": view},
        optim=SgdSpec(learning_rate=Cosine(value=0.05, steps=30), weight_decay=2e-4),
    )
    data = whole.data.source.load(tmp_path)
    for name, stops in (("a", [7, 6]), ("b", [])):
        for number, after in enumerate([*stops, 100]):
            run(
                whole,
                seed=3,
                out=tmp_path / name,
                data=data,
                resume=number > 0,
                callbacks=[StopWhen(_stops_after(after - 1))],
            )
    assert _weights(tmp_path / "a") == _weights(tmp_path / "b")
    assert json.loads((tmp_path / "a" / "record.json").read_text())["steps"] == 20


def test_evaluating_more_often_changes_no_weight(tmp_path: Path):
    for name, every in (("a", 5), ("b", 1)):
        whole = recipe(evaluate_every=every)
        run(whole, seed=3, out=tmp_path / name, data=whole.data.source.load(tmp_path))
    assert _weights(tmp_path / "a") == _weights(tmp_path / "b")


def test_another_seed_draws_other_labels_and_ends_elsewhere(tmp_path: Path):
    whole = recipe()
    splits = set()
    for seed in (0, 1):
        out = tmp_path / str(seed)
        run(whole, seed=seed, out=out, data=whole.data.source.load(out))
        splits.add((out / "split.txt").read_text())
    assert len(splits) == 2
    assert _weights(tmp_path / "0") != _weights(tmp_path / "1")


def test_resuming_a_complete_run_returns_its_record_and_trains_nothing(tmp_path: Path):
    first = _run(tmp_path / "a", method="supervised", batch="fixed")
    again = _run(tmp_path / "a", method="supervised", batch="fixed", resume=True)
    assert again.record == first.record


def test_training_leaves_the_callers_random_numbers_alone(tmp_path: Path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    _run(tmp_path / "a", method="mean-teacher", batch="mixed")
    assert torch.equal(torch.rand(3), expected)


def test_best_checkpoint_is_that_of_the_lowest_validation_error(tmp_path: Path):
    outcome = _run(tmp_path / "a", method="mean-teacher", batch="fixed")
    assert outcome.record is not None
    curve = outcome.record.curve
    best = min(curve, key=lambda point: point.teacher)
    assert {point.part for point in curve} == {"validation"}
    assert outcome.record.errors.best_validation.step == best.step
    assert (tmp_path / "a" / "checkpoints" / "best").read_text().strip() == f"step_{best.step:08d}"
    assert outcome.record.errors.best_validation.teacher.validation == best.teacher


def test_best_is_judged_by_the_teacher_on_validation_and_the_earliest_of_equals():
    network = torch.nn.Linear(1, 1)
    state = TrainState(network, network, network, torch.optim.SGD(network.parameters(), lr=0.1))
    assert state.best() is None
    state.curve = [
        Evaluation(10, "test", student=0.0, teacher=0.0),
        Evaluation(20, "validation", student=0.1, teacher=0.5),
        Evaluation(30, "validation", student=0.9, teacher=0.4),
        Evaluation(40, "validation", student=0.2, teacher=0.4),
    ]
    best = state.best()
    assert best is not None
    assert best.step == 30


@pytest.mark.parametrize(("save_seconds", "saved"), [(0.0, [1, 2, 3, 4]), (1000.0, [4])])
def test_long_time_between_evaluations_does_not_mean_a_long_time_between_checkpoints(
    save_seconds: float, saved: list[int]
):
    method = METHODS["supervised"]
    optim = SgdSpec(learning_rate=Constant(0.1))
    steps: list[int] = []

    class Noting(Checkpoints):
        def save(self, state: TrainState) -> Path:
            steps.append(state.step)
            return self.folder

    batches = stream()
    state = start(SmallNet(), method, optim, batches, normalise=torch.nn.Identity(), problem=PROBLEM, seed=0)
    train(
        state,
        method,
        optim,
        batches,
        steps=4,
        seed=0,
        vitals=Vitals(Declared(n_labelled=9, labelled_share=0.25, exact=True, steps=4)),
        evaluate=lambda state: Evaluation(state.step, "test", 0.0, 0.0),
        every=Intervals(evaluate=4, save_seconds=save_seconds),
        checkpoints=Noting(Path(), {}),
    )
    assert steps == saved


def test_resumed_run_uses_as_many_threads_as_it_was_started_with(tmp_path: Path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        _run(tmp_path / "a", method="supervised", batch="fixed", stop=_stops_after(3))
        torch.set_num_threads(2)
        _run(tmp_path / "a", method="supervised", batch="fixed", resume=True)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
