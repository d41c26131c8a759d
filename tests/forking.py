"""Scripts in processes of their own, forked from one that has imported everything: importing torch takes seconds."""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from mutate import ASKED
from support import PATIENCE, child_environment

Done = subprocess.CompletedProcess[str]


def run_script(script: str, *arguments: object, cwd: Path | None = None, **variables: str) -> Done:
    """`python -c SCRIPT ARGUMENTS` in a process of its own, which may be killed or end as it likes.

    Unlike with `subprocess.run` the modules that `_serve` imports are there already. A test of what is imported needs
    an interpreter that is started anew.

    Args:
        script: Python
        arguments: `sys.argv[1:]`
        cwd: the current folder, this process's unless it is given
        variables: of the environment, in addition to this process's
    """
    return start_script(script, *arguments, cwd=cwd, **variables)[1]()


def start_script(
    script: str, *arguments: object, cwd: Path | None = None, **variables: str
) -> tuple[int, Callable[[], Done]]:
    """The id of such a process, and what waits for its end. There is one at a time."""
    words, environment = list(map(str, arguments)), child_environment(**variables)
    if sys.platform != "linux":  # elsewhere a forked process may not use all of the system's libraries
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen([sys.executable, "-c", script, *words], env=environment, cwd=cwd, **pipes)

        def communicated() -> Done:
            printed = child.communicate(timeout=PATIENCE)
            return Done([script, *words], child.returncode, *printed)

        return child.pid, communicated
    server, folder = _server(), tempfile.TemporaryDirectory()
    asked = {"script": script, "words": words, "cwd": str(cwd or Path.cwd()), "environment": environment}
    assert server.stdin is not None
    sys.audit(ASKED)
    server.stdin.write(json.dumps({**asked, "folder": folder.name}).encode() + b"\n")

    def ended() -> Done:
        with folder:
            code = _answer(server)
            return Done([script, *words], code, *(path.read_text("utf-8") for path in _files(folder.name)))

    return _answer(server), ended


def _answer(server: "subprocess.Popen[bytes]") -> int:
    assert server.stdout is not None
    in_time, _, _ = select.select([server.stdout], [], [], PATIENCE)
    answer = server.stdout.readline() if in_time else b""
    if not answer:
        _end(server)
        _server.cache_clear()
        raise AssertionError("The process hangs." if not in_time else "The process that forks the others has ended.")
    return int(answer)


def _files(folder: str) -> tuple[Path, Path]:
    return Path(folder) / "stdout", Path(folder) / "stderr"


@cache
def _server() -> "subprocess.Popen[bytes]":
    import torch

    # As many threads as here, where results are compared to the byte; numpy would start its own at once.
    variables = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        # A mutant replaces its module before the tests' own modules import it.
        [sys.executable, "-c", "import mutate; mutate.replace_module(); import forking; forking._serve()"],
        env=child_environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # a line that was read along with another would not be waited for
        start_new_session=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[bytes]") -> None:
    """With all processes that it has forked."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def _serve() -> None:
    """Fork a process for every line of standard input, and answer with its id and then its exit code.

    The code is negative for a signal.
    """
    import pytest  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401  # which the first step of an optimiser imports

    import meanteacher.api
    import meanteacher.cli.app
    import meanteacher.cli.run
    import meanteacher.recipes  # noqa: F401

    threads = [path.name for path in Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, f"a process with the threads {threads} cannot be forked"
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(_run(**json.loads(line)))
        os.write(1, f"{child}\n".encode())
        os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())


def _run(script: str, words: list[str], cwd: str, environment: dict[str, str], folder: str) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(_files(folder), start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv, sys.path[0] = ["-c", *words], ""
    code: Any = 0
    try:
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
