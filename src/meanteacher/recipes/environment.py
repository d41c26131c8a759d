"""Where a number was made: versions, commit, machine."""

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from meanteacher.devices import CPU, device_name


def environment(device: torch.device = CPU) -> dict[str, str | int | None]:
    """What may explain why the same recipe gives another number elsewhere.

    Args:
        device: that computed
    """
    return {
        "meanteacher": version("meanteacher"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "commit": _commit(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device.type,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Of the source tree this package runs from, with "-dirty" where files are changed; None if installed."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        listed = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name],
            capture_output=True,
            timeout=10,
            check=False,
        )
        if listed.returncode:
            return None  # some other repository around an installed package
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
