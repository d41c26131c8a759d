"""Many runs in processes of their own: none is trained twice, and what one of them breaks the others do not notice.

The recipes are in a file that the processes load. They say when they train, and train on or wait as they are told.
"""

import hashlib
import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from meanteacher import experiment
from meanteacher.api import load_recipe
from meanteacher.cli.app import app
from meanteacher.core import InputError, Interrupted
from meanteacher.experiment import workers
from meanteacher.experiment.runs import Run
from meanteacher.experiment.workers import Workers, printed_commands
from meanteacher.paper.runs import runs_of
from meanteacher.train import Callback, StopWhen
from support import PATIENCE, child_environment, held_by_another_process

RECIPES = '''
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from meanteacher.core import InputError
from meanteacher.experiment import DataSpec
from meanteacher.views import Noise
from support import MadeUp, recipe

HERE = Path(__file__).parent
calls = 0


@dataclass(frozen=True)
class Watched:
    """Notes that this process trains. While there is the file `hold`, it waits in a step for the signal to stop."""

    view: Noise = Noise(0.3)

    def __call__(self, *args, **options):
        global calls
        calls += 1
        if calls == 1:
            with (HERE / "trained.txt").open("a") as file:
                file.write(f"{os.getpid()}\\n")
        while calls > 34 and (HERE / "hold").exists() and callable(signal.getsignal(signal.SIGTERM)):
            (HERE / "held").touch()
            time.sleep(0.01)
        return self.view(*args, **options)


@dataclass(frozen=True)
class Bad:
    how: str

    def load(self, folder, progress=None):
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "refused":
            raise InputError("The labels are in another castle.")
        if self.how == "patient":
            while not (HERE / "open").exists():
                time.sleep(0.01)
            return MadeUp().load(folder)
        raise RuntimeError("Out of luck.")


quick = recipe(steps=30, views={"student": Watched(), "teacher": Watched()}, name="quick")
patient = recipe(name="patient", data=DataSpec(source=Bad("patient"), n_labelled=9), steps=2)
killed = recipe(name="killed", data=DataSpec(source=Bad("killed"), n_labelled=9))
refused = recipe(name="refused", data=DataSpec(source=Bad("refused"), n_labelled=9))
failed = recipe(name="failed", data=DataSpec(source=Bad("failed"), n_labelled=9))
'''


class Noting(Callback):
    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        self.should_stop = stop  # type: ignore[method-assign]
        self.shares: list[float] = []
        self.ends: list[str] = []

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.shares.append(done / total)

    def on_message(self, sentence: str) -> None:
        self.ends.append(sentence)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Run]]:
    """Runs of the recipes in the file, by name; one per seed."""
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    monkeypatch.setattr(workers, "_POLL_SECONDS", 0.05)
    # One thread each, however many the machine has.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    file = tmp_path / "recipes.py"
    file.write_text(RECIPES)

    def make(*names: str, out: str = "runs", seeds: int = 1) -> list[Run]:
        places = [f"{file}:{name}" for name in names]
        return [Run(place, load_recipe(place), seed, tmp_path / out) for seed in range(seeds) for place in places]

    return make


def _workers(runs: Sequence[Run], *, jobs: int = 1, stop: Callable[[], bool] = lambda: False, **more: Any) -> Workers:
    return Workers(runs=runs, jobs=jobs, options=[], **{"callback": StopWhen(stop), **more})


def _n_trained(tmp_path: Path) -> int:
    """Processes that have taken a step."""
    note = tmp_path / "trained.txt"
    return len(note.read_text().splitlines()) if note.exists() else 0


def _undisturbed(run: Run, out: Path) -> Path:
    """The same run in this process, with as many threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        experiment.run(run.recipe, seed=run.seed, out=out, data=run.recipe.data.source.load(out))
    finally:
        torch.set_num_threads(before)
    return out


def _weights(folder: Path) -> dict[str, str]:
    checkpoints = folder / "checkpoints"
    folder = checkpoints / (checkpoints / "last").read_text().strip()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


def _wait_until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_interrupted_half_way_and_started_again_runs_nothing_twice(tmp_path: Path, make: Callable[..., list[Run]]):
    first, second, _ = runs = make("quick", seeds=3)

    def half_way() -> bool:
        if first.record.exists():
            (tmp_path / "hold").touch()
        return (tmp_path / "held").exists()

    callback = Noting(half_way)
    with pytest.raises(Interrupted, match="2 runs"):
        _workers(runs, callback=callback).run_all()
    (tmp_path / "hold").unlink()
    assert [run.state() for run in runs] == ["complete", "started", "missing"]
    # It was told to save, not killed: the evaluations save every fifth step alone.
    saved = (second.folder / "checkpoints" / "last").read_text().strip()
    assert int(saved.removeprefix("step_")) % 5 != 0
    assert callback.shares == sorted(callback.shares)
    assert 0 < callback.shares[-1] < 1
    record, saved_at = first.record.read_bytes(), first.record.stat().st_mtime_ns

    callback = Noting()
    again = _workers(runs, jobs=2, callback=callback)
    again.run_all()
    assert [run.state() for run in runs] == ["complete"] * 3
    assert again.problems == {}
    assert callback.shares[-1] == 1
    assert sorted(callback.ends) == ["Complete: quick, seed 1", "Complete: quick, seed 2"]
    assert (first.record.read_bytes(), first.record.stat().st_mtime_ns) == (record, saved_at)
    assert _n_trained(tmp_path) == 4  # the second one in two parts

    events = [json.loads(line) for line in (second.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "evaluation"]
    assert steps == [5, 10, 15, 20, 25, 30]
    assert _weights(second.folder) == _weights(_undisturbed(second, tmp_path / "undisturbed"))

    n_trained = _n_trained(tmp_path)
    _workers(runs).run_all()
    assert _n_trained(tmp_path) == n_trained


def test_two_tables_at_once_in_one_folder_train_each_run_once(tmp_path: Path, make: Callable[..., list[Run]]):
    runs = make("quick", seeds=2)
    errors: list[BaseException] = []

    def work(jobs: int) -> None:
        try:
            its = _workers(runs, jobs=jobs)
            its.run_all()
            assert its.problems == {}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(jobs,)) for jobs in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    assert [run.state() for run in runs] == ["complete"] * 2
    assert _n_trained(tmp_path) == 2


def test_run_that_another_process_has_taken_is_waited_for_and_the_others_go_on(
    tmp_path: Path, make: Callable[..., list[Run]]
):
    taken, free = make("quick", seeds=2)
    taken.folder.mkdir(parents=True)
    with held_by_another_process(taken.folder / ".lock"), pytest.raises(Interrupted):
        _workers([taken, free], stop=free.record.exists).run_all()
    assert not taken.log.exists()
    assert [run.state() for run in (taken, free)] == ["missing", "complete"]


def test_killed_and_failed_runs_are_reported_and_the_others_go_on(make: Callable[..., list[Run]]):
    killed, failed = runs = make("killed", "failed")
    callback = Noting()
    its = _workers(runs, callback=callback)
    its.run_all()
    assert set(its.problems) == {killed, failed}
    assert "signal 9" in its.problems[killed]
    assert "Out of luck." in its.problems[failed]
    for run, problem in its.problems.items():
        assert run.title in problem
        assert str(run.log) in problem
    assert "Traceback" in failed.log.read_text()
    assert callback.ends == [f"Failed: {its.problems[run]}" for run in (killed, failed)]
    assert callback.shares[-1] == 1


def test_input_error_ends_everything_with_its_own_sentence_and_saves_the_others(
    tmp_path: Path, make: Callable[..., list[Run]]
):
    quick, refused, later = make("quick", "refused", "patient")
    (tmp_path / "hold").touch()
    ordered = [quick, refused, later]
    its = _workers(ordered, jobs=2, stop=lambda: bool(its.problems))
    with pytest.raises(InputError, match=r"refused, seed 0: The labels are in another castle\.$"):
        its.run_all()
    assert not quick.record.exists()
    assert quick.state() in ("missing", "started")  # nothing of it is left running
    assert later.state() == "missing"
    assert not later.log.exists()


@pytest.mark.parametrize(
    ("n_cores", "jobs", "nproc", "given", "threads"),
    [
        (8, 1, 1, "", "8"),
        (8, 3, 1, "", "2"),
        (2, 5, 1, "", "1"),
        (None, 1, 1, "", "1"),
        (8, 2, 2, "", "2"),
        (8, 2, 2, "3", "3"),
    ],
)
def test_jobs_and_their_processes_share_the_threads_unless_they_are_given(
    n_cores: int | None,
    jobs: int,
    nproc: int,
    given: str,
    threads: str,
    make: Callable[..., list[Run]],
    monkeypatch: pytest.MonkeyPatch,
):
    (run,) = make("quick")
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(os, "cpu_count", lambda: n_cores)
    started: list[str] = []

    def stopped(*_: object, env: dict[str, str], **__: object) -> None:
        started.append(env["OMP_NUM_THREADS"])
        raise InputError("enough")

    monkeypatch.setattr(subprocess, "Popen", stopped)
    with pytest.raises(InputError, match="enough"):
        _workers([run], jobs=jobs, nproc=nproc).run_all()
    assert started == [threads]


def test_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path, make: Callable[..., list[Run]]):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="--out"):
        _workers(make("quick", out="file")).run_all()


def test_steps_of_long_runs_weigh_more_in_the_progress(make: Callable[..., list[Run]]):
    quick, patient = make("quick", "patient")
    its = _workers([quick, patient])
    quick.folder.mkdir(parents=True)
    assert its._share() == 0
    (quick.folder / "metrics.jsonl").write_text('{"step": 15}\n')
    steps = [run.recipe.training.steps for run in (quick, patient)]
    assert its._share() == pytest.approx(15 / sum(steps))
    its.problems[patient] = "It failed."
    assert its._share() == pytest.approx((15 + steps[1]) / sum(steps))


def test_printed_commands_are_accepted_and_leave_out_what_is_complete(tmp_path: Path):
    out = tmp_path / "with spaces"
    runs = runs_of(["table1/svhn-500/mean-teacher", "figure3/svhn-500/pi-model"], seeds=2, out=out)
    lines = printed_commands(runs, ["--data", "my data", "--device", "cpu"])
    assert len(set(lines)) == len(runs) == 4
    group: Any = typer.main.get_command(app)
    for line, run in zip(lines, runs, strict=True):
        program, command, *words = shlex.split(line)
        assert (program, command) == ("meanteacher", "run")
        given = group.commands[command].make_context(command, words).params
        assert (given["recipe"], given["seed"], given["out"]) == (run.name, run.seed, run.folder)
        assert given["start_or_resume"]
        assert (str(given["data"]), given["device"]) == ("my data", "cpu")
