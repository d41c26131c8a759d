"""The tests' own tools do what they say."""

import signal
import subprocess
import sys
from pathlib import Path

import meanteacher
import support
from forking import run_script
from support import child_environment


def test_child_process_imports_the_package_under_test(tmp_path):
    """Not an installed copy of it: a child that replaces PYTHONPATH would test something else."""
    script = (
        "import importlib.util, meanteacher\n"
        "print(meanteacher.__file__, importlib.util.find_spec('support').origin, sep='\\n')\n"
    )
    show = [sys.executable, "-c", script]
    shown = subprocess.run(show, env=child_environment(), cwd=tmp_path, check=True, capture_output=True, text=True)
    assert shown.stdout.splitlines() == [meanteacher.__file__, support.__file__]


def test_script_in_a_forked_process_has_its_words_folder_variables_streams_and_exit_code(tmp_path: Path):
    script = (
        "import os, sys, meanteacher; from pathlib import Path\n"
        "print(*sys.argv[1:], Path.cwd(), os.environ['SAID'], meanteacher.__file__, sep='\\n')\n"
        "print(__name__, file=sys.stderr)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    for code in (0, 7):
        done = run_script(script, code, "b", cwd=tmp_path, SAID="aloud")
        assert done.returncode == code
        assert done.stdout.splitlines() == [str(code), "b", str(tmp_path), "aloud", meanteacher.__file__]
        assert done.stderr == "__main__\n"


def test_script_in_a_forked_process_that_ends_otherwise():
    assert run_script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    said = run_script("raise SystemExit('in words')")
    assert (said.returncode, said.stderr) == (1, "in words\n")
    failed = run_script("1 / 0")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
