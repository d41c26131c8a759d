"""What a checkpoint holds and which one is found; the clocks that are kept with it."""

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from meanteacher.core import DivergedError, InputError
from meanteacher.distributed import ALONE, Ranks
from meanteacher.train import Checkpoints, Evaluation, TrainState, Vitals, checkpoint
from meanteacher.train.checkpoint import Keeper
from thread_ranks import in_threads


def _state(value: float = 0.0, *, adam: bool = False) -> TrainState:
    student, memory = nn.Linear(2, 3), nn.BatchNorm1d(3)
    for number, tensor in enumerate([*student.parameters(), *memory.parameters(), memory.running_mean]):
        tensor.data.fill_(value + number)
    kind: Any = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = kind(student.parameters(), lr=0.1, **({} if adam else {"momentum": 0.9}))
    return TrainState(student, memory, nn.BatchNorm1d(2), optimizer)


def _trained(value: float = 2.0, *, adam: bool = False) -> TrainState:
    """After a step, so that the optimiser has moments."""
    state = _state(value, adam=adam)
    state.student(torch.tensor([[1.0, -3.0]])).sum().backward()
    state.optimizer.step()
    return state


def _plain(state: TrainState) -> dict[str, Any]:
    networks = {"student", "memory", "normalise", "optimizer"}
    return {field.name: getattr(state, field.name) for field in fields(state) if field.name not in networks}


def test_a_run_begins_with_nothing_done():
    found = _plain(_state())
    assert {name: value for name, value in found.items() if value} == {}


@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
def test_everything_that_changes_in_a_run_is_restored(adam: bool, tmp_path: Path):
    saved = _trained(adam=adam)
    saved.step, saved.skipped, saved.seconds, saved.cpu_seconds, saved.overflows = 7, 3, 1.5, 2.25, 4
    saved.curve = [Evaluation(5, "validation", 0.5, 0.25), Evaluation(7, "test", 0.75, 0.125)]
    saved.vitals = Vitals(None).state() | {"rows": 11, "streaks": {"read": 2}}
    saved.processes = [(0, 2), (5, 1)]
    saved.stream = {"position": {"line": 9}, "n_seen": 31, "replay": {"n_offered": 2, "kept": [(torch.ones(1), 1, 0)]}}
    saved.scaler = {"scale": 256.0, "_growth_tracker": 6.0}
    checkpoints = Checkpoints(tmp_path / "run", {"recipe": "a"})
    assert checkpoints.save(saved) == tmp_path / "run" / "step_00000007"
    assert checkpoints.exists()
    restored = _state(50.0, adam=adam)
    checkpoints.restore(restored)
    assert _plain(restored) == _plain(saved)
    for part, module in saved.modules().items():
        other = restored.modules()[part].state_dict()
        assert all(torch.equal(tensor, other[name]) for name, tensor in module.state_dict().items())
    moments, others = (state.optimizer.state_dict()["state"] for state in (saved, restored))
    assert all(torch.equal(value, others[k][name]) for k, each in moments.items() for name, value in each.items())
    assert moments.keys() == others.keys() == {0, 1}


def test_a_run_without_vitals_is_restored_without(tmp_path: Path):
    Checkpoints(tmp_path, {}).save(_trained())
    restored = _state()
    restored.vitals = {"rows": 1}
    Checkpoints(tmp_path, {}).restore(restored)
    assert restored.vitals == {}


# --- which one is found ----------------------------------------------------------------------------------------------


def _several(folder: Path, errors: dict[int, float]) -> Checkpoints:
    """A checkpoint after each of these steps, with an evaluation on validation images."""
    checkpoints, state = Checkpoints(folder, {}), _trained()
    for state.step, error in errors.items():
        state.curve.append(Evaluation(state.step, "validation", error, error))
        checkpoints.save(state)
    return checkpoints


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_and_the_best_are_kept_and_found_by_name(tmp_path: Path):
    checkpoints = _several(tmp_path, {1: 0.5, 20: 0.25, 300: 0.5, 4000: 0.5, 50000: 0.5})
    assert _names(tmp_path) == ["best", "last", "step_00000020", "step_00004000", "step_00050000"]
    assert checkpoints.path("last").name == "step_00050000"
    assert checkpoints.path("best").name == "step_00000020"
    assert (tmp_path / "last").read_text() == "step_00050000\n"
    state = _state()
    checkpoints.restore(state, "best")
    assert state.step == 20
    checkpoints.restore(state)
    assert state.step == 50000


def test_without_validation_there_is_no_best_one(tmp_path: Path):
    checkpoints, state = Checkpoints(tmp_path, {}), _trained()
    for state.step in (1, 2, 3):
        state.curve.append(Evaluation(state.step, "test", 0.5, 0.5))
        checkpoints.save(state)
    assert _names(tmp_path) == ["last", "step_00000002", "step_00000003"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(Path.unlink, id="no pointer"),
        pytest.param(lambda last: last.write_text("step_00000009\n"), id="a folder that is gone"),
        pytest.param(lambda last: last.write_text("../elsewhere\n"), id="another folder"),
        pytest.param(lambda last: last.write_bytes(b"\xff\xfe"), id="no text"),
        pytest.param(lambda last: last.write_text(""), id="empty"),
        pytest.param(lambda last: last.write_text("step_00000020" + " " * 5000), id="a large file"),
    ],
)
def test_the_newest_folder_is_resumed_if_nothing_points_to_it(damage: Callable[[Path], Any], tmp_path: Path):
    checkpoints = _several(tmp_path / "run", {3: 0.1, 20: 0.2, 100: 0.3})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "step_1").mkdir()
    damage(tmp_path / "run" / "last")
    assert checkpoints.path("last").name == "step_00000100"


def test_a_best_one_that_is_gone_is_not_replaced_by_another(tmp_path: Path):
    checkpoints = _several(tmp_path, {3: 0.1, 20: 0.2})
    shutil.rmtree(checkpoints.path("best"))
    with pytest.raises(InputError, match="holds no checkpoint"):
        checkpoints.path("best")


def test_an_empty_folder_holds_no_checkpoint(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "run", {})
    assert not checkpoints.exists()
    with pytest.raises(InputError, match=r"run holds no checkpoint to resume from\. Start the run without --resume"):
        checkpoints.restore(_state())


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InputError, match="Could not write the checkpoint of step 0 to"):
        Checkpoints(tmp_path / "run", {}).save(_trained())


def test_the_files_of_a_process_that_was_killed_are_removed(tmp_path: Path):
    left = [".writing-step_00000004", ".last.ab12.part", ".best.cd34.part"]
    for name in left:
        (tmp_path / name).mkdir()
    _several(tmp_path, {5: 0.5})
    assert _names(tmp_path) == ["best", "last", "step_00000005"]


def test_a_step_that_is_reached_again_is_written_again(tmp_path: Path):
    checkpoints = _several(tmp_path, {5: 0.5})
    again = _trained(30.0)
    again.step = 5
    checkpoints.save(again)
    restored = _state()
    checkpoints.restore(restored)
    assert torch.equal(restored.student.bias, again.student.bias)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_is_refused_by_all_that_differs(tmp_path: Path):
    Checkpoints(tmp_path, {"recipe": "a", "data": "b", "seed": "3", "more": "x"}).save(_trained())
    with pytest.raises(InputError, match=r"from another run \(other data and split\)"):
        Checkpoints(tmp_path, {"recipe": "a", "data": "c", "seed": "3", "split": "d"}).restore(_state())


def _replaced(folder: Path, change: Callable[[Path], None]) -> Checkpoints:
    """A checkpoint with another state.pt, whose digest is mended."""
    checkpoints = Checkpoints(folder, {})
    checkpoints.save(_trained())
    last = checkpoints.path("last")
    change(last / "state.pt")
    manifest = json.loads((last / "manifest.json").read_text())
    manifest["sha256"]["state.pt"] = checkpoint._sha256(last / "state.pt")
    (last / "manifest.json").write_text(json.dumps(manifest))
    return checkpoints


def _changed(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        torch.save({**torch.load(path, weights_only=True), **values}, path)

    return change


def _compressed(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def _other_moments(path: Path) -> None:
    saved = torch.load(path, weights_only=True)
    saved["optimizer"]["state"][0]["momentum_buffer"] = torch.ones(7, 2)
    torch.save(saved, path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(_compressed, "it is compressed", id="compressed"),
        pytest.param(_changed(step=-1), r"Expected `int` >= 0 - at `\$.step`", id="a negative step"),
        pytest.param(_changed(processes=[(0, 0)]), r"Expected `int` >= 1", id="no process"),
        pytest.param(_changed(curve=[{"step": 1}]), "Object missing required field", id="a point without an error"),
        pytest.param(_other_moments, r"momentum_buffer of the optimiser has the shape \(7, 2\)", id="other moments"),
        pytest.param(
            lambda path: path.write_bytes(b"x" * 99), "state.pt holds something else than tensors", id="other bytes"
        ),
    ],
)
def test_a_state_that_no_run_writes_is_refused_with_the_reason(
    change: Callable[[Path], None], reason: str, tmp_path: Path
):
    with pytest.raises(InputError, match=f"is not a state that meanteacher wrote: {reason}"):
        _replaced(tmp_path, change).restore(_state())


def test_an_error_without_words_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(saved: object, kind: object) -> None:
        raise ZeroDivisionError

    checkpoints = _replaced(tmp_path, lambda path: None)
    monkeypatch.setattr(checkpoint, "checked", failing)
    with pytest.raises(InputError, match=r"is not a state that meanteacher wrote: ZeroDivisionError$"):
        checkpoints.restore(_state())


# --- the keeper ------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`now` and `cpu` are seconds that pass only when a test says so."""
    made = SimpleNamespace(now=1000.0, cpu=30.0)
    pretend = SimpleNamespace(perf_counter=lambda: made.now, process_time=lambda: made.cpu)
    monkeypatch.setattr(checkpoint, "time", pretend)
    return made


def _keeper(state: TrainState, *, ranks: Ranks = ALONE, checkpoints: Checkpoints | None = None) -> Keeper:
    return Keeper(state, Vitals(None), checkpoints, ranks, 60.0)


def test_time_is_added_up_over_interruptions(clock: SimpleNamespace):
    state = _state()
    for began, seconds, cpu in ((1000.0, 8.0, 5.0), (0.0, 0.5, 0.25)):
        clock.now = clock.cpu = began
        keeper = _keeper(state)
        clock.now += seconds
        clock.cpu += cpu
        keeper.save()
    assert (state.seconds, state.cpu_seconds) == (8.5, 5.25)
    clock.now += 2.0
    keeper.save()
    assert (state.seconds, state.cpu_seconds) == (10.5, 5.25)


def test_processor_time_is_that_of_all_ranks(clock: SimpleNamespace):
    def train(ranks: Ranks) -> float:
        state = _state()
        keeper = _keeper(state, ranks=ranks)
        ranks.agree(0, doing="beginning")
        if ranks.is_first:
            clock.cpu += 4.0
        ranks.agree(0, doing="working")
        keeper.save()
        return state.cpu_seconds

    assert in_threads(train, 3) == [12.0] * 3


def test_a_checkpoint_is_overdue_after_more_than_its_interval_since_the_last(clock: SimpleNamespace):
    keeper = _keeper(_state())
    for passes, overdue in ((60.0, False), (1.0, True)):
        clock.now += passes
        assert keeper.agree(stops=False) == (False, overdue)
    assert keeper.agree(stops=True) == (True, True)
    keeper.save()
    assert keeper.agree(stops=True) == (True, False)


def test_a_flag_of_one_rank_is_a_flag_of_all_and_waiting_names_the_step(clock: SimpleNamespace):
    named: list[str] = []

    def agree(ranks: Ranks) -> tuple[bool, bool]:
        state = _state()
        state.step = 8
        real = ranks._gathered
        object.__setattr__(ranks, "_gathered", lambda x, doing: (named.append(doing), real(x, doing))[1])
        return _keeper(state, ranks=ranks).agree(stops=ranks.rank == 1)

    assert in_threads(agree, 2) == [(True, False)] * 2
    assert set(named) == {"ending step 7"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], [(6, 1)], id="the first"),
        pytest.param([(0, 1)], [(0, 1)], id="as before"),
        pytest.param([(0, 1), (3, 2)], [(0, 1), (3, 2), (6, 1)], id="another number"),
        pytest.param([(0, 2), (3, 1)], [(0, 2), (3, 1)], id="as at last"),
    ],
)
def test_the_number_of_processes_is_noted_when_it_changes(before: list[tuple[int, int]], after: list[tuple[int, int]]):
    state = _state()
    state.step, state.processes = 6, before
    _keeper(state)
    assert state.processes == after


def test_the_first_rank_saves_and_no_other(tmp_path: Path):
    def save(ranks: Ranks) -> None:
        _keeper(_trained(), ranks=ranks, checkpoints=Checkpoints(tmp_path / str(ranks.rank), {})).save()

    in_threads(save, 2)
    assert _names(tmp_path) == ["0"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(value: float, tmp_path: Path):
    checkpoints, state = Checkpoints(tmp_path, {}), _trained()
    keeper = _keeper(state, checkpoints=checkpoints)
    keeper.save()
    state.step = 9
    state.student.bias.data[1] = value
    with pytest.raises(DivergedError, match="The student's 'bias' is no longer finite at step 9"):
        keeper.save()
    assert _names(tmp_path) == ["last", "step_00000000"]
