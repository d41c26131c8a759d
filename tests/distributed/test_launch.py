"""`--nproc` starts the processes, tells them to stop, and starts them again where that helps."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import typer

from meanteacher.cli import launch

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
    # torch leaves the files open to which it sends what its processes print.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def started(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Small scripts instead of runs. Each knows its rank and attempt, leaves a file, and waits for those of all."""
    names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    head = (
        "import os, pathlib, signal, sys, time\n"
        f"rank, size, attempt = (int(os.environ[name]) for name in {names})\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "(folder / f'{attempt}-{rank}').touch()\n"
        "while len(list(folder.glob(f'{attempt}-*'))) < size: time.sleep(0.01)\n"
    )
    monkeypatch.setattr(launch, "_command", lambda: ("-c", head + script))
    monkeypatch.delenv("RANK", raising=False)


def exit_code(n: int) -> int:
    try:
        assert launch.start_processes(n)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def test_one_process_or_one_that_was_started_runs_the_command_itself(monkeypatch: pytest.MonkeyPatch):
    assert not launch.start_processes(1)
    monkeypatch.setenv("RANK", "0")
    assert not launch.start_processes(2)


KILLED = "attempt or rank != 1 or os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("script", "code", "attempts"),
    [
        ("pass", 0, 1),
        (KILLED, 0, 2),
        *((f"raise SystemExit({code} if rank == 0 else 0)", code, n) for code, n in ((2, 1), (3, 1), (75, 1), (1, 4))),
    ],
    ids=["all is well", "killed", "2", "3", "75", "1"],
)
def test_all_are_started_again_after_a_failure_but_not_after_an_error_of_the_user(
    script: str, code: int, attempts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The exit code is that of the command."""
    started(monkeypatch, tmp_path, script)
    assert exit_code(3) == code
    expected = {f"{attempt}-{rank}" for attempt in range(attempts) for rank in range(3)}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_a_signal_is_passed_on_to_all_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    ready = [tmp_path / f"ready-{rank}" for rank in range(2)]
    script = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); (folder / f'ready-{rank}').touch(); "
    started(monkeypatch, tmp_path, script + "time.sleep(600)")

    def interrupt() -> None:
        while not all(path.exists() for path in ready):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    assert exit_code(2) == 75


@pytest.mark.parametrize(("ends", "rank", "shown"), [("rank != 1", 2, 0), ("rank == 1", 1, 1)])
def test_an_error_of_one_rank_is_shown_once_and_those_of_all_are_told_by_rank_0(
    ends: str, rank: int, shown: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    script = f"print('rank', rank, file=sys.stderr, flush=True); time.sleep(rank / 2); sys.exit(2 * ({ends}))"
    started(monkeypatch, tmp_path, script)
    assert exit_code(3) == 2
    assert capfd.readouterr().err.count(f"rank {rank}") == shown


def test_the_processes_meet_in_a_folder_that_is_theirs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = "store = pathlib.Path(os.environ['MEANTEACHER_STORE']).parent; "
    started(monkeypatch, tmp_path, script + "(folder / 'found').write_text(f'{store.stat().st_mode:o} {store}')")
    assert exit_code(2) == 0
    mode, store = (tmp_path / "found").read_text().split()
    assert mode == "40700"
    assert not Path(store).exists()
