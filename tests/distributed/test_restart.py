"""A rank that is killed is started again with the others, and the run ends as if nothing had happened."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import files_of
from processes import in_processes

from support import PATIENCE, child_environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

RECIPE = f"{Path(__file__).with_name('killed.py')}:dies"
PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


def command(out: Path) -> list[str]:
    """The words after `meanteacher` that run the recipe."""
    options = ["--device", "cpu", "--no-compile", "--precision", "float32"]
    return ["run", RECIPE, "--out", str(out), *options]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    printed = in_processes("command_line", 2, str(folder), command(folder / "run"))
    assert "".join(printed).count("Complete. Test error") == 1  # one process writes
    return folder / "run"


def printed(*words: str, folder: Path, **variables: str) -> str:
    environment = child_environment(OMP_NUM_THREADS="1", MARKER=str(folder / "marker"), **variables)
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr[-5000:]
    return ran.stdout + ran.stderr


def by_nproc(folder: Path) -> str:
    return printed(sys.executable, "-m", "meanteacher", *command(folder / "run"), "--nproc", "2", folder=folder)


def by_torchrun(folder: Path) -> str:
    """By the command of the page that keeps others out."""
    (found,) = re.findall(r"torchrun (.*store_type=file.*) \\\n +(.*) -m meanteacher run", PAGE)
    words = [word.replace("$DIR", str(folder)).replace("=4", "=2") for word in " ".join(found).split()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *words, "-m", "meanteacher"]
    closed = {"MEANTEACHER_STORE": str(folder / "store"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return printed(*torchrun, *command(folder / "run"), folder=folder, **closed)


@pytest.mark.parametrize("launched", [by_nproc, by_torchrun])
def test_a_killed_rank_costs_no_byte(launched: Callable[[Path], str], undisturbed: Path, tmp_path: Path):
    # A rank that torch aborts while it leaves is started again, too, and prints the same sentence once more.
    assert "Complete. Test error" in launched(tmp_path)
    assert (tmp_path / "marker").exists()  # it was killed
    assert files_of(tmp_path / "run") == files_of(undisturbed)
    one, other = (json.loads((out / "record.json").read_text()) for out in (tmp_path / "run", undisturbed))
    for field in ("curve", "errors", "vitals", "alarms", "processes"):
        assert one[field] == other[field], field
