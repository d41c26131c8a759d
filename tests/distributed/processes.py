"""Functions in several processes that train together: forked from one that has imported everything, to save time."""

import faulthandler
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from forking import run_script
from support import PATIENCE


def in_processes(function: str, n: int, *arguments: object) -> list[Any]:
    """What `cases.FUNCTION(*arguments)` returns in each of n processes; if one fails or hangs, so does the test.

    One process is started alone.
    """
    script = "import sys; sys.path.insert(0, sys.argv[1]); import processes; processes.main(*sys.argv[2:])"
    with tempfile.TemporaryDirectory() as folder:
        torch.save(arguments, f"{folder}/arguments")
        done = run_script(script, Path(__file__).parent, function, n, folder, MEANTEACHER_TIMEOUT=str(PATIENCE))
        assert done.returncode == 0, done.stderr
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(n)]


def main(function: str, n: str, folder: str) -> None:
    import cases

    torch.set_num_threads(1)
    arguments = torch.load(f"{folder}/arguments", weights_only=False)
    failed = 0
    children = set()
    for rank in range(int(n)):
        child = os.fork()
        if not child:
            faulthandler.dump_traceback_later(0.9 * PATIENCE, exit=True)  # one that hangs says where
            faulthandler.register(signal.SIGALRM, chain=True)
            if n != "1":
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": n, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": n}
                os.environ |= {"MEANTEACHER_STORE": f"{folder}/store"}
            try:
                torch.save(getattr(cases, function)(*arguments), f"{folder}/{rank}")
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.add(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        failed |= status
        for other in children if status else ():
            os.kill(other, signal.SIGALRM)  # it would wait for the one that has failed, and says where it was
    sys.exit(failed != 0)
