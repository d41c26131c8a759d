"""A rank that is killed is started again with the others, and the run ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import files_of

from support import PATIENCE, child_environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

RECIPE = f"{Path(__file__).with_name('killed.py')}:dies"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]


def command(launcher: list[str], out: Path, *, marker: Path, options: tuple[str, ...] = ()) -> str:
    """Run the recipe with a launcher; returns what was printed."""
    words = [sys.executable, *launcher, "-m", "meanteacher", "run", RECIPE, "--out", str(out), "--device", "cpu"]
    words += ["--compile", "no", "--precision", "float32", *options]
    environment = child_environment(OMP_NUM_THREADS="1", MARKER=str(marker))
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr[-5000:]
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "marker").touch()
    printed = command([], folder / "run", marker=folder / "marker", options=("--nproc", "2"))
    assert printed.count("Complete. Test error") == 1  # one process writes
    return folder / "run"


@pytest.mark.parametrize(("launcher", "options"), [([], ("--nproc", "2")), (TORCHRUN, ())], ids=["nproc", "torchrun"])
def test_a_killed_rank_costs_no_byte(launcher: list[str], options: tuple[str, ...], undisturbed: Path, tmp_path: Path):
    command(launcher, tmp_path / "run", marker=tmp_path / "marker", options=options)
    assert (tmp_path / "marker").exists()  # it was killed
    assert files_of(tmp_path / "run") == files_of(undisturbed)
    one, other = (json.loads((out / "record.json").read_text()) for out in (tmp_path / "run", undisturbed))
    for field in ("curve", "errors", "vitals", "alarms", "processes"):
        assert one[field] == other[field], field
