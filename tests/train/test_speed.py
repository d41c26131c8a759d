"""How the steps of a run are computed is measured on copies, said in one line, and kept with the run."""

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from meanteacher.core import InputError
from meanteacher.evaluate import error_rate
from meanteacher.experiment import Outcome, run
from meanteacher.passes import untracked
from meanteacher.schedules import Constant
from meanteacher.train import SgdSpec, TrainState, start
from meanteacher.train import compile as compiling
from meanteacher.train.compile import Speed, check_speed, choose_speed, compile_networks
from support import METHODS, PROBLEM, SmallNet, made_up, recipe, stream

RUNNING = importlib.import_module("meanteacher.experiment.run")
"""The module, which the function of that name hides."""


@pytest.fixture
def _every_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_WORTH_TRYING", 0.0)


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


def _run(out: Path, *, stop_after: int = 1000, **options: Any) -> tuple[Outcome, list[str]]:
    whole = recipe()
    asked = iter(range(stop_after - 1))
    said: list[str] = []
    outcome = run(
        whole,
        seed=3,
        out=out,
        data=whole.data.source.load(out),
        should_stop=lambda: next(asked, None) is None,
        announce=said.append,
        **options,
    )
    return outcome, said


def _stored(out: Path) -> dict[str, Any]:
    return json.loads((out / "run.json").read_text())


def _store(out: Path, value: object) -> None:
    (out / "run.json").write_text(json.dumps({**_stored(out), "speed": value}))


def _weights(out: Path) -> dict[str, bytes]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def _state(method: str = "mean-teacher") -> TrainState:
    optim = SgdSpec(learning_rate=Constant(0.1))
    torch.manual_seed(0)
    return start(SmallNet(), METHODS[method], optim, stream(), normalise=nn.Identity(), problem=PROBLEM, seed=0)


@pytest.mark.usefixtures("_every_run_is_long")
@pytest.mark.parametrize("compiled", ["auto", "yes"])
def test_compiler_that_fails_costs_one_line_and_the_run_completes(
    compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _replace_compiler(monkeypatch, _no_compiler)
    outcome, said = _run(tmp_path / "a", compiled=compiled)
    (line,) = said
    assert "no C++ compiler" in line
    assert "\n" not in line
    assert outcome.record is not None
    assert outcome.record.environment["compiled"] == "no"
    assert _stored(tmp_path / "a")["speed"]["reason"] in line


def test_run_too_short_for_it_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = _replace_compiler(monkeypatch, lambda function: function)
    _, said = _run(tmp_path / "a", compiled="auto")
    assert (asked, said) == ([], [])
    stored = _stored(tmp_path / "a")["speed"]
    assert "too short" in stored["reason"]
    assert stored["eager_ms"] > 0


def test_nothing_is_tried_where_nothing_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling, "_Passes", None)
    _, said = _run(tmp_path / "a")
    assert said == []
    assert Speed(**_stored(tmp_path / "a")["speed"]).eager_ms is None


@pytest.mark.parametrize("stored", [False, True])
def test_choice_is_used_again_by_a_resumed_run_without_measuring(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _run(tmp_path / "a", stop_after=3)
    kept = {"compiled": stored, "precision": "float32", "reason": "as before", "eager_ms": 2.0, "compiled_ms": 1.0}
    _store(tmp_path / "a", kept)
    asked = _replace_compiler(monkeypatch, lambda function: function)
    monkeypatch.setattr(RUNNING, "choose_speed", None)
    outcome, said = _run(tmp_path / "a", resume=True, compiled="no" if stored else "yes")
    assert outcome.record is not None
    assert outcome.record.environment["compiled"] == ("yes" if stored else "no")
    assert len(asked) == (4 if stored else 0), "student and teacher, once to see that it works and once for the run"
    assert said == []
    assert _stored(tmp_path / "a")["speed"] == kept


def test_run_of_before_there_was_a_choice_is_resumed_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", None)
    asked = _replace_compiler(monkeypatch, lambda function: function)
    _run(tmp_path / "a", resume=True, compiled="yes")
    assert asked == []


def test_run_killed_before_its_first_checkpoint_chooses_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RUNNING, "choose_speed", killed)
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path / "a", compiled="yes")
    asked = _replace_compiler(monkeypatch, lambda function: function)
    _run(tmp_path / "a", resume=True, compiled="yes")
    assert len(asked) == 4


def test_compiled_run_is_not_resumed_where_it_would_round_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", {"compiled": True})
    before = _weights(tmp_path / "a")
    _replace_compiler(monkeypatch, _no_compiler)
    with pytest.raises(InputError, match=r"no C\+\+ compiler .*Resume it on"):
        _run(tmp_path / "a", resume=True)
    assert _weights(tmp_path / "a") == before


@pytest.mark.parametrize("damaged", [{"precision": "float8"}, {"compiled": 1}, 3])
def test_damaged_choice_is_explained(damaged: object, tmp_path: Path):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", damaged)
    with pytest.raises(InputError, match=r"run\.json .*\bspeed\b"):
        _run(tmp_path / "a", resume=True)


def test_resumed_run_trains_in_the_precision_it_was_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _run(tmp_path / "a", stop_after=3)
    _store(tmp_path / "a", {"precision": "bfloat16"})
    used: list[str] = []

    def train(*arguments: object, speed: Speed, **options: object) -> bool:
        used.append(speed.precision)
        return False

    monkeypatch.setattr(RUNNING, "train", train)
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
    choose_speed(
        state,
        method,
        stream(),
        steps=20,
        compiled="yes",
        precision="float32",
        announce=lambda line: None,
    )
    check_speed(Speed(compiled=True), state, method, stream())
    compile_networks(state.student, state.predictor(method))
    assert resets == [2, 4]
    assert told == [{"backend": "inductor", "fullgraph": True, "dynamic": False}] * 6


@pytest.mark.usefixtures("_every_run_is_long")
def test_measuring_changes_neither_the_weights_nor_the_global_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = _replace_compiler(monkeypatch, lambda function: function)
    _run(tmp_path / "a", compiled="no")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    _, said = _run(tmp_path / "b", compiled="auto")
    assert torch.equal(torch.rand(3), expected)
    assert len(asked) >= 2
    assert len(said) == 1
    assert _weights(tmp_path / "a") == _weights(tmp_path / "b")


@pytest.mark.parametrize(
    ("compiled_seconds", "wanted", "compiled"),
    [(0.96, "auto", True), (0.98, "auto", False), (1.3, "auto", False), (1.3, "yes", True)],
)
def test_compiled_only_for_a_gain_above_the_margin(
    compiled_seconds: float, wanted: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch
):
    class Passes:
        def __init__(self, *arguments: object) -> None:
            self.each = 1.0

        def compile(self) -> None:
            self.each = compiled_seconds

        def seconds(self) -> float:
            return self.each

    monkeypatch.setattr(compiling, "_Passes", Passes)
    said: list[str] = []
    chosen = choose_speed(
        _state(),
        METHODS["mean-teacher"],
        stream(),
        steps=601,
        compiled=wanted,
        precision="float32",
        announce=said.append,
    )
    assert chosen.compiled is compiled
    assert (chosen.eager_ms, chosen.compiled_ms) == (1000, 1000 * compiled_seconds)
    assert said[0].startswith(f"{chosen.reason} (")


@pytest.mark.parametrize("steps", [599, 600])
def test_worth_trying_from_ten_minutes_of_training_that_are_left(steps: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling._Passes, "seconds", lambda self: 1.0)
    asked = _replace_compiler(monkeypatch, lambda function: function)
    state = _state()
    state.step = 50
    choose_speed(
        state,
        METHODS["mean-teacher"],
        stream(),
        steps=50 + steps,
        compiled="auto",
        precision="float32",
        announce=lambda line: None,
    )
    assert bool(asked) == (steps == 600)


@pytest.mark.parametrize("option", ["compiled", "precision"])
def test_unknown_wish_is_explained(option: str, tmp_path: Path):
    with pytest.raises(InputError, match=rf"{option} .*\bauto\b.*'fast'"):
        _run(tmp_path / "a", **{option: "fast"})


def test_compiled_networks_stay_what_they_are(monkeypatch: pytest.MonkeyPatch):
    """With torch's real tracing, but without its C++ kernels, which take a compiler and a minute."""
    monkeypatch.setattr(compiling, "_BACKEND", "aot_eager")
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
