"""How the steps of a run are computed: compiled or not, in float32 or bfloat16."""

import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch._functorch.config as functorch_config
from torch import nn

from meanteacher.core import Batch, InputError, Method, Stream, check_choice
from meanteacher.devices import wait_for
from meanteacher.seeding import isolated_global_randomness
from meanteacher.train.checkpoint import TrainState

Precision = Literal["float32", "bfloat16"]
WantedPrecision = Literal["auto", "float32", "bfloat16"]
"""auto: bfloat16 on a CUDA GPU of 2020 or later, which has instructions for it; float32 elsewhere."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """A context in which convolutions and matrix products compute in `precision`; their gradients do, too."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def choose_precision(
    wanted: WantedPrecision, device: torch.device, announce: Callable[[str], None] = lambda line: None
) -> Precision:
    """The wanted precision, or float32 with a line that says why, where bfloat16 would end the process."""
    if wanted == "auto":
        return "bfloat16" if _has_bfloat16(device) else "float32"
    if wanted == "bfloat16" and device.type == "cpu" and (fault := bfloat16_fault()) is not None:
        announce(f"bfloat16 ends a child process with {fault} here; using float32.")
        return "float32"
    return wanted


def _has_bfloat16(device: torch.device) -> bool:
    """Whether it is a GPU with bfloat16 instructions. Older ones of NVIDIA emulate it, slowly."""
    if device.type != "cuda":
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


_SECONDS = 300
"""To wait for the child, which imports torch: seconds on an idle machine, minutes on a busy one."""

# Enough channels for the matrix instructions of the processor to be used where there are any.
_SCRIPT = """
import torch
images = torch.ones(4, 32, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
network = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 32))
with torch.autocast("cpu", torch.bfloat16):
    output = network(images)
output.float().sum().backward()
"""


def bfloat16_fault() -> str | None:
    """How a child process failed that ran forward and backward in bfloat16; None if it did not."""
    try:
        child = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"a timeout of {_SECONDS} s"
    if child.returncode == 0:
        return None
    return f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"


WantedCompile = Literal["auto", "yes", "no"]
"""auto: if the time for compiling is saved again in the rest of the run."""

_WORTH_TRYING = 600.0
"""Seconds of training left from which a minute or two of compiling can be worth it."""
_MARGIN = 0.03
"""Share of the time per step: a smaller gain is noise."""
_ROUNDS = 7
_BACKEND = "inductor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How the steps of a run are computed. A resumed run keeps it, because another way rounds differently."""

    compiled: bool = False
    precision: Precision = "float32"
    reason: str = "the default"
    eager_ms: float | None = None
    """Time per step of the forward and backward passes without compiling; None where they were not timed."""
    compiled_ms: float | None = None
    seconds: float = 0.0
    """Spent on measuring."""
    micro_batch: int | None = None
    """Rows that a process computes at a time, to need less memory; None for all."""
    sync_batch_norm: bool = False
    """Whether the batch statistics of several processes are those of the whole batch."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, get_args(Precision))
        if self.micro_batch is not None:
            if self.micro_batch < 1:
                raise InputError(f"A part of a batch has at least one row; got a micro-batch of {self.micro_batch}.")
            if self.compiled:
                raise InputError("A network that is computed in parts is not compiled: leave out one of the two.")
            if self.sync_batch_norm:
                raise InputError(
                    "Batch statistics of the whole batch cannot be computed in parts: leave out the micro-batch or the "
                    "synchronised batch norm."
                )

    def described(self) -> dict[str, str]:
        """What may explain different results: for a record's environment."""
        described = {"compiled": "yes" if self.compiled else "no", "precision": self.precision}
        if self.micro_batch is not None:
            described["micro_batch"] = str(self.micro_batch)
        if self.sync_batch_norm:
            described["batch_norm"] = "synchronised"
        return described


def choose_speed(
    state: TrainState,
    method: Method,
    stream: Stream,
    *,
    steps: int,
    compiled: WantedCompile,
    precision: WantedPrecision,
    announce: Callable[[str], None],
) -> Speed:
    """The fastest way from `state` to step `steps`. Measured on copies: the run and the global generator do not change.

    Args:
        state: of the run
        method: whose passes are timed
        stream: its first batch is used for the measurement
        steps: of the whole run
        compiled: "yes" compiles even without a gain, if the network can be compiled
        precision: "auto" depends on the device
        announce: receives one line about the result, where something was measured
    """
    check_choice("compiled", compiled, get_args(WantedCompile))
    check_choice("precision", precision, get_args(WantedPrecision))
    began = time.perf_counter()
    batch = stream[0]
    used = choose_precision(precision, batch.labels.device, announce)
    if used == "bfloat16":
        try:
            _Passes(state, method, batch, used).seconds()
        except Exception as error:  # a network may mix precisions in any way
            announce(f"bfloat16 fails in this network ({_in_short(error)}); using float32.")
            used = "float32"
    speed = Speed(precision=used)
    if compiled != "no":
        eager = _Passes(state, method, batch, used)
        eager.seconds()  # the first pass allocates memory
        pace = statistics.median(eager.seconds() for _ in range(3))
        left = pace * (steps - state.step)
        speed = replace(speed, eager_ms=_ms(pace), reason=f"too short for compiling to pay: about {left:.0f} s")
        if compiled == "yes" or left >= _WORTH_TRYING:
            fast = _Passes(state, method, batch, used)
            speed = _compared(speed, eager, fast, at_any_pace=compiled == "yes")
            announce(f"{speed.reason} ({time.perf_counter() - began:.0f} s spent on measuring).")
    return replace(speed, seconds=round(time.perf_counter() - began, 1))


def check_speed(speed: Speed, state: TrainState, method: Method, stream: Stream) -> None:
    """Check that a run which was started with this speed can continue with it.

    Raises:
        InputError: it was compiled and cannot be compiled here. Without compiling it would round differently.
    """
    if not speed.compiled:
        return
    try:
        _Passes(state, method, stream[0], speed.precision).compile()
    except Exception as error:
        raise InputError(
            f"This run was started compiled, and compiling fails here: {_in_short(error)}. "
            "Resume it on a machine like the one it was started on, or start it again in another folder."
        ) from error
    finally:
        torch.compiler.reset()


def compile_networks(student: nn.Module, predictor: nn.Module) -> None:
    """Compile both in place, each at its first pass: names, copies and saved weights do not change.

    Whole graphs of fixed shapes only. What is compiled is then a function of the network alone, never of what the
    process compiled before, and a resumed run uses the same kernels as one that was not interrupted.
    """
    functorch_config.donated_buffer = False  # the vitals run backward through the graph of a step several times
    for network in (student, predictor):
        network.compile(backend=_BACKEND, fullgraph=True, dynamic=False)


class _Passes:
    """The forward and backward passes of a method's step, on copies."""

    def __init__(self, state: TrainState, method: Method, batch: Batch, precision: Precision) -> None:
        self.student, self.memory = copy.deepcopy((state.student, state.memory))
        self.method, self.batch, self.precision = method, batch, precision

    def compile(self) -> None:
        compile_networks(self.student, self.method.predictor(self.student, self.memory))
        self.seconds()

    def seconds(self) -> float:
        device = self.batch.labels.device
        with isolated_global_randomness():
            wait_for(device)
            began = time.perf_counter()
            with autocast(self.precision, device):
                output = self.method.forward(self.student, self.memory, self.batch, 0)
            output.total.backward()
            wait_for(device)
            took = time.perf_counter() - began
        for module in (self.student, self.memory):
            module.zero_grad()
        return took


def _compared(speed: Speed, eager: _Passes, fast: _Passes, *, at_any_pace: bool) -> Speed:
    try:
        fast.compile()
        fast.seconds()
        rounds = [(eager.seconds(), fast.seconds()) for _ in range(_ROUNDS)]
    except Exception as error:  # for instance no compiler or an unknown operation: the run continues without
        return replace(speed, reason=f"Not compiled, because compiling fails here: {_in_short(error)}")
    finally:
        # The compiled copies would count towards the limit of recompilations, but not in a resumed run.
        torch.compiler.reset()
    before, after = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
    # In pairs, so that other load on the machine affects both alike.
    pays = statistics.median(compiled / plain for plain, compiled in rounds) < 1 - _MARGIN
    compiled = pays or at_any_pace
    found = f"{_ms(after):g} ms per step compiled, {_ms(before):g} without"
    return replace(
        speed,
        compiled=compiled,
        eager_ms=_ms(before),
        compiled_ms=_ms(after),
        reason=f"{'Compiled' if compiled else 'Not compiled'}: {found}",
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _in_short(error: Exception) -> str:
    """The first informative line; some errors begin with the name of what raised them."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.endswith(":")), type(error).__name__)[:200].rstrip(".")
