"""Many runs under one bar, interrupted."""

import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meanteacher import experiment
from meanteacher.cli.app import app


def test_interrupted_demo_saves_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = experiment.run

    def interrupted(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return run(*arguments, **options)

    monkeypatch.setattr(experiment, "run", interrupted)
    out = tmp_path / "a demo"
    stopped = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["demo", "--out", str(out), "--draws", "3"])
    assert stopped.exit_code == 75, stopped.output
    assert f"nothing is lost. Resume with:\n  meanteacher demo --out '{out}' --draws 3" in stopped.output
    (saved,) = out.rglob("step_*")
    assert saved.parts[-5:] == ("moons", "supervised", "seed-0", "checkpoints", "step_00000001")
