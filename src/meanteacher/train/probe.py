"""Whether bfloat16 works on this CPU, found out where it can do no harm.

Some virtual machines advertise matrix instructions that they do not have: the first bfloat16 convolution then ends the
process with 'Illegal instruction', which nothing can catch. So a child process tries it.
"""

import subprocess
import sys

_SECONDS = 300
"""To wait for the child, which imports torch: a moment on a quiet machine, minutes on a crowded one."""

# As many channels as a matrix instruction takes at once, so that it is used where there is one.
_SCRIPT = """
import torch
images = torch.ones(4, 32, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
network = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 32))
with torch.autocast("cpu", torch.bfloat16):
    output = network(images)
output.float().sum().backward()
"""


def bfloat16_fault() -> str | None:
    """How a child process ended that passed forward and backward in bfloat16; None where nothing is wrong."""
    try:
        child = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"a timeout of {_SECONDS} s"
    if child.returncode == 0:
        return None
    return f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
