"""Devices: the choice of one by name, and the differences between them."""

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from meanteacher.core import InputError

VARIABLE = "MEANTEACHER_DEVICE"
"""Environment variable that sets the device for "auto"."""
CPU = torch.device("cpu")


def choose_device(name: str = "auto") -> torch.device:
    """The device with this name: "cpu", "cuda", "cuda:N" or "mps", or "auto" for a GPU if there is one.

    An InputError, which lists the devices of this machine, is raised if the name is unknown or there is no such device.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    asked = name
    if name == "auto":
        name = os.environ.get(VARIABLE) or "auto"
        asked = f"{name} (device auto, set by {VARIABLE}={name})" if name != "auto" else name
    n_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if n_cuda else "mps" if has_mps else "cpu"
    if name == "cpu" or (name == "mps" and has_mps):
        return torch.device(name)
    if name == "cuda" and n_cuda:
        return torch.device("cuda", torch.cuda.current_device())
    number = re.fullmatch(r"cuda:(\d+)", name)
    if number and int(number[1]) < n_cuda:
        return torch.device("cuda", int(number[1]))
    if number or name in ("cuda", "mps"):
        hint = "" if n_cuda or has_mps else " A GPU needs a build of torch for it: see the README."
        raise InputError(f"There is no device {asked} here. Available: {_available(n_cuda, has_mps)}.{hint}")
    raise InputError(
        f"A device is auto, cpu, cuda, cuda:N or mps; got {asked!r}. Available: {_available(n_cuda, has_mps)}."
    )


def same_kind(wanted: str, kind: str, folder: Path) -> torch.device:
    """The device to resume `folder` on: one of the kind that its run was started on, since others round differently.

    "auto" takes a device of this kind. An InputError names the folder if `wanted` is of another kind, or if there is
    none.
    """
    try:
        device = choose_device(kind if wanted == "auto" else wanted)
    except InputError as error:
        raise InputError(
            f"{folder} was started on {kind}. {error} Resume it on a machine like that one, or start again in another "
            "folder."
        ) from error
    if device.type != kind:
        raise InputError(
            f"{folder} was started on {kind}, and {device.type} rounds differently, so it would not be the same run. "
            f"Resume it with --device {kind}, or start again in another folder."
        )
    return device


def device_name(device: torch.device) -> str:
    """The name of the hardware, for instance "NVIDIA A100-SXM4-40GB"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    # Apple's GPUs are part of the processor and have its name.
    return _processor()


def _available(n_cuda: int, has_mps: bool) -> str:
    devices = [torch.device("cuda", number) for number in range(n_cuda)]
    devices += [torch.device("mps")] if has_mps else []
    return ", ".join(f"{device} ({device_name(device)})" for device in [*devices, CPU])


@cache
def _processor() -> str:
    """The processor's name as the system reports it, or else its architecture."""
    try:
        if platform.system() == "Darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def free_bytes(device: torch.device) -> float:
    """Free memory of a GPU in bytes; infinite on a CPU."""
    if device.type == "cuda":
        # torch reuses memory that earlier runs of this process have freed, though the system counts it as used.
        left = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + left
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return float("inf")


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work, for instance before the time is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def is_readable(x: Tensor) -> bool:
    """Whether reading a value waits for nothing: it is a plain tensor in the memory of the CPU."""
    return type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()


def in_double(x: Tensor) -> Tensor:
    """The tensor in float64, on its device; on the CPU for Apple's GPUs, which have no float64."""
    return (x.cpu() if x.device.type == "mps" else x).double()
