"""Callbacks follow a run: they can show or record what happens, but not change it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meanteacher.files import write_atomic
from meanteacher.train.checkpoint import Evaluation
from meanteacher.train.vitals import Alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """Means over the steps since the last entry."""

    step: int
    """Steps done."""
    costs: dict[str, float]
    weights: dict[str, float]
    learning_rate: float
    images_per_second: float
    seconds_per_step: float
    """Without the evaluations."""


class Callback:
    """Follows a run. Every method does nothing: override those that you need."""

    def on_log(self, entry: LogEntry) -> None:
        """Every few steps: mean costs, their weights, the learning rate and the speed."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """After each evaluation: the errors of student and teacher."""

    def on_alarm(self, alarm: Alarm) -> None:
        """When the vitals find that something is wrong; once per kind and run."""


class Callbacks(Callback):
    """Tells several callbacks, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def on_log(self, entry: LogEntry) -> None:
        for callback in self._callbacks:
            callback.on_log(entry)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        for callback in self._callbacks:
            callback.on_evaluation(evaluation)

    def on_alarm(self, alarm: Alarm) -> None:
        for callback in self._callbacks:
            callback.on_alarm(alarm)


class MetricsFile(Callback):
    """Writes metrics.jsonl: one JSON object per line, each with its event and step."""

    def __init__(self, path: Path, *, from_step: int = 0) -> None:
        self.path = path
        self._drop_after(from_step)

    def on_log(self, entry: LogEntry) -> None:
        self._append("log", entry)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._append("evaluation", evaluation)

    def on_alarm(self, alarm: Alarm) -> None:
        self._append("alarm", alarm)

    def _append(self, event: str, entry: LogEntry | Evaluation | Alarm) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **asdict(entry)}) + "\n")

    def _drop_after(self, step: int) -> None:
        """Remove what a killed run wrote after its last checkpoint: the resumed run writes it again."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that was being written when the run was killed
            if entry["step"] <= step:
                kept.append(line + "\n")
        write_atomic(self.path, "".join(kept))
