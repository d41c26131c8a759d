"""The shell completes commands, options, choices and names of recipes, without waiting for torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meanteacher.cli.run import recipe_names
from meanteacher.recipes import RECIPES
from support import child_environment

MAIN = "import sys; sys.argv[0] = 'meanteacher'; from meanteacher.cli import main\n"


def completed(line: str) -> list[str]:
    """What the program proposes for a line that ends where the cursor is, as a shell asks it."""
    script = f"{MAIN}try: main()\nexcept SystemExit: pass\nif 'torch' in sys.modules: sys.exit('torch was imported')"
    asked = child_environment(
        _MEANTEACHER_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1)
    )
    done = subprocess.run([sys.executable, "-c", script], env=asked, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("meanteacher r", ["report", "run"]),
        ("meanteacher fit --mi", ["--minutes"]),
        ("meanteacher run digits/m", ["digits/mean-teacher"]),
        ("meanteacher run x --no-c", ["--no-compile"]),
        ("meanteacher run x --precision b", ["bfloat16"]),
        ("meanteacher predict fit photos --device c", ["cpu", "cuda"]),
        # A path is the shell's own matter.
        ("meanteacher fit ", []),
    ],
)
def test_a_line_is_completed_without_importing_torch(line: str, proposed: list[str]):
    assert completed(line) == proposed


def test_every_command_and_every_recipe_is_proposed():
    assert {"demo", "run", "list", "fit", "predict", "evaluate", "export", "label"} <= set(completed("meanteacher "))
    assert completed("meanteacher run ") == list(RECIPES)


def test_the_list_of_names_is_that_of_the_recipes():
    again = "from meanteacher.recipes import RECIPES; print(*RECIPES, sep=chr(10))"
    assert recipe_names() == list(RECIPES), f"write recipes/names.txt anew: python -c '{again}' > .../names.txt"


def test_completion_can_be_installed_and_then_works_in_the_shell(tmp_path: Path):
    """The script that bash is given is run by bash, with a program of that name on the path."""
    programs, home = tmp_path / "programs", tmp_path / "home"
    home.mkdir()
    programs.mkdir()
    program = programs / "meanteacher"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from meanteacher.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    environment = child_environment(HOME=str(home), PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    # Which shell is running is found out from the processes above this one; here it is said.
    said = environment | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    subprocess.run([program, "--install-completion", "bash"], env=said, check=True, capture_output=True)
    script = (
        f"source {home}/.bashrc\n"
        "COMP_WORDS=(meanteacher run digits/m); COMP_CWORD=2\n"
        "read -r -a known <<< $(complete -p meanteacher)\n"
        "for word in ${known[@]}; do [[ $word == _* ]] && $word meanteacher; done\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], env=environment, check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["digits/mean-teacher"], done.stderr
