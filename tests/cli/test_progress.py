"""What a person sees while a run goes."""

import io
import time

import pytest
from rich.console import Console

from meanteacher.cli.console import progress_bar
from meanteacher.cli.progress import RunProgress
from meanteacher.train import Alarm, Evaluation, LogEntry


def _entry(step: int) -> LogEntry:
    return LogEntry(
        step=step,
        costs={"classification": 1.5, "consistency": 0.25},
        weights={"consistency": 12.5},
        learning_rate=0.1,
        images_per_second=1234.0,
        seconds_per_step=0.5,
    )


def _shown(*, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """A resumed run: two entries at steps 100 and 110, a minute apart."""
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), force_terminal=terminal, width=250)
    with RunProgress(console, "digits/[x]", steps=120) as progress:
        progress.on_log(_entry(100))
        progress.on_evaluation(Evaluation(100, "test", 0.5, 0.25))
        progress.on_log(_entry(110))
        progress.on_alarm(Alarm(110, "collapse", "All [is] one."))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "plain"])
def test_progress_shows_costs_weight_errors_rate_and_alarms(terminal: bool, monkeypatch: pytest.MonkeyPatch):
    shown = _shown(terminal=terminal, monkeypatch=monkeypatch)
    for words in (
        "digits/[x]",
        "classification 1.5",
        "consistency 0.25",
        "weight 12.5",
        "1234 img/s",
        "test error: student 50.0 %, teacher 25.0 %",
        "All [is] one.",
    ):
        assert words in shown, words


def test_time_left_of_a_resumed_run_counts_from_where_it_resumed(monkeypatch: pytest.MonkeyPatch):
    lines = _shown(terminal=False, monkeypatch=monkeypatch).splitlines()
    assert "step 100/120" in lines[0]
    assert "0:00:10 left" in lines[0]  # 20 steps of half a second
    assert "step 110/120" in lines[2]
    minutes = int(lines[2].split("0:0")[1][0])
    assert minutes >= 2  # ten steps took minutes, ten are left


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "plain"])
def test_a_bar_shows_each_task_until_it_is_done_and_nothing_without_a_terminal(terminal: bool):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with progress_bar(console) as show:
        show("Reading [x]", 1, 4)
        show("Reading [x]", 4, 4)
        console.print("a line")
        show("Predicting", 2, 7)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    if not terminal:
        assert shown == "a line\n"
        return
    before, after = shown.split("a line")
    assert all(words in before for words in ("Reading [x]", "4/4"))
    assert all(words in after for words in ("Predicting", "2/7"))
    assert "Reading" not in after
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 2, "the cursor is shown again"
