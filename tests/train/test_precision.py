"""bfloat16 and float16 where they work: the networks compute in them, and nothing else does."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InputError
from meanteacher.experiment import run
from meanteacher.passes import both_outputs
from meanteacher.schedules import Constant
from meanteacher.train import (
    Checkpoints,
    Declared,
    Evaluation,
    Intervals,
    SgdSpec,
    TrainState,
    Vitals,
    execution,
    start,
    train,
)
from meanteacher.train.execution import RunOptions, check_passes, half_fault
from support import METHODS, PROBLEM, error_rate, made_up, recipe, stream


class Noting(nn.Module):
    """Gives bfloat16 where it is asked to, without the instructions that not every machine has."""

    def __init__(self, *, can: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.can = can
        self.asked: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(torch.is_autocast_enabled("cpu"))
        logits = x.flatten(1)[:, :3] * self.weight
        if not self.asked[-1]:
            return logits
        if not self.can:
            raise RuntimeError("mixed dtypes.\nand more")
        return logits.bfloat16()


def _state(network: nn.Module) -> TrainState:
    method, optim = METHODS["mean-teacher"], SgdSpec(learning_rate=Constant(0.1))
    return start(network, method, optim, stream(), normalise=nn.Identity(), problem=PROBLEM, seed=0)


@pytest.mark.parametrize(
    ("wanted", "device", "fault", "chosen"),
    [
        (None, "cpu", "never asked", "float32"),
        (None, "mps", "never asked", "float32"),
        (None, "cuda", "never asked", "bfloat16"),
        (None, "cuda:1", "never asked", "float32"),
        ("float32", "cpu", "never asked", "float32"),
        ("float32", "cuda", "never asked", "float32"),
        ("bfloat16", "cuda", "never asked", "bfloat16"),
        ("bfloat16", "cpu", None, "bfloat16"),
        ("bfloat16", "cpu", "signal 4", None),
        ("float16", "cuda:1", "never asked", "float16"),
        ("float16", "cpu", "signal 4", None),
    ],
)
def test_precision_goes_by_the_device_and_by_what_a_child_process_survives(
    wanted: Any, device: str, fault: str | None, chosen: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(execution, "half_fault", lambda precision: fault)
    # The second GPU is too old for it.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5) if device.index == 1 else (8, 0))
    options = RunOptions(precision=wanted)
    if chosen is None:
        with pytest.raises(InputError, match=rf"^{wanted} ends a child process with signal 4 .*Use float32"):
            options.on(torch.device(device))
    else:
        found = options.on(torch.device(device))
        assert (found.precision, found.device) == (chosen, torch.device(device).type)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("", None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "a timeout of 1 s"),
    ],
)
def test_illegal_instruction_ends_a_child_and_not_the_run(
    script: str, fault: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(execution, "_SCRIPT", script)
    monkeypatch.setattr(execution, "_SECONDS", 1 if "sleep" in script else 60)
    assert half_fault("bfloat16") == fault


def test_a_child_prints_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr(execution, "_SCRIPT", "import sys; print(1); sys.exit('illegal')")
    assert half_fault("bfloat16") == "exit code 1"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_child_fails_by_its_machine_alone(precision: Any):
    fault = half_fault(precision)
    assert fault is None or fault.startswith("signal")


def test_networks_train_and_are_evaluated_in_bfloat16_and_everything_else_is_float32():
    network = Noting()
    method, batches = METHODS["mean-teacher"], stream()
    state = _state(network)
    data = made_up(6, seed=1)
    trained = []

    def evaluate(state: TrainState) -> Evaluation:
        trained.extend(network.asked)
        error_rate(network, data, normalise=lambda images: images.float())
        return Evaluation(state.step, "test", 0.0, 0.0)

    train(
        state,
        method,
        SgdSpec(learning_rate=Constant(0.1)),
        batches,
        steps=2,
        seed=0,
        options=RunOptions(precision="bfloat16"),
        vitals=Vitals(Declared(n_labelled=9, labelled_share=0.25, exact=True, steps=2)),
        evaluate=evaluate,
        every=Intervals(evaluate=2),
    )
    assert trained == [True, True]
    assert network.asked[2:] == [True]
    tensors = [*state.student.parameters(), *state.memory.parameters(), *(p.grad for p in state.student.parameters())]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float32, torch.float64])
def test_costs_see_logits_that_bfloat16_does_not_round(given: torch.dtype):
    logits = torch.zeros(2, 3, dtype=given)
    expected = torch.float32 if given is torch.bfloat16 else given
    assert {output.dtype for output in (*both_outputs(logits), *both_outputs((logits, logits)))} == {expected}


@pytest.mark.parametrize("can", [True, False])
def test_network_that_cannot_compute_in_bfloat16_is_refused_in_one_line(can: bool):
    state, options = _state(Noting(can=can)), RunOptions(precision="bfloat16")
    with nullcontext() if can else pytest.raises(InputError, match="in bfloat16 here: mixed dtypes") as refused:
        check_passes(options, state, METHODS["mean-teacher"], stream())
    assert refused is None or "and more" not in str(refused.value)


class Scaled(nn.Module):
    """Gives small logits, in float16 where it is asked to, and multiplies them by a power of ten in some passes."""

    def __init__(self, powers: dict[int, float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.powers, self.n_passes = powers, 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_passes += self.training
        logits = 1e-3 * x.flatten(1)[:, :3] * self.weight
        factor = 10.0 ** self.powers.get(self.n_passes, 0)
        return logits.half() * factor if torch.is_autocast_enabled("cpu") else logits


def _scaled(powers: dict[int, float], steps: int, state: TrainState | None = None, **given: Any) -> TrainState:
    """In float16, on from `state`."""
    optim = SgdSpec(learning_rate=Constant(0.1))
    state = state or _state(Scaled(powers))
    train(
        state,
        METHODS["mean-teacher"],
        optim,
        stream(),
        steps=steps,
        seed=0,
        options=RunOptions(precision="float16"),
        vitals=Vitals(Declared(n_labelled=9, labelled_share=0.25, exact=True, steps=steps)),
        evaluate=lambda state: Evaluation(state.step, "test", 0.0, 0.0),
        every=Intervals(evaluate=2),
        **given,
    )
    return state


def _weights(state: TrainState) -> list[Tensor]:
    return [*state.student.state_dict().values(), *state.memory.state_dict().values()]


def test_a_step_that_overflows_in_float16_changes_nothing_and_is_counted():
    """Its gradients are those of logits that are multiplied by 1,000, times 65,536."""
    before = _scaled({3: 3}, 2)
    kept = [tensor.clone() for tensor in _weights(before)]
    after = _scaled({3: 3}, 3, before)
    assert all(map(torch.equal, _weights(after), kept))
    assert (after.step, after.overflows, after.scaler["scale"]) == (3, 1, 2.0**15)
    moved = _scaled({3: 3}, 4, after)
    assert not any(map(torch.equal, _weights(moved)[:1], kept))
    assert (moved.overflows, moved.scaler["scale"], moved.scaler["_growth_tracker"]) == (1, 2.0**15, 1)


def test_momentum_begins_with_the_first_step_that_does_not_overflow():
    """torch's fused SGD would begin it with whatever its memory held if a `GradScaler` left out the first step."""
    state = _scaled({1: 3}, 2)
    weight: Any = state.student.weight
    assert state.overflows == 1
    assert torch.equal(state.optimizer.state[weight]["momentum_buffer"], weight.grad)


def test_the_scale_of_float16_is_a_part_of_the_checkpoint(tmp_path: Path):
    """A run that is resumed after an overflow ends with the bytes of one that was not interrupted."""
    straight = _scaled({2: 3}, 6)
    checkpoints = Checkpoints(tmp_path, {"run": "this one"})
    _scaled({2: 3}, 2, checkpoints=checkpoints)
    resumed = _state(Scaled({}))
    checkpoints.restore(resumed)
    assert (resumed.overflows, resumed.scaler["scale"]) == (1, 2.0**15)
    _scaled({}, 6, resumed)
    assert all(map(torch.equal, _weights(resumed), _weights(straight)))
    assert (resumed.scaler, resumed.overflows) == (straight.scaler, straight.overflows)


def test_small_gradients_of_float16_reach_the_student_and_the_vitals():
    """Without the scale they would be zero: the smallest number of float16 is 6e-8."""
    state = _scaled(dict.fromkeys(range(1, 9), -8.0), 8)
    assert bool(state.student.weight.grad.any())
    assert all(reading["gradients"]["classification"] > 0 for reading in state.vitals["readings"])


def test_a_network_is_trained_in_float16_and_its_record_counts_the_overflows(tmp_path: Path):
    """With torch's own instructions, if this processor has them."""
    if (fault := half_fault("float16")) is not None:
        pytest.skip(f"float16 ends with {fault} here")
    whole = recipe(steps=6)
    given: Any = {"data": whole.data.source.load(tmp_path), "options": RunOptions(device="cpu", precision="float16")}
    outcome = run(whole, seed=0, out=tmp_path / "run", **given)
    assert outcome.record is not None
    assert outcome.record.environment["precision"] == "float16"
    assert outcome.record.environment["overflows"] == outcome.restored().overflows
    assert outcome.record.alarms == ()
