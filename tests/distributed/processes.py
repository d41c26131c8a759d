"""Functions in several processes that train together: forked from one that has imported everything, to save time."""

import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from forking import run_script
from support import PATIENCE


def in_processes(function: str, n: int, *arguments: object, timeout: float = PATIENCE) -> list[Any]:
    """What `cases.FUNCTION(*arguments)` returns in each of n processes; if one fails or hangs, so does the test.

    One process is started alone. Several wait for each other for `timeout` seconds.
    """
    script = "import sys; sys.path.insert(0, sys.argv[1]); import processes; processes.main(*sys.argv[2:])"
    with tempfile.TemporaryDirectory() as folder:
        torch.save(arguments, f"{folder}/arguments")
        done = run_script(script, Path(__file__).parent, function, n, folder, MEANTEACHER_TIMEOUT=str(timeout))
        assert done.returncode == 0, done.stderr[-5000:]
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(n)]


def main(function: str, n: str, folder: str) -> None:
    import cases

    torch.set_num_threads(1)
    arguments = torch.load(f"{folder}/arguments", weights_only=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(int(n)):
        child = os.fork()
        if not child:
            if n != "1":
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": n, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": n}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ |= {"MEANTEACHER_STORE": f"{folder}/store"}
            try:
                torch.save(getattr(cases, function)(*arguments), f"{folder}/{rank}")
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children))
