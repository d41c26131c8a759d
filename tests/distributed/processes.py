"""Functions in several processes that train together: forked from one that has imported everything, to save time."""

import json
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

    Args:
        function: of `cases`
        n: processes; a single one is started alone
        arguments: in JSON
        timeout: seconds that the processes wait for each other
    """
    script = "import sys; sys.path.insert(0, sys.argv[1]); import processes; processes.main(*sys.argv[2:])"
    with tempfile.TemporaryDirectory() as folder:
        words = (Path(__file__).parent, function, n, json.dumps(arguments), folder)
        done = run_script(script, *words, MEANTEACHER_TIMEOUT=str(timeout))
        assert done.returncode == 0, done.stderr[-5000:]
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(n)]


def main(function: str, size: str, arguments: str, folder: str) -> None:
    import cases

    n = int(size)
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(n):
        child = os.fork()
        if not child:
            if n > 1:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank)}
                os.environ |= {"LOCAL_WORLD_SIZE": str(n), "MEANTEACHER_STORE": f"{folder}/store"}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            try:
                found = getattr(cases, function)(*json.loads(arguments))
                (Path(folder) / str(rank)).write_text(json.dumps(found))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children))
