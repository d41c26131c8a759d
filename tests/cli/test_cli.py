"""The commands as a person types them."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from forking import run_script, start_script
from meanteacher import api, recipes
from meanteacher.cli import app as app_module
from meanteacher.cli.app import app
from meanteacher.report import load_records, paired_difference
from support import PATIENCE

MAIN = "from meanteacher.cli import main; main()"
SHORT = ["--set", "steps=12", "--set", "evaluate_every=6"]


def _meanteacher(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_script(MAIN, *arguments, cwd=cwd, COLUMNS="200")


def test_help_groups_the_commands_by_user():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    panels = dict(zip(*[iter(re.split(r"╭─ ([\w ]+) ─+╮", shown)[1:])] * 2, strict=True))
    commands = {panel: re.findall(r"^│ (\w+) ", rows, flags=re.MULTILINE) for panel, rows in panels.items()}
    assert commands["Your photos"] == ["fit", "check", "predict", "evaluate", "label", "export", "report"]
    assert commands["The paper"] == ["run", "list", "show", "table", "figure", "demo"]
    assert commands["Tools"] == ["pack"]


GROUP: Any = typer.main.get_command(app)


@pytest.mark.parametrize("command", ["", *GROUP.commands])
def test_help_shows_no_type_behind_a_switch(command: str):
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "100"}).output
    assert "--help" in shown
    assert "bool" not in shown


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["demo", "--help"], ["list", "--help"], []])
def test_help_is_useful_and_does_not_import_torch(arguments: list[str]):
    script = (
        "import sys\nfrom meanteacher.cli.app import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        "sys.exit(77 if 'torch' in sys.modules else 0)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert shown.returncode == 0
    assert "Usage" in shown.stdout
    assert "--help" in shown.stdout


def test_labelling_begins_without_waiting_for_torch():
    script = (
        "import sys\nfrom meanteacher.cli.app import app\n"
        "try: app(['label', 'no photos', '--run', 'no fit'])\n"
        "except SystemExit: pass\n"
        "sys.exit(77 if 'torch' in sys.modules else 0 if 'meanteacher.photos.label.server' in sys.modules else 78)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=PATIENCE).returncode == 0


def test_run_writes_everything_about_itself(tmp_path: Path):
    done = _meanteacher("run", "digits/mean-teacher", "--seed", "3", "--out", str(tmp_path / "r"), *SHORT)
    assert done.returncode == 0, done.stderr
    assert "Complete. Test error after 12 steps: student" in done.stdout
    assert "digits/mean-teacher+steps=12,evaluate_every=6  step 6/12  test error: student" in done.stdout
    record = json.loads((tmp_path / "r" / "record.json").read_text())
    assert (record["seed"], record["steps"], record["method"]) == (3, 12, "mean-teacher")
    assert record["environment"]["threads"] >= 1
    assert (record["environment"]["compiled"], record["environment"]["precision"]) == (False, "float32")
    assert [point["step"] for point in record["curve"]] == [6, 12]
    events = [json.loads(line)["event"] for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert events.count("evaluation") == 2
    assert "log" in events


def test_default_folder_is_named_after_recipe_and_seed(tmp_path: Path):
    done = _meanteacher("run", "digits/supervised", "--seed", "7", *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    changed = "supervised+steps=12,evaluate_every=6"
    record = json.loads((tmp_path / "runs" / "digits" / changed / "seed-7" / "record.json").read_text())
    assert record["recipe"]["name"] == f"digits/{changed}"
    assert record["recipe"]["claim"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_finishes_the_step_saves_and_says_how_to_resume(tmp_path: Path, number: signal.Signals):
    # On a slow machine so many steps would be worth compiling for.
    arguments = ["run", "digits/supervised", "--out", str(tmp_path / "r"), "--set", "steps=100000", "--no-compile"]
    process, ended = start_script(MAIN, *arguments, COLUMNS="200")
    metrics = tmp_path / "r" / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process, number)
    done = ended()
    assert done.returncode == 75, done.stderr
    assert "nothing is lost. Resume with:" in done.stdout
    (command,) = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("meanteacher run")]
    assert command == shlex.join(["meanteacher", *arguments, "--resume"])
    saved = (tmp_path / "r" / "checkpoints" / "last").read_text().strip()
    assert (tmp_path / "r" / "checkpoints" / saved / "manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "digits/mean-techer"], "Did you mean digits/mean-teacher"),
        (["run", "digits/supervised", "--set", "stepz=3"], "Did you mean 'steps'?"),
        (["run", "digits/supervised", "--set", "optim.learning_rat=3"], "Did you mean 'learning_rate'?"),
        (["run", "digits/supervised", "--set", "steps"], "--set takes field=value"),
        (["run", "digits/supervised", "--set", "steps=many"], "steps is a whole number, such as 600; got 'many'"),
        (["run", "digits/supervised", "--sed", "3"], "--seed"),
        (["run", "digits/supervised", "--seed", "0", "--seed", "1"], "--seed is given 2 times"),
        (["fit", "no photos", "--minutes", "0.3"], "(--minutes) must be at least 1, got 0.3"),
        (["fit", "no photos", "--minutes", "nan"], "(--minutes) must be at least 1, got nan"),
        (["run", "digits/supervised", "--precision", "float8"], "'float32', 'bfloat16', 'float16'"),
        (["rum", "digits/supervised"], "run"),
        (["list", "nonsense"], "No recipe has 'nonsense' in its name"),
        (["run", "digits/supervised", "--out", "here", "--resume"], "holds no run to resume"),
        (["run", "digits/supervised", "--set", "data.n_labelled=41"], "Take a multiple of 10, for instance 40"),
        (["run", "digits/supervised", "--set", "batch.labelled=50"], "do not fit a batch of size=40"),
    ],
)
def test_mistake_gets_one_sentence_that_says_what_to_do(arguments: list[str], words: str, tmp_path: Path):
    failed = _meanteacher(*arguments, cwd=tmp_path)
    assert failed.returncode == 2
    assert words in " ".join(failed.stderr.split())
    assert "Traceback" not in failed.stderr
    assert not list(tmp_path.iterdir())


def _options() -> list[tuple[str, list[str]]]:
    """Every option of every command that takes one value, given twice."""
    twice = []
    for name, command in GROUP.commands.items():
        for option in command.params:
            if option.param_type_name == "option" and not option.multiple and option.name != "help":
                if not option.is_flag:
                    twice.append((name, [option.opts[0], "1", option.opts[0], "2"]))
                elif option.secondary_opts:
                    twice.append((name, [option.opts[0], option.secondary_opts[0]]))
    return twice


def test_option_given_twice_is_refused_in_every_command():
    twice = _options()
    assert {"--seed", "--minutes", "--out", "--labels", "--flip"} <= {given[0] for _, given in twice}
    for command, given in twice:
        failed = CliRunner().invoke(app, [command, "a", "b", *given])
        assert failed.exit_code == 2, (command, given)
        assert given[0] in failed.output
        assert "is given 2 times" in failed.output


def test_option_that_may_be_repeated_and_a_switch_are_not_refused():
    repeated = ["--resume", "--resume", "--set", "steps=3", "--set", "evaluate_every=3"]
    failed = CliRunner().invoke(app, ["run", "digits/no-such", *repeated])
    assert "There is no recipe 'digits/no-such'" in failed.output


def test_made_up_data_are_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "train_32x32.mat").write_bytes(b"not a mat file")
    (tmp_path / "test_32x32.mat").write_bytes(b"not a mat file")
    failed = _meanteacher("run", "fast/svhn-500/supervised", "--data", str(tmp_path), cwd=tmp_path)
    assert failed.returncode == 2
    assert "_32x32.mat is not the official file" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (["--start-or-resume"], ["--start-or-resume"]),
        (["--start-or-resume", "--resume"], ["--start-or-resume"]),
        (["--resume"], ["--resume"]),
        ([], ["--resume"]),
    ],
)
def test_command_that_starts_or_resumes_is_its_own_resume_command(
    given: list[str], again: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[object] = []

    def interrupted(*_: object, resume: bool | str, **__: object) -> None:
        seen.append(resume)
        raise api.Interrupted("Interrupted.")

    monkeypatch.setattr(api, "run", interrupted)
    words = ["run", "digits/supervised", "--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, [*words, *given])
    assert shown.exit_code == 75
    assert shlex.join(["meanteacher", *words, *again]) in [line.strip() for line in shown.output.splitlines()]
    assert seen == ["auto" if "--start-or-resume" in given else "--resume" in given]


def test_command_does_not_end_at_a_character_that_the_locale_lacks(monkeypatch: pytest.MonkeyPatch):
    """As in the C locale, or in one of ISO 8859: the list of recipes has a plus-minus sign."""
    written = io.BytesIO()
    monkeypatch.setattr(app_module, "tune_malloc", lambda: None)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["meanteacher", "list", "table1/svhn-250"])
    with pytest.raises(SystemExit) as ended:
        app_module.main()
    assert not ended.value.code
    sys.stdout.flush()
    assert rb"4.35 \xb1 0.50" in written.getvalue()


@pytest.mark.parametrize(("given", "resume"), [(["--start-or-resume"], "auto"), (["--resume"], True), ([], False)])
def test_fit_starts_or_resumes_by_the_same_flag_as_a_run(
    given: list[str], resume: bool | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object, **options: object) -> None:
        assert options["resume"] == resume
        raise api.Interrupted("Interrupted.")

    monkeypatch.setattr("meanteacher.photos.fitting.fit.fit", interrupted)
    words = ["fit", str(tmp_path), "--out", str(tmp_path / "fit")]
    shown = CliRunner().invoke(app, [*words, *given])
    assert shown.exit_code == 75
    assert shlex.join(["meanteacher", *words, *(given or ["--resume"])]) in [
        line.strip() for line in shown.output.splitlines()
    ]


def test_package_is_a_command_like_its_script(tmp_path: Path):
    shown = subprocess.run(
        [sys.executable, "-m", "meanteacher", "--version"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert shown.returncode == 0
    assert shown.stdout.startswith("meanteacher ")


def test_divergence_has_an_exit_code_of_its_own(tmp_path: Path):
    failed = _meanteacher(
        "run", "digits/supervised", "--out", str(tmp_path / "r"), *SHORT, "--set", "optim.learning_rate=1e40"
    )
    assert failed.returncode == 3
    assert "Diverged" in failed.stderr


def test_list_shows_the_papers_numbers():
    shown = _meanteacher("list", "table1/svhn-250")
    assert "4.35 ± 0.50" in shown.stdout
    assert shown.stdout.count("\ntable1/svhn-250/") == 8
    assert shown.stdout.count("\nlaptop/table1/svhn-250/") == 4
    assert shown.stdout.count("/as-coded") == 3


def test_demo_compares_the_methods_and_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A few steps of each run; a second call trains nothing again."""
    find = recipes.find
    monkeypatch.setattr(recipes, "find", lambda name: find(name).varied(steps=100, evaluate_every=50))
    words, runner = ["demo", "--out", str(tmp_path / "d"), "--draws", "2"], CliRunner(env={"COLUMNS": "200"})
    shown = runner.invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert any(line.startswith("Mean Teacher ") for line in shown.stdout.splitlines()), "a row of the table per line"
    assert "standard error" in shown.stdout
    found = load_records(tmp_path / "d")
    difference = paired_difference(found, "pi-model", "mean-teacher")
    assert difference.standard_error is not None
    ahead = "is ahead of" if difference.mean < -difference.standard_error else "is not shown to be ahead of"
    verdict = f"Mean Teacher {ahead} the Pi model: {difference.cell(1000)} points, lower in "
    assert verdict in shown.stdout
    page = (tmp_path / "d" / "report.html").read_text()
    assert verdict in page.replace("\N{NO-BREAK SPACE}", " ")
    assert page.count("<image ") == 2 * 3, "the boundary of three methods at two moments"
    assert page.index(">step 50<") < page.index(">step 100<")
    records = {path: path.stat().st_mtime_ns for path in (tmp_path / "d").rglob("record.json")}
    assert len(records) == 6
    again = runner.invoke(app, words)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in records} == records
