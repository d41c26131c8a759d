"""How a run is executed is said once, tried on copies, and kept with the run."""

import copy
import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from meanteacher.core import InputError
from meanteacher.experiment import Outcome, Prepared, run
from meanteacher.passes import untracked
from meanteacher.schedules import Constant
from meanteacher.train import RunOptions, SgdSpec, StopWhen, TrainState, execution, start
from meanteacher.train.execution import check_passes, compile_networks
from support import METHODS, PROBLEM, SmallNet, error_rate, made_up, recipe, stream


def _replace_compiler(monkeypatch: pytest.MonkeyPatch, compiler: Callable[[Any], Any]) -> list[Any]:
    """Returns what it will have been asked to compile."""
    asked: list[Any] = []

    def compiled(function: Any, **options: object) -> Any:
        asked.append(function)
        return compiler(function)

    monkeypatch.setattr(torch, "compile", compiled)
    return asked


def _no_compiler(function: object) -> object:
    raise RuntimeError("backend='inductor' raised:\nno C++ compiler is installed.\nand much more about it")


def _run(out: Path, *, stop_after: int = 1000, resume: bool = False, **options: Any) -> Outcome:
    whole = recipe()
    asked = iter(range(stop_after - 1))
    return run(
        whole,
        seed=3,
        out=out,
        data=whole.data.source.load(out),
        resume=resume,
        options=RunOptions(**options),
        callbacks=[StopWhen(lambda: next(asked, None) is None)],
    )


def _stored(out: Path) -> dict[str, Any]:
    return json.loads((out / "run.json").read_text())


def _store(out: Path, **changes: object) -> None:
    stored = _stored(out)
    (out / "run.json").write_text(json.dumps({**stored, "options": stored["options"] | changes}))


def _weights(out: Path) -> dict[str, bytes]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def _state(method: str = "mean-teacher") -> TrainState:
    optim = SgdSpec(learning_rate=Constant(0.1))
    torch.manual_seed(0)
    return start(SmallNet(), METHODS[method], optim, stream(), normalise=nn.Identity(), problem=PROBLEM, seed=0)


def test_nothing_is_compiled_or_tried_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = _replace_compiler(monkeypatch, lambda function: function)
    state = _state()
    monkeypatch.setattr(execution, "copy", None)
    check_passes(RunOptions(precision="float32"), state, METHODS["mean-teacher"], stream())
    _run(tmp_path / "a")
    assert asked == []


def test_compiler_that_fails_is_explained_in_one_line_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _replace_compiler(monkeypatch, _no_compiler)
    with pytest.raises(
        InputError, match=r"cannot be trained compiled here: no C\+\+ compiler .*--no-compile"
    ) as refused:
        _run(tmp_path / "a", compile=True)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


@pytest.mark.parametrize("stored", [False, True])
def test_options_of_a_run_are_those_of_its_resumed_run(stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = _replace_compiler(monkeypatch, lambda function: function)
    _run(tmp_path / "a", stop_after=3, compile=stored)
    kept = _stored(tmp_path / "a")["options"]
    assert kept == {
        "device": "cpu",
        "compile": stored,
        "precision": "float32",
        "micro_batch": None,
        "sync_batch_norm": False,
    }
    asked.clear()
    outcome = _run(tmp_path / "a", resume=True, compile=not stored)
    assert outcome.record is not None
    assert outcome.record.environment["compiled"] is stored
    assert len(asked) == (4 if stored else 0), "student and teacher, once to see that it works and once for the run"
    assert _stored(tmp_path / "a")["options"] == kept


def test_compiled_run_is_not_resumed_where_it_would_round_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", compile=True)
    before = _weights(tmp_path / "a")
    _replace_compiler(monkeypatch, _no_compiler)
    with pytest.raises(InputError, match=r"no C\+\+ compiler .*is resumed on a machine like"):
        _run(tmp_path / "a", resume=True)
    assert _weights(tmp_path / "a") == before


@pytest.mark.parametrize("damaged", [{"precision": "float8"}, {"compile": 3}, {"micro_batch": 0}])
def test_damaged_options_are_explained(damaged: dict[str, Any], tmp_path: Path):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", **damaged)
    with pytest.raises(InputError, match=r"run\.json .*\boptions\b"):
        _run(tmp_path / "a", resume=True)


def test_resumed_run_trains_in_the_precision_it_was_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", precision="bfloat16")
    used: list[str | None] = []

    def train(self: Prepared, state: TrainState, *, options: RunOptions, **more: object) -> bool:
        used.append(options.precision)
        return False

    monkeypatch.setattr(Prepared, "train", train)
    monkeypatch.setattr(importlib.import_module("meanteacher.experiment.run"), "check_passes", lambda *_: None)
    _run(tmp_path / "a", resume=True, precision="float32")
    assert used == ["bfloat16"]


def test_what_is_compiled_does_not_depend_on_what_was_compiled_before(monkeypatch: pytest.MonkeyPatch):
    """Whole graphs of fixed shapes, and nothing left behind by the copies: else a resumed run could differ."""
    told: list[dict[str, object]] = []
    resets: list[int] = []

    def compiler(function: object, **options: object) -> object:
        told.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(len(told)))
    state, method = _state(), METHODS["mean-teacher"]
    check_passes(RunOptions(compile=True, precision="float32"), state, method, stream())
    compile_networks(state.student, state.predictor(method))
    assert resets == [2]
    assert told == [{"backend": "inductor", "fullgraph": True, "dynamic": False}] * 4


def test_trying_changes_neither_the_weights_nor_the_global_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = _replace_compiler(monkeypatch, lambda function: function)
    _run(tmp_path / "a")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    _run(tmp_path / "b", compile=True)
    assert torch.equal(torch.rand(3), expected)
    assert len(asked) == 4
    assert _weights(tmp_path / "a") == _weights(tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "fast"}, "precision has to be float32, bfloat16 or float16; got 'fast'"),
        ({"micro_batch": 0}, "at least one row"),
        ({"micro_batch": 4, "compile": True}, "is not compiled"),
        ({"micro_batch": 4, "sync_batch_norm": True}, "cannot be computed in parts"),
        ({"compile": True, "sync_batch_norm": True}, "are not compiled"),
    ],
)
def test_options_that_cannot_be_are_explained(options: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        RunOptions(**options)


def test_a_part_of_a_batch_may_be_one_row():
    assert RunOptions(micro_batch=1).flags() == ["--micro-batch", "1"]


def test_what_is_tried_is_the_first_step_of_a_rank_on_copies(monkeypatch: pytest.MonkeyPatch):
    _replace_compiler(monkeypatch, lambda function: function)
    state, real, tried = _state(), METHODS["mean-teacher"], []

    class Noting:
        def forward(self, student: nn.Module, memory: nn.Module, batch: Any, step: int) -> Any:
            tried.append((student, memory, batch, step))
            return real.forward(student, memory, replace(batch, labels=whole.labels, index=whole.index), step)

        def predictor(self, student: nn.Module, memory: nn.Module) -> nn.Module:
            return real.predictor(student, memory)

    whole = stream()[0]
    check_passes(RunOptions(compile=True), state, Noting(), stream(), slice(1, None, 2))  # type: ignore[arg-type]
    ((student, memory, batch, step),) = tried
    assert step == 0
    assert torch.equal(batch.views["student"], whole.views["student"])
    assert (batch.labels.tolist(), batch.index.tolist()) == (whole.labels[1::2].tolist(), whole.index[1::2].tolist())
    assert student is not state.student
    assert memory is not state.memory
    assert all(parameter.grad is None for parameter in state.student.parameters())


def test_a_long_reason_is_cut(monkeypatch: pytest.MonkeyPatch):
    def failing(function: object) -> object:
        raise RuntimeError("x" * 500)

    _replace_compiler(monkeypatch, failing)
    with pytest.raises(InputError, match=rf"trained compiled here: {'x' * 200}\. Start"):
        check_passes(RunOptions(compile=True), _state(), METHODS["mean-teacher"], stream())


def test_flags_are_words_that_the_command_takes():
    options = RunOptions(device="cuda", compile=True, precision="bfloat16")
    assert options.flags() == ["--device", "cuda", "--compile", "--precision", "bfloat16"]
    assert RunOptions(sync_batch_norm=True).flags() == ["--sync-batch-norm"]
    assert RunOptions().flags() == []


def test_compiled_networks_stay_what_they_are(monkeypatch: pytest.MonkeyPatch):
    """With torch's real tracing, but without its C++ kernels, which take a compiler and a minute."""
    monkeypatch.setattr(execution, "_BACKEND", "aot_eager")
    method, batch = METHODS["mean-teacher"], stream()[0]
    plain, compiled = _state(), _state()
    names = list(compiled.student.state_dict())
    compile_networks(compiled.student, compiled.predictor(method))
    torch.compiler.reset()
    counters.clear()
    try:
        for state in (plain, compiled):
            for backward in range(2):
                torch.manual_seed(7)
                total = method.forward(state.student, state.memory, batch, 0).total
                # Once is how most steps go; the vitals go back more than once, at any step.
                for _ in range(backward + 1):
                    total.backward(retain_graph=backward > 0)
        n_graphs = counters["stats"]["unique_graphs"]
        assert n_graphs == 2, "the student with gradients, the teacher without"
        for mine, theirs in zip(compiled.student.parameters(), plain.student.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)

        data = made_up(30, seed=1)
        for network in (compiled.student, compiled.predictor(method)):
            error_rate(network, data, normalise=lambda images: images.float())
        copied = copy.deepcopy(compiled.student)
        copied(batch.views["student"])
        assert counters["stats"]["unique_graphs"] == n_graphs, "neither an evaluation nor a copy compiles anything"

        before = {name: buffer.clone() for name, buffer in compiled.student.named_buffers()}
        untracked(compiled.student, batch.views["student"])
        assert all(torch.equal(buffer, before[name]) for name, buffer in compiled.student.named_buffers())
        assert list(compiled.student.state_dict()) == names == list(copied.state_dict())
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize(
    ("options", "described"),
    [
        pytest.param({}, {"compiled": False, "precision": "float32"}, id="default"),
        pytest.param(
            {"micro_batch": 8, "precision": "bfloat16"},
            {"compiled": False, "precision": "bfloat16", "micro_batch": "8"},
            id="in parts",
        ),
        pytest.param(
            {"sync_batch_norm": True},
            {"compiled": False, "precision": "float32", "batch_norm": "synchronised"},
            id="synchronised",
        ),
        pytest.param({"compile": True}, {"compiled": True, "precision": "float32"}, id="compiled"),
    ],
)
def test_a_record_names_the_options_that_may_explain_other_results(
    options: dict[str, Any], described: dict[str, object]
) -> None:
    assert RunOptions(**options).described() == described
