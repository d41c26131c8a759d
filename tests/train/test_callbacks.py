"""What is written down while a run goes."""

import json
from pathlib import Path

from meanteacher.train import Alarm, Callback, Evaluation, LogEntry, MetricsFile


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
