"""How a run is executed, and not what it computes: device, compilation, precision, parts of a batch."""

import copy
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch._functorch.config as functorch_config
from torch import nn

from meanteacher.core import InputError, Method, Stream, check_choice
from meanteacher.seeding import isolated_global_randomness
from meanteacher.train.checkpoint import TrainState

Precision = Literal["float32", "bfloat16", "float16"]
_BACKEND = "inductor"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run is executed. A resumed run keeps the options it was started with: others would round differently.

    >>> RunOptions(device="cpu", micro_batch=8).flags()
    ['--device', 'cpu', '--micro-batch', '8']
    """

    device: str = "auto"
    """"auto" takes a GPU if there is one; a resumed run takes the kind of device that it was started on."""
    compile: bool = False
    """Whether torch compiles the networks. That takes a minute or more, and gains nothing on a CPU (decision 10)."""
    precision: Precision | None = None
    """Number format of the networks' passes; None for bfloat16 on a CUDA GPU that supports it, float32 elsewhere. In
    float16, for older GPUs, the cost is scaled, and a step whose gradients overflow is left out and counted."""
    micro_batch: int | None = None
    """Rows that a process computes at a time, to need less memory; None for all."""
    sync_batch_norm: bool = False
    """Whether the batch statistics of several processes are those of the whole batch."""

    def __post_init__(self) -> None:
        if self.precision is not None:
            check_choice("precision", self.precision, get_args(Precision))
        if self.compile and self.sync_batch_norm:
            raise InputError("Batch statistics of several processes are not compiled: leave out one of the two.")
        if self.micro_batch is not None:
            if self.micro_batch < 1:
                raise InputError(f"A part of a batch has at least one row; got a micro-batch of {self.micro_batch}.")
            if self.compile:
                raise InputError("A network that is computed in parts is not compiled: leave out one of the two.")
            if self.sync_batch_norm:
                raise InputError(
                    "Batch statistics of the whole batch cannot be computed in parts: leave out the micro-batch or the "
                    "synchronised batch norm."
                )

    def on(self, device: torch.device) -> "RunOptions":
        """The options of a run that starts on this device: its kind, and the precision that the default stands for."""
        precision = self.precision or ("bfloat16" if _has_bfloat16(device) else "float32")
        if precision != "float32" and device.type == "cpu" and (fault := half_fault(precision)) is not None:
            raise InputError(
                f"{precision} ends a child process with {fault} on this processor. Use float32 (--precision)."
            )
        return replace(self, device=device.type, precision=precision)

    def described(self) -> dict[str, str | bool]:
        """What may explain different results: for a record's environment."""
        described: dict[str, str | bool] = {"compiled": self.compile, "precision": self.precision or "float32"}
        if self.micro_batch is not None:
            described["micro_batch"] = str(self.micro_batch)
        if self.sync_batch_norm:
            described["batch_norm"] = "synchronised"
        return described

    def flags(self) -> list[str]:
        """The options as words of `meanteacher run`."""
        words = [] if self.device == "auto" else ["--device", self.device]
        words += ["--compile"] if self.compile else []
        words += [] if self.precision is None else ["--precision", self.precision]
        words += [] if self.micro_batch is None else ["--micro-batch", str(self.micro_batch)]
        return words + (["--sync-batch-norm"] if self.sync_batch_norm else [])


DEFAULT = RunOptions()


def autocast(precision: Precision | None, device: torch.device) -> AbstractContextManager[object]:
    """A context in which convolutions and matrix products compute in `precision`; their gradients do, too."""
    return nullcontext() if precision in {None, "float32"} else torch.autocast(device.type, getattr(torch, precision))


def gradient_scaler(
    precision: Precision | None, device: torch.device, state: Mapping[str, Any]
) -> torch.amp.GradScaler:
    """Multiplies the cost of a float16 step, whose small gradients would be zero; inactive in other precisions."""
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")
    if state:
        scaler.load_state_dict(dict(state))
    return scaler


def compile_networks(student: nn.Module, predictor: nn.Module) -> None:
    """Compile both in place, each at its first pass: names, copies and saved weights do not change.

    Whole graphs of fixed shapes only. What is compiled is then a function of the network alone, never of what the
    process compiled before, and a resumed run uses the same kernels as one that was not interrupted.
    """
    functorch_config.donated_buffer = False  # the vitals run backward through the graph of a step several times
    for network in (student, predictor):
        network.compile(backend=_BACKEND, fullgraph=True, dynamic=False)


def check_passes(
    options: RunOptions, state: TrainState, method: Method, stream: Stream, rows: slice = slice(None)
) -> None:
    """Try the passes of a step on copies, if they are compiled or in 16 bits, which not every network supports.

    The views of the stream have the rows `rows` of a batch. Neither the run nor the global generator changes.
    """
    half = [f"in {options.precision}"] * (options.precision not in {None, "float32"})
    if not options.compile and not half:
        return
    batch = stream[0]
    batch = replace(batch, labels=batch.labels[rows], index=batch.index[rows])
    student, memory = copy.deepcopy((state.student, state.memory))
    try:
        if options.compile:
            compile_networks(student, method.predictor(student, memory))
        with isolated_global_randomness():
            with autocast(options.precision, batch.labels.device):
                output = method.forward(student, memory, batch, 0)
            output.total.backward()
    except Exception as error:  # for instance no C++ compiler, an operation that cannot be traced, mixed precisions
        how = " and ".join(["compiled"] * options.compile + half)
        raise InputError(
            f"This network cannot be trained {how} here: {_in_short(error)}. Start the run with --no-compile "
            "--precision float32. A run that was started otherwise is resumed on a machine like its first one."
        ) from error
    finally:
        if options.compile:
            # The compiled copies would count towards the limit of recompilations.
            torch.compiler.reset()


def _has_bfloat16(device: torch.device) -> bool:
    """Whether it is a GPU with bfloat16 instructions. Older ones of NVIDIA emulate it, slowly."""
    if device.type != "cuda":
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


_SECONDS = 300
"""To wait for the child, which imports torch: seconds on an idle machine, minutes on a busy one."""

# Enough channels for the matrix instructions of the processor to be used if there are any.
_SCRIPT = """
import sys, torch
images = torch.ones(4, 32, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
network = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 32))
with torch.autocast("cpu", getattr(torch, sys.argv[1])):
    output = network(images)
output.float().sum().backward()
"""


def half_fault(precision: Precision) -> str | None:
    """How a child process failed that ran forward and backward in 16 bits; None if it did not."""
    words = [sys.executable, "-c", _SCRIPT, precision]
    try:
        child = subprocess.run(words, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"a timeout of {_SECONDS} s"
    if child.returncode == 0:
        return None
    return f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"


def _in_short(error: Exception) -> str:
    """The first informative line; some errors begin with the name of what raised them."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.endswith(":")), type(error).__name__)[:200].rstrip(".")
