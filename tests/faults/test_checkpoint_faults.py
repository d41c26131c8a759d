"""A checkpoint is whole or refused, and no fault costs an earlier one."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from forking import run_script
from meanteacher.core import InputError
from meanteacher.experiment import Claim, run
from meanteacher.schedules import Constant
from meanteacher.train import Checkpoints, Evaluation, SgdSpec, StopWhen, TrainState, start
from support import METHODS, PATIENCE, PROBLEM, SmallNet, child_environment, recipe, stream


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that stopped at step 12 of 20, with checkpoints of steps 10 and 12."""
    steps = iter(range(11))
    whole = recipe()
    run(
        whole,
        seed=0,
        out=tmp_path / "run",
        data=whole.data.source.load(tmp_path),
        callbacks=[StopWhen(lambda: next(steps, None) is None)],
    )
    return tmp_path / "run"


def _resume(out: Path, **changes: object) -> None:
    whole = recipe(**changes)
    run(whole, seed=0, out=out, data=whole.data.source.load(out), resume=True)


def _last(out: Path) -> Path:
    return out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()


FILES = ["student.safetensors", "memory.safetensors", "normalise.safetensors", "state.pt", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_is_refused_and_nothing_is_lost(interrupted: Path, name: str):
    path = _last(interrupted) / name
    content = bytearray(path.read_bytes())
    # In the manifest a flip may land in white space; its first digest is where it matters.
    position = content.index(b'": "', content.index(b"sha256")) + 6 if name == "manifest.json" else len(content) // 2
    content[position] ^= 1
    path.write_bytes(content)
    before = {p: p.read_bytes() for p in interrupted.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(InputError, match=r"damaged.*Delete that folder to resume from the one before it"):
        _resume(interrupted)
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_is_refused(interrupted: Path, name: str):
    path = _last(interrupted) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match="damaged"):
        _resume(interrupted)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_refused(interrupted: Path, name: str):
    (_last(interrupted) / name).unlink()
    with pytest.raises(InputError, match="damaged or incomplete"):
        _resume(interrupted)


def test_deleting_the_damaged_checkpoint_resumes_from_the_one_before(interrupted: Path):
    for path in _last(interrupted).iterdir():
        path.unlink()
    _last(interrupted).rmdir()
    _resume(interrupted)
    assert json.loads((interrupted / "record.json").read_text())["steps"] == 20


def test_state_with_a_pickle_inside_is_refused_and_not_executed(interrupted: Path, tmp_path: Path):
    """Even when the attacker mends the manifest."""
    canary = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(canary),)

    import hashlib

    path = _last(interrupted) / "state.pt"
    path.write_bytes(pickle.dumps(Evil(), protocol=2))
    manifest = _last(interrupted) / "manifest.json"
    content = json.loads(manifest.read_text())
    content["sha256"]["state.pt"] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match="not a state that meanteacher wrote"):
        _resume(interrupted)
    assert not canary.exists()


def test_checkpoint_of_another_recipe_is_refused(interrupted: Path, tmp_path: Path):
    other = tmp_path / "other"
    steps = iter(range(11))
    whole = recipe("pi-model")
    run(
        whole,
        seed=0,
        out=other,
        data=whole.data.source.load(tmp_path),
        callbacks=[StopWhen(lambda: next(steps, None) is None)],
    )
    (other / "run.json").write_bytes((interrupted / "run.json").read_bytes())
    with pytest.raises(InputError, match=r"is from another run \(other recipe\)"):
        _resume(other)


def test_resuming_with_another_recipe_lists_what_differs(interrupted: Path):
    with pytest.raises(InputError, match=r"holds another run.*evaluate_every: 5 -> 10; steps: 20 -> 30"):
        _resume(interrupted, steps=30, evaluate_every=10)


def test_other_words_about_a_run_do_not_make_it_another(interrupted: Path):
    """A release that names one deviation more must not lock out the runs that its predecessor began."""
    _resume(
        interrupted, deviations=("One more that was not known of.",), claim=Claim(error=1.0, spread=None, where="-")
    )
    assert (interrupted / "record.json").exists()


def test_format_of_a_later_version_is_named(interrupted: Path):
    manifest = _last(interrupted) / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(InputError, match="has format 99, this version reads 1"):
        _resume(interrupted)


def test_full_disk_leaves_the_previous_checkpoint_intact(interrupted: Path):
    """A process that may write no file beyond 4 kB: every checkpoint fails half-way."""
    before = {p.name: p.read_bytes() for p in _last(interrupted).iterdir()}
    script = (
        "import signal, sys; from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import resource, test_checkpoint_faults as t\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "t._resume(Path(sys.argv[2]))\n"
    )
    here = Path(__file__).parent
    failed = subprocess.run(
        [sys.executable, "-c", script, str(here), str(interrupted)],
        env=child_environment(PYTHONDONTWRITEBYTECODE="1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "Earlier checkpoints are intact" in failed.stderr
    assert {p.name: p.read_bytes() for p in _last(interrupted).iterdir()} == before
    assert not list((interrupted / "checkpoints").glob(".*"))
    _resume(interrupted)


@pytest.mark.parametrize("moment", ["rename", "replace"])
def test_crash_while_saving_leaves_a_checkpoint_to_resume_from(interrupted: Path, moment: str):
    """The process dies just before the folder is renamed, or just before the pointer is moved."""
    script = (
        "import os, pathlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_checkpoint_faults as t\n"
        "real = getattr(pathlib.Path, sys.argv[3])\n"
        "def crash(self, *a):\n"
        "    if 'checkpoints' in str(self): os._exit(9)\n"
        "    return real(self, *a)\n"
        "setattr(pathlib.Path, sys.argv[3], crash)\n"
        "t._resume(pathlib.Path(sys.argv[2]))\n"
    )
    here = Path(__file__).parent
    crashed = run_script(script, here, interrupted, moment)
    assert crashed.returncode == 9, crashed.stderr
    _resume(interrupted)
    assert (interrupted / "record.json").exists()
    assert not list((interrupted / "checkpoints").glob(".*"))


@pytest.fixture
def state() -> TrainState:
    """Before its first step."""
    optim = SgdSpec(learning_rate=Constant(0.1))
    identity = torch.nn.Identity()
    return start(SmallNet(), METHODS["supervised"], optim, stream(), normalise=identity, problem=PROBLEM, seed=0)


def test_kill_between_the_two_pointers_does_not_lose_the_best_checkpoint(
    state: TrainState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`last` names the best checkpoint already, `best` does not yet."""
    checkpoints, real = Checkpoints(tmp_path, {}), Checkpoints._point

    def killed(self: Checkpoints, name: str, target: str) -> None:
        if name == "best":
            raise KeyboardInterrupt
        real(self, name, target)

    for step, error in ((5, 0.1), (10, 0.4), (15, 0.3), (20, 0.2)):
        state.step = step
        state.curve.append(Evaluation(step, "validation", error, error))
        with monkeypatch.context() as patched:
            if step == 5:
                patched.setattr(Checkpoints, "_point", killed)
            with pytest.raises(KeyboardInterrupt) if step == 5 else nullcontext():
                checkpoints.save(state)
    assert checkpoints.path("best").name == "step_00000005"
    assert {path.name for path in tmp_path.glob("step_*")} == {"step_00000005", "step_00000015", "step_00000020"}


def test_run_goes_on_where_its_best_checkpoint_was_damaged_and_deleted(state: TrainState, tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, {})
    for step in (5, 10):
        state.step = step
        state.curve = [Evaluation(5, "validation", 0.1, 0.1)]
        checkpoints.save(state)
    shutil.rmtree(checkpoints.path("best"))
    state.step = 15
    checkpoints.save(state)
    assert checkpoints.path("last").name == "step_00000015"


def test_only_the_last_two_and_the_best_are_kept(tmp_path: Path):
    whole = recipe(steps=40)
    run(whole, seed=0, out=tmp_path / "run", data=whole.data.source.load(tmp_path))
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")}
    best = (tmp_path / "run" / "checkpoints" / "best").read_text().strip()
    assert kept == {"step_00000035", "step_00000040", best}
