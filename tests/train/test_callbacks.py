"""What is written down while a run goes."""

import json
from pathlib import Path
from typing import Any

import pytest

from meanteacher.core import InputError
from meanteacher.experiment import run
from meanteacher.train import Alarm, Callback, EarlyStop, Evaluation, LogEntry, MetricsFile
from support import recipe


def _entry(step: int) -> LogEntry:
    return LogEntry(
        step=step, costs={"c": 1.0}, weights={"c": 2.0}, learning_rate=0.1, images_per_second=9.0, seconds_per_step=1.0
    )


def test_metrics_are_one_object_per_line(tmp_path: Path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.on_log(_entry(10))
    metrics.on_evaluation(Evaluation(10, "test", 0.5, 0.4))
    metrics.on_alarm(Alarm(12, "collapse", "All is one."))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["log", "evaluation", "alarm"]
    assert [line["step"] for line in lines] == [10, 10, 12]
    assert lines[0]["weights"] == {"c": 2.0}


def test_resuming_forgets_what_was_written_beyond_the_checkpoint(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    for step in (10, 20, 30):
        metrics.on_log(_entry(step))
    with path.open("a") as file:
        file.write('{"event": "log", "st')  # killed while writing
    MetricsFile(path, from_step=20).on_log(_entry(30))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 30]


def test_an_alarm_of_the_step_after_the_checkpoint_is_written_once(tmp_path: Path):
    """Step 20 comes after a checkpoint of 20 steps, and names itself in its alarm before it is done."""
    path = tmp_path / "metrics.jsonl"
    killed, alarms = MetricsFile(path), [Alarm(step, "collapse", "All is one.") for step in (19, 20)]
    killed.on_alarm(alarms[0])
    killed.on_log(_entry(20))
    killed.on_alarm(alarms[1])
    MetricsFile(path, from_step=20).on_alarm(alarms[1])
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(entry["event"], entry["step"]) for entry in entries] == [("alarm", 19), ("log", 20), ("alarm", 20)]


def test_a_new_run_forgets_what_was_written_before(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    before = MetricsFile(path)
    for step in (0, 1, 2):
        before.on_evaluation(Evaluation(step, "test", 0.5, 0.4))
    MetricsFile(path)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0]


def test_resuming_keeps_only_lines_that_are_entries_of_a_step(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    odd = ["", "3", "[1]", "null", "{}", '{"step": "3"}', '{"step": true}', '{"step": 1.0}', "[" * 100_000, "\0"]
    path.write_text("\n".join([*odd, '{"step": 4}', '{"event": "alarm", "step": 5}', '{"step": 6}']))
    MetricsFile(path, from_step=5)
    assert path.read_text() == '{"step": 4}\n'


def _errors(out: Path, stop: EarlyStop, steps: int = 40) -> tuple[int, list[int]]:
    """Steps of a run, and those of its evaluations."""
    whole = recipe(steps=steps)
    outcome = run(whole, seed=0, out=out, data=whole.data.source.load(out), callbacks=[stop])
    assert outcome.complete
    assert outcome.record is not None
    assert outcome.record.steps == outcome.record.errors.last.step
    return outcome.record.steps, [point.step for point in outcome.record.curve]


def test_run_is_complete_when_its_error_is_low_enough_or_no_longer_falls(tmp_path: Path):
    assert _errors(tmp_path / "a", EarlyStop(error=1.0)) == (5, [5])
    steps, evaluated = _errors(tmp_path / "b", EarlyStop(patience=2))
    assert 15 <= steps < 40
    assert evaluated == list(range(5, steps + 1, 5))
    # A complete run: resuming it returns its record.
    whole = recipe(steps=40)
    again = run(whole, seed=0, out=tmp_path / "b", data=whole.data.source.load(tmp_path), resume=True)
    assert again.record is not None
    assert again.record.steps == steps
    assert _errors(tmp_path / "c", EarlyStop(patience=100), steps=20) == (20, [5, 10, 15, 20])


@pytest.mark.parametrize(
    ("errors", "patience", "satisfied"),
    [
        ([0.5, 0.4, 0.3], 1, [False, False, False]),
        ([0.5, 0.5, 0.3], 1, [False, True, False]),
        ([0.5, 0.6, 0.55, 0.4], 2, [False, False, True, False]),
    ],
)
def test_patience_counts_the_evaluations_since_the_lowest_error(
    errors: list[float], patience: int, satisfied: list[bool]
):
    stop, said = EarlyStop(patience=patience), []
    for step, error in enumerate(errors):
        stop.on_evaluation(Evaluation(step=step, part="validation", student=0.0, teacher=error))
        said.append(stop.is_satisfied())
    assert said == satisfied


@pytest.mark.parametrize(
    ("given", "satisfied"),
    [
        pytest.param({"error": 0.1}, [False, True, False, False, True], id="an error of at most this"),
        pytest.param({"error": 0.1, "patience": 2}, [False, True, False, True, True], id="either"),
        pytest.param({"error": 0.01, "patience": 2}, [False, False, False, True, False], id="patience alone"),
    ],
)
def test_early_stop_is_satisfied_by_the_last_error_or_by_patience(given: dict[str, Any], satisfied: list[bool]):
    stop = EarlyStop(**given)
    said = [stop.is_satisfied()]
    for step, error in enumerate([0.2, 0.1, 0.3, 0.15, 0.05]):
        stop.on_evaluation(Evaluation(step=step, part="validation", student=0.0, teacher=error))
        said.append(stop.is_satisfied())
    assert said == [False, *satisfied]


@pytest.mark.parametrize("given", [{}, {"patience": 0}])
def test_early_stop_without_a_condition_is_refused(given: dict[str, int]):
    with pytest.raises(InputError, match="Give an error, or a patience of at least 1"):
        EarlyStop(**given)


def test_a_callback_overrides_only_what_it_needs():
    class Alarms(Callback):
        def __init__(self) -> None:
            self.kinds: list[str] = []

        def on_alarm(self, alarm: Alarm) -> None:
            self.kinds.append(alarm.kind)

    alarms = Alarms()
    alarms.on_log(_entry(10))
    alarms.on_evaluation(Evaluation(10, "test", 0.5, 0.4))
    alarms.on_alarm(Alarm(12, "collapse", "All is one."))
    assert alarms.kinds == ["collapse"]
