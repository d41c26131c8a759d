"""Functions in several processes that are connected: forked from one that has imported everything, which saves time."""

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from support import child_environment

SECONDS = 240
"""A hard limit: whoever waits longer hangs."""


def in_processes(function: str, n: int, *arguments: object, seconds: float = SECONDS, timeout: float = 60) -> list[Any]:
    """What `cases.FUNCTION(*arguments)` returned in each of n processes that train together.

    Args:
        function: of `cases`
        n: processes; 1 runs it alone
        arguments: in JSON
        seconds: after which all are killed, and the test fails
        timeout: how long the processes wait for each other
    """
    environment = child_environment(OMP_NUM_THREADS="1", MEANTEACHER_TIMEOUT=str(timeout))
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    command = [sys.executable, __file__, function, str(n), json.dumps(arguments)]
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        printed, errors = child.communicate()
        raise AssertionError(f"{function} hangs in {n} processes:\n{errors[-3000:]}") from None
    assert child.returncode == 0, errors[-3000:]
    returned = dict(json.loads(line) for line in printed.splitlines() if line.startswith("["))
    return [returned[rank] for rank in range(n)]


def main(function: str, n: int, arguments: list[Any]) -> int:
    import cases

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(n):
        child = os.fork()
        if not child:
            if n > 1:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            try:
                value = getattr(cases, function)(*arguments)
                os.write(1, (json.dumps([rank, value]) + "\n").encode())
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
