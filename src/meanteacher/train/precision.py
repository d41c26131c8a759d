"""In which precision the networks compute; their weights, the costs and the average are always float32."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from meanteacher.train.probe import bfloat16_fault

Precision = Literal["float32", "bfloat16"]
WantedPrecision = Literal["auto", "float32", "bfloat16"]
"""auto: bfloat16 where there is hardware for it that can be relied on, which is a CUDA GPU of 2020 or later."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Convolutions and products inside compute in `precision`. Gradients do by themselves, after the forward pass."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def choose_precision(
    wanted: WantedPrecision, device: torch.device, announce: Callable[[str], None] = lambda line: None
) -> Precision:
    """What was wanted, or float32 with a line that says why, where bfloat16 would end the process."""
    if wanted == "auto":
        return "bfloat16" if _has_bfloat16(device) else "float32"
    if wanted == "bfloat16" and device.type == "cpu" and (fault := bfloat16_fault()) is not None:
        announce(f"bfloat16 ends a child process with {fault} here; using float32.")
        return "float32"
    return wanted


def _has_bfloat16(device: torch.device) -> bool:
    """Whether it is a GPU with instructions for it: older ones of NVIDIA's compute it too, but slowly, in float32."""
    if device.type != "cuda":
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
