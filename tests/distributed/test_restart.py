"""A rank that is killed is started again with the others, and the run ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import files_of
from processes import in_processes

from support import PATIENCE, child_environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

RECIPE = f"{Path(__file__).with_name('killed.py')}:dies"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")


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


def by(*launcher: str, folder: Path, after: tuple[str, ...] = ()) -> str:
    words = [sys.executable, *launcher, "-m", "meanteacher", *command(folder / "run"), *after]
    environment = child_environment(OMP_NUM_THREADS="1", MARKER=str(folder / "marker"))
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr[-5000:]
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(("launcher", "after"), [((), ("--nproc", "2")), (TORCHRUN, ())], ids=["nproc", "torchrun"])
def test_a_killed_rank_costs_no_byte(
    launcher: tuple[str, ...], after: tuple[str, ...], undisturbed: Path, tmp_path: Path
):
    # A rank that torch aborts while it leaves is started again, too, and prints the same sentence once more.
    assert "Complete. Test error" in by(*launcher, folder=tmp_path, after=after)
    assert (tmp_path / "marker").exists()  # it was killed
    assert files_of(tmp_path / "run") == files_of(undisturbed)
    one, other = (json.loads((out / "record.json").read_text()) for out in (tmp_path / "run", undisturbed))
    for field in ("curve", "errors", "vitals", "alarms", "processes"):
        assert one[field] == other[field], field
