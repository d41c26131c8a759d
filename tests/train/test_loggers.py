"""Loggers get every number of a run, and none of their failures ends it."""

import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import meanteacher
from meanteacher import api
from meanteacher.cli.app import app
from meanteacher.cli.run import _logger
from meanteacher.core import InputError
from meanteacher.experiment import run
from meanteacher.train import (
    Alarm,
    Evaluation,
    LogEntry,
    ScalarLogger,
    StopWhen,
    TensorBoardLogger,
    WandbLogger,
    loggers,
)
from support import recipe

ENTRY = LogEntry(
    step=10,
    costs={"classification": 0.5, "consistency": 0.25},
    weights={"consistency": 2.0},
    learning_rate=0.1,
    images_per_second=9.0,
    seconds_per_step=1.0,
)
EVALUATION = Evaluation(10, "test", 0.5, 0.25)
ALARM = Alarm(12, "collapse", "All is one.")
NUMBERS = {
    "cost/classification": 0.5,
    "cost/consistency": 0.25,
    "weight/consistency": 2.0,
    "learning rate": 0.1,
    "images per second": 9.0,
    "error/test/student": 0.5,
    "error/test/teacher": 0.25,
}


def tell(logger: ScalarLogger) -> None:
    logger.on_log(ENTRY)
    logger.on_evaluation(EVALUATION)
    logger.on_alarm(ALARM)


def events(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], list[str]]:
    """Of event files, as TensorBoard reads them: name -> (step, value), and the names of texts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reader
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder)).Reload()
    tags = reader.Tags()
    scalars = {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in tags["scalars"]}
    return scalars, tags["tensors"]


def test_tensorboard_reads_back_every_number_and_alarm(tmp_path: Path):
    logger = TensorBoardLogger(tmp_path)
    tell(logger)
    scalars, texts = events(tmp_path)  # before it is closed: what was sent is on the disk
    assert scalars == {name: [(10, pytest.approx(value))] for name, value in NUMBERS.items()}
    assert texts == ["alarm/collapse/text_summary"]


def test_a_resumed_run_hides_what_was_written_after_its_checkpoint(tmp_path: Path):
    for steps in ((10, 20, 30), (20, 30)):
        with TensorBoardLogger(tmp_path) as logger:
            for step in steps:
                logger.on_evaluation(Evaluation(step, "test", 0.5, 0.25))
    assert [step for step, _ in events(tmp_path)[0]["error/test/teacher"]] == [10, 20, 30]


def test_run_logs_to_tensorboard_by_an_option(tmp_path: Path):
    words = ["run", "moons/mean-teacher", "--set", "steps=20", "--set", "evaluate_every=10"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--log", "tensorboard"])
    assert done.exit_code == 0, done.output
    scalars, _ = events(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in scalars["error/test/teacher"]] == [10, 20]
    assert [step for step, _ in scalars["cost/consistency"]] == [10, 20]


class Failing(ScalarLogger):
    """A logger whose disk is full."""

    def __init__(self) -> None:
        self.tried = 0

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        self.tried += 1
        raise OSError("No space left on device")

    def send_alarm(self, alarm: Alarm) -> None:
        raise OSError("No space left on device")


def test_a_logger_that_fails_is_switched_off_with_one_warning_and_the_run_goes_on(tmp_path: Path):
    logger, short = Failing(), recipe()
    data = short.data.source.load(tmp_path)
    with pytest.warns(UserWarning, match="switched off.*No space left"):
        record = api.run(short, out=tmp_path / "run", data=data, callbacks=[logger])
    assert record.steps == short.training.steps
    with logger:  # a second warning would be an error here
        logger.on_alarm(ALARM)
    assert logger.tried == 1


def test_the_warning_of_a_logger_names_the_line_that_told_it():
    with pytest.warns(UserWarning, match="switched off") as warned:
        Failing().on_alarm(ALARM)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("kind", [TensorBoardLogger, WandbLogger])
def test_a_logger_that_was_told_nothing_writes_nothing(
    kind: type[ScalarLogger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    monkeypatch.chdir(tmp_path)
    with kind("log"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_that_cannot_write_is_switched_off(tmp_path: Path):
    (tmp_path / "log").write_text("a file where the folder should be")
    logger = TensorBoardLogger(tmp_path / "log")
    with pytest.warns(UserWarning, match="TensorBoardLogger failed"):
        logger.on_evaluation(EVALUATION)
    tell(logger)  # a second warning would be an error here


@pytest.mark.parametrize(("kind", "library"), [(TensorBoardLogger, "tensorboard"), (WandbLogger, "wandb")])
def test_a_missing_library_is_said_before_the_run(
    kind: type[ScalarLogger], library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"pip install 'meanteacher\[{library}\]'"):
        kind("x")


class PretendWandb:
    """What wandb's functions were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def init(self, **options: Any) -> SimpleNamespace:
        self.calls.append(("init", options))
        return SimpleNamespace(
            define_metric=lambda name, step_metric: self.calls.append(("by", (name, step_metric))),
            log=lambda numbers: self.calls.append(("log", numbers)),
            alert=lambda title, text: self.calls.append(("alert", (title, text))),
            finish=lambda: self.calls.append(("finish", None)),
        )


def test_wandb_gets_every_number_under_its_step_and_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/mine").mkdir(parents=True)
    wandb = PretendWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    (example,) = re.findall("Example: `(.+)`", WandbLogger.__doc__ or "")
    names: dict[str, Any] = {"mt": meanteacher}
    exec(example, names)
    with names["logger"] as logger:
        assert wandb.calls == []  # other processes of the run open nothing
        tell(logger)
    words = [word for word, _ in wandb.calls]
    assert words == ["init", "by", "log", "log", "alert", "finish"]
    identity = Path("runs/mine/wandb-id.txt").read_text()
    assert wandb.calls[0][1] == {"project": "digits", "mode": "offline", "id": identity, "resume": "allow"}
    assert wandb.calls[1][1] == ("*", "step")
    assert wandb.calls[2][1] | wandb.calls[3][1] == {"step": 10, **NUMBERS}
    assert wandb.calls[4][1] == ("collapse at step 12", "All is one.")


def test_run_names_itself_to_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    made = _logger("wandb", "moons/vat", 3, tmp_path)
    assert isinstance(made, WandbLogger)
    assert made.options == {"project": "meanteacher", "name": "moons/vat, seed 3", "dir": tmp_path}


def test_resumed_run_continues_its_own_wandb_run_with_the_fields_of_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wandb = PretendWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    whole = recipe(steps=20)
    data = whole.data.source.load(tmp_path)

    def run_on(out: str, *, resume: bool, stops: bool) -> None:
        with WandbLogger(folder=tmp_path / out) as logger:
            stop = StopWhen(lambda: stops)
            run(whole, seed=3, out=tmp_path / out, data=data, resume=resume, callbacks=[logger, stop])

    run_on("one", resume=False, stops=True)
    run_on("one", resume=True, stops=False)
    run_on("other", resume=False, stops=False)
    first, second, other = [given for word, given in wandb.calls if word == "init"]
    assert first["id"] == second["id"] != other["id"]
    assert {given["resume"] for given in (first, second, other)} == {"allow"}
    for given in (first, second, other):
        assert given["config"]["seed"] == 3
        assert given["config"]["recipe"]["training"]["method"]["weight"]["value"] == 2.0
        assert given["config"]["recipe"]["training"]["steps"] == 20


def test_wandb_writes_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="an extra that the tests do without", exc_type=ImportError)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with WandbLogger("digits", mode="offline", dir=tmp_path) as logger:
        tell(logger)
    (file,) = tmp_path.rglob("run-*.wandb")
    written = file.read_bytes()
    assert b"error/test/teacher" in written
    assert b"All is one." in written
