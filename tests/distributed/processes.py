"""Functions in several processes that train together: forked from one that has imported everything, to save time."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from support import PATIENCE, child_environment


def in_processes(function: str, n: int, *arguments: object, timeout: float = PATIENCE) -> list[Any]:
    """What `cases.FUNCTION(*arguments)` returns in each of n processes; if one fails or hangs, so does the test.

    Args:
        function: of `cases`
        n: processes; a single one is started alone
        arguments: in JSON
        timeout: seconds that the processes wait for each other
    """
    environment = child_environment(OMP_NUM_THREADS="1", MEANTEACHER_TIMEOUT=str(timeout))
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, function, str(n), json.dumps(arguments), folder]
        with subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as child:
            try:
                _, errors = child.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                raise
        assert child.returncode == 0, errors[-5000:]
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(n)]


def main(function: str, n: int, arguments: list[Any], folder: Path) -> int:
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
                (folder / str(rank)).write_text(json.dumps(getattr(cases, function)(*arguments)))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), Path(sys.argv[4])))
