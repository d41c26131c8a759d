"""`meanteacher table` and `meanteacher figure` as a person types them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import meanteacher as mt
from meanteacher.cli import progress as progress_module
from meanteacher.cli.app import app
from meanteacher.paper import runs
from meanteacher.paper.reproduce import Reproduced
from meanteacher.paper.runs import recipe_names, runs_of
from record_support import write_record
from support import PATIENCE

CELL = "svhn-500/mean-teacher"
NAME = f"table1/{CELL}"


def _invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def _refused(*words: object) -> str:
    failed = _invoke(*words)
    assert failed.exit_code == 2, failed.output
    assert failed.exception is None or isinstance(failed.exception, SystemExit)
    return " ".join(failed.output.split())


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["table", "9"], "It has: 1, 2, 3, 4, 5"),
        (["figure", "4"], "4a, 4b"),
        (["table", "1", "--cell", "svhn-501"], "Did you mean svhn-500"),
        (["table", "1", "--cel", "svhn-500"], "--cell"),
        (["table", "1", "--laptop", "--cell", "svhn-1000"], "no cell 'svhn-1000'"),
        (["table", "1", "--laptop", "--preset", "as-coded"], "--laptop and --preset as-coded do not go together"),
        (["table", "3", "--laptop"], "no laptop version of table 3; there is one of: 1, 2"),
        (["table", "cifar10-250", "--laptop"], "no laptop version of table cifar10-250"),
        (["figure", "2", "--laptop"], "It has: 3, 4a"),
        (["table", "1", "--seeds", "0"], "--seeds"),
        (["table", "1", "--jobs", "0"], "--jobs"),
        (["table", "1", "--preset", "as-writen"], "as-coded"),
        (["table", "1", "--dry-run", "--show"], "--dry-run and --show do not go together"),
        (["figure", "3", "--print-commands", "--dry-run"], "do not go together"),
    ],
)
def test_mistake_gets_one_sentence_and_nothing_is_written(words: list[str], answer: str, tmp_path: Path):
    assert answer in _refused(*words, "--out", tmp_path / "runs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["table", "figure"])
def test_help_says_what_is_run_and_does_not_import_torch(command: str):
    script = (
        "import sys\nfrom meanteacher.cli.app import app\n"
        f"try: app(['{command}', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(77 if 'torch' in sys.modules else 0)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert shown.returncode == 0
    for option in ("--cell", "--seeds", "--laptop", "--jobs", "--dry-run", "--print-commands", "--show"):
        assert option in shown.stdout


def test_dry_run_says_what_is_missing_and_how_long_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of three runs one is complete and one is done by half: one and a half of 12 days each are left, 18 days."""
    complete, half, _ = runs_of([NAME], seeds=3, out=tmp_path)
    write_record(complete, 0.05)
    half.folder.mkdir(parents=True)
    (half.folder / "metrics.jsonl").write_text(f'{{"step": {half.recipe.training.steps // 2}}}\n')
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(runs, "estimated_seconds", lambda runs, device: {run.name: 12 * 86_400 for run in runs})
    shown = _invoke("table", "1", "--cell", CELL, "--seeds", 3, "--dry-run", "--out", tmp_path)
    assert shown.exit_code == 0, shown.output
    (line,) = [line.split() for line in shown.output.splitlines() if line.startswith(NAME)]
    assert line == [NAME, "3", "1", f"{half.recipe.training.steps:,}", "12", "days"]
    assert "2 runs to train" in shown.output
    assert "about 18 days of training" in shown.output
    assert sorted(tmp_path.rglob("*")) == before


def test_dry_run_of_a_complete_table_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for run in runs_of([NAME], seeds=1, out=tmp_path):
        write_record(run, 0.05)
    monkeypatch.setattr(runs, "_operations_per_second", lambda *_: pytest.fail("the speed was measured"))
    shown = _invoke("table", "1", "--cell", CELL, "--seeds", 1, "--dry-run", "--out", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "0 runs to train" in shown.output


def test_printed_commands_are_lines_of_commands_and_nothing_else(tmp_path: Path):
    out = tmp_path / "my runs"
    words = ["table", "1", "--cell", CELL, "--seeds", 3, "--laptop", "--out", out, "--print-commands"]
    first, *_ = runs_of([f"laptop/{NAME}"], seeds=3, out=out)
    write_record(first, 0.05)
    shown = _invoke(*words, "--data", "my data", "--device", "cpu")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert len(lines) == 2
    group: Any = typer.main.get_command(app)
    for line, seed in zip(lines, (1, 2), strict=True):
        program, command, *rest = shlex.split(line)
        given = group.commands[command].make_context(command, rest).params
        assert (program, command, given["recipe"], given["seed"]) == ("meanteacher", "run", f"laptop/{NAME}", seed)
        assert (str(given["data"]), given["device"]) == ("my data", "cpu")
        assert given["start_or_resume"]


def test_the_commands_of_all_runs_say_how_to_compute(tmp_path: Path):
    words = ["table", "1", "--cell", CELL, "--seeds", 2, "--laptop", "--out", tmp_path, "--print-commands"]
    how = ["--precision", "float32", "--micro-batch", 25, "--nproc", 2, "--log", "tensorboard"]
    shown = _invoke(*words, *how, "--set", "steps=20", "--set", "batch.size=50")
    assert shown.exit_code == 0, shown.output
    group: Any = typer.main.get_command(app)
    for line in shown.stdout.splitlines():
        given = group.commands["run"].make_context("run", shlex.split(line)[2:]).params
        assert (given["precision"], given["micro_batch"], given["nproc"], given["log"]) == (
            "float32",
            25,
            2,
            "tensorboard",
        )
        assert given["settings"] == ["steps=20", "batch.size=50"]
        assert "steps=20" in str(given["out"])  # it is another run than the recipe's own
    assert len(shown.stdout.splitlines()) == 2


def test_the_job_array_of_the_page_runs_every_printed_command_once(tmp_path: Path):
    """With a scheduler that starts the jobs of an array one after the other, and a program that notes its words."""
    page = (Path(__file__).parents[2] / "docs" / "researchers.md").read_text(encoding="utf-8")
    (array,) = re.findall(r"^    (sbatch .*)$", page, flags=re.M)
    words = ["table", "1", "--cell", CELL, "--seeds", 3, "--out", tmp_path / "my runs", "--print-commands"]
    (tmp_path / "runs.txt").write_text(_invoke(*words).stdout)
    scheduler = """for word in "$@"; do case "$word" in --array=1-*) last=${word#--array=1-};; esac; job=$word; done
for SLURM_ARRAY_TASK_ID in $(seq "$last"); do export SLURM_ARRAY_TASK_ID; bash -c "$job"; done"""
    for name, script in {"sbatch": scheduler, "meanteacher": 'printf "%s\\n" "$@" >> started.txt'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", array], cwd=tmp_path, check=True, timeout=PATIENCE, env=environment)
    printed = [shlex.split(line)[1:] for line in (tmp_path / "runs.txt").read_text().splitlines()]
    assert (tmp_path / "started.txt").read_text().splitlines() == [word for line in printed for word in line]
    assert len(printed) == 3


def test_show_with_nothing_there_writes_the_papers_numbers(tmp_path: Path):
    shown = _invoke("table", "1", "--show", "--seeds", 1, "--out", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "4.35 ± 0.50" in shown.output
    assert (tmp_path / "table-1.md").exists()
    assert not list(tmp_path.rglob("record.json"))


def test_names_of_the_files_tell_cell_and_version(tmp_path: Path):
    shown = _invoke("figure", "4d", "--cell", "decay-0.999", "--laptop", "--show", "--out", tmp_path)
    assert shown.exit_code == 0, shown.output
    stem = "figure-4d-laptop-decay-0.999"
    assert {path.name for path in tmp_path.iterdir()} == {f"{stem}.svg", f"{stem}.png"}
    assert all(f"{stem}.{ending}" in shown.output for ending in ("svg", "png"))


def test_command_writes_and_prints_what_the_function_returns(tmp_path: Path):
    for out in ("command", "function"):
        for run in runs_of(recipe_names(runs.find_table("1"), cell="svhn-500")[:3], seeds=2, out=tmp_path / out):
            write_record(run, 0.1 + 0.01 * run.seed)
    shown = _invoke("table", "1", "--cell", "svhn-500", "--seeds", 2, "--show", "--out", tmp_path / "command")
    made = mt.table("1", cell="svhn-500", seeds=2, out=tmp_path / "function", train=False)
    for line in made.text.splitlines():
        assert line.strip() in shown.output
    for path in made.files:
        assert (tmp_path / "command" / path.name).read_bytes() == path.read_bytes()


def test_failed_run_is_shown_and_the_exit_code_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from meanteacher.paper import reproduce as package

    result = Reproduced("the table", (tmp_path / "table-1.md",), ("It was ended by signal 9.",), 1)
    monkeypatch.setattr(package, "table", lambda *_, **__: result)
    shown = _invoke("table", "1", "--out", tmp_path)
    assert shown.exit_code == 1
    assert "the table" in shown.output
    assert "It was ended by signal 9." in shown.output
    assert "table-1.md" in shown.output


def test_interrupted_table_says_the_same_command_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from meanteacher.paper import reproduce as package

    def interrupted(*_: object, **__: object) -> None:
        raise mt.Interrupted("3 runs are not complete")

    monkeypatch.setattr(package, "table", interrupted)
    words = ["table", "1", "--laptop", "--out", str(tmp_path)]
    shown = _invoke(*words)
    assert shown.exit_code == 75
    assert shlex.join(["meanteacher", *words]) in [line.strip() for line in shown.output.splitlines()]


def test_progress_has_one_share_of_all_runs_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A fifth in the first 100 seconds, from 0.1 to 0.3: 350 seconds for the other 0.7."""
    now = 0.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    console = Console(record=True, width=200, force_terminal=False)
    with progress_module.RunsProgress(console, 4, lambda: False) as progress:
        progress.on_progress(f"{NAME}, seed 0", 10, 100)
        now = 100.0
        progress.on_progress(f"{NAME}, seed 1, {NAME}, seed 2", 30, 100)
        progress.on_message(f"Complete: {NAME}, seed 0")
    shown = console.export_text()
    assert "30.0 % of 4 runs" in shown
    assert "5 min 50 s left" in shown
    assert re.search(rf"{NAME}, seed 1.*{NAME}, seed 2", shown)
    assert f"Complete: {NAME}, seed 0" in shown
