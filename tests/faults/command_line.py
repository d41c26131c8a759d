"""Real processes of the command line, forked from one that has imported everything: a start takes no seconds.

And what a run leaves in its folder, for comparison.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meanteacher.cli import main
from support import PATIENCE

_POLL_SECONDS = 0.002


class UnexpectedError(Exception):
    """A fault had another consequence than expected."""


def expect(condition: object, otherwise: str) -> None:
    if not condition:
        raise UnexpectedError(otherwise)


@dataclass(slots=True)
class Process:
    """`meanteacher` with these words."""

    pid: int
    log: Path
    """What it prints."""
    code: int | None = None
    """Its exit code, negative for a signal; None while it runs."""

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self) -> int:
        wait_until(lambda: self.poll() is not None, self)
        assert self.code is not None
        return self.code

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def ends_with(self, code: int, words: str = "") -> None:
        """Expect this exit code, these words, and no traceback."""
        expect(self.wait() == code, f"exit code {self.code} instead of {code}: {self.printed()[-300:]}")
        expect("Traceback" not in self.printed(), f"a traceback: {self.printed()[-300:]}")
        expect(words in self.printed(), f"no word of {words!r}: {self.printed()[-300:]}")


def wait_until(condition: Callable[[], object], process: Process | None = None) -> None:
    """Raises `UnexpectedError` where that takes too long, and ends the process."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends:
            if process is not None:
                process.send(signal.SIGKILL)
            raise UnexpectedError(f"still waiting after {PATIENCE} s")
        time.sleep(_POLL_SECONDS)


def start(*words: object, log: Path, before: Callable[[], None] = lambda: None, output: int | None = None) -> Process:
    """Fork a process that runs the command line.

    Args:
        words: after `meanteacher`
        log: file that standard output and errors are appended to
        before: called in the new process first; it injects the fault
        output: a file descriptor to write to in place of the log
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Process(pid, log)
    code = 1
    try:
        _redirect(log, output)
        before()
        sys.argv = ["meanteacher", *map(str, words)]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def _redirect(log: Path, output: int | None) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) if output is None else output
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(number, target)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))


def is_single_threaded() -> bool:
    """Whether it is safe to fork this process."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def metrics(out: Path) -> list[dict[str, Any]]:
    """The entries of metrics.jsonl; a last line that is not complete is left out."""
    try:
        text = (out / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def result(out: Path) -> dict[str, Any]:
    """What must be the same to the byte, however often a run was interrupted."""
    record = json.loads((out / "record.json").read_text(encoding="utf-8"))
    last = out / "checkpoints" / (out / "checkpoints" / "last").read_text(encoding="utf-8").strip()
    weights = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last.glob("*.safetensors")}
    evaluations = [entry for entry in metrics(out) if entry["event"] == "evaluation"]
    steps = [(entry["event"], entry["step"]) for entry in metrics(out) if entry["event"] != "log"]
    about = {field: record[field] for field in ("curve", "errors", "vitals", "alarms", "split_fingerprint", "steps")}
    return {**weights, **about, "evaluations": evaluations, "events": steps}


def is_same(out: Path, straight: dict[str, Any]) -> None:
    """Expect the result of a run that nothing happened to, and no file that only a killed process leaves."""
    found = result(out)
    differing = [name for name in straight if found.get(name) != straight[name]]
    expect(not differing, f"other bytes in {', '.join(differing)}")
    left = [path.name for path in out.rglob(".*") if path.name != ".lock"]
    expect(not left, f"{', '.join(left)} left behind")
