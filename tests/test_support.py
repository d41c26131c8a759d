"""The tests' own tools do what they say."""

import subprocess
import sys

import meanteacher
from support import child_environment


def test_child_process_imports_the_package_under_test(tmp_path):
    """Not an installed copy of it: a child that replaces PYTHONPATH would test something else."""
    show = [sys.executable, "-c", "import meanteacher, support; print(meanteacher.__file__)"]
    shown = subprocess.run(show, env=child_environment(), cwd=tmp_path, check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == meanteacher.__file__
