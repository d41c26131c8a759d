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
    """Small scripts instead of runs. Each knows its rank and attempt, and leaves a file."""
    head = (
        "import os, pathlib\n"
        "rank, attempt = (int(os.environ[name]) for name in ('RANK', 'TORCHELASTIC_RESTART_COUNT'))\n"
        f"pathlib.Path({str(folder)!r}, f'{{attempt}}-{{rank}}').touch()\n"
    )
    monkeypatch.setattr(launch, "_command", lambda: ("-c", head + script))
    monkeypatch.delenv("RANK", raising=False)


def test_one_process_or_one_that_was_started_runs_the_command_itself(monkeypatch: pytest.MonkeyPatch):
    assert not launch.start_processes(1)
    monkeypatch.setenv("RANK", "0")
    assert not launch.start_processes(2)


def test_all_are_started_once_if_all_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    started(monkeypatch, tmp_path, "pass")
    assert launch.start_processes(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "0-2"]


def test_a_killed_process_is_started_again_with_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    started(monkeypatch, tmp_path, "import os; attempt or rank != 1 or os.kill(os.getpid(), 9)")
    assert launch.start_processes(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]


@pytest.mark.parametrize(("code", "attempts"), [(2, 1), (3, 1), (75, 1), (1, 4)])
def test_the_exit_code_is_that_of_the_command_and_errors_of_the_user_are_not_tried_again(
    code: int, attempts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    started(monkeypatch, tmp_path, f"raise SystemExit({code} if rank == 0 else 0)")
    with pytest.raises(typer.Exit) as ended:
        launch.start_processes(2)
    assert ended.value.exit_code == code
    assert len(list(tmp_path.iterdir())) == 2 * attempts


def test_a_signal_is_passed_on_to_all_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    ready = [tmp_path / f"ready-{rank}" for rank in range(2)]
    script = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"pathlib.Path({str(tmp_path)!r}, f'ready-{{rank}}').touch()\n"
        "time.sleep(600)"
    )
    started(monkeypatch, tmp_path, script)

    def interrupt() -> None:
        while not all(path.exists() for path in ready):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(typer.Exit) as ended:
        launch.start_processes(2)
    assert ended.value.exit_code == 75


def test_an_error_of_one_rank_is_shown_once_and_those_of_all_are_told_by_rank_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    started(monkeypatch, tmp_path, "import sys; print('rank', rank, file=sys.stderr); sys.exit(2 * (rank != 1))")
    with pytest.raises(typer.Exit):
        launch.start_processes(3)
    assert "rank 2" not in capfd.readouterr().err  # rank 0 has ended with the same error
    started(monkeypatch, tmp_path, "import sys; print('rank', rank, file=sys.stderr); sys.exit(2 * (rank == 1))")
    with pytest.raises(typer.Exit):
        launch.start_processes(3)
    assert capfd.readouterr().err.count("rank 1") == 1


def test_the_processes_meet_in_a_folder_that_is_theirs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = tmp_path / "found"
    script = (
        "path = pathlib.Path(os.environ['MEANTEACHER_STORE'])\n"
        f"pathlib.Path({str(found)!r}).write_text(f'{{path.parent.stat().st_mode:o}} {{path}}')"
    )
    started(monkeypatch, tmp_path, script)
    launch.start_processes(2)
    mode, store = found.read_text().split()
    assert mode == "40700"
    assert not Path(store).parent.exists()
