"""`make demo TORCH=cpu`: what is asked of pip, and that a missing index stops nothing."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"


def _make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-C", str(ROOT), *words], check=False, capture_output=True, text=True, timeout=60)


def _pip(folder: Path, *, index: bool) -> Path:
    """A virtual environment whose python writes down its arguments; without `index` it cannot reach another index."""
    calls = folder / "calls"
    python = folder / "bin" / "python"
    python.parent.mkdir()
    refusal = "" if index else 'case "$*" in *index-url*) exit 1;; esac\n'
    python.write_text(f'#!/bin/sh\necho "$*" >> "{calls}"\n{refusal}')
    python.chmod(0o755)
    (folder / "pyvenv.cfg").touch()
    return calls


def test_cpu_build_comes_from_pytorchs_index_only_when_asked_for(tmp_path: Path):
    asked = _make("-n", "demo", "TORCH=cpu", f"VENV={tmp_path}").stdout.splitlines()
    of_torch, of_ours = (next(i for i, line in enumerate(asked) if words in line) for words in (INDEX, "-e ."))
    assert of_torch < of_ours
    assert INDEX not in _make("-n", "demo", f"VENV={tmp_path}").stdout


@pytest.mark.parametrize("index", [True, False])
def test_install_goes_on_without_the_index_and_asks_again_next_time(tmp_path: Path, index: bool):
    calls = _pip(tmp_path, index=index)
    installed = _make(f"{tmp_path}/core", "TORCH=cpu", f"VENV={tmp_path}")
    assert installed.returncode == 0, installed.stderr
    assert [INDEX in call for call in calls.read_text().splitlines()] == [True, False]
    assert all("-c constraints.txt" in call for call in calls.read_text().splitlines())
    assert ("going on with the torch that pip finds" in installed.stderr) is not index
    again = _make(f"{tmp_path}/core", "TORCH=cpu", f"VENV={tmp_path}")
    assert again.returncode == 0, again.stderr
    assert len(calls.read_text().splitlines()) == (2 if index else 3)


def test_readme_names_the_option_that_the_makefile_uses():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo TORCH=cpu" in readme
    assert f"--extra-index-url {INDEX}" in readme
