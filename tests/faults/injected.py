"""Faults, injected into real processes of the command line: what is expected of each, and what is seen.

`make faults` injects all of them and writes docs/reliability.md; the tests inject a part, with fewer kills.
"""

import ctypes
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import SplitResult, urlsplit

import torch
import typer
from command_line import (
    Process,
    UnexpectedError,
    expect,
    is_same,
    is_single_threaded,
    metrics,
    result,
    start,
    wait_until,
)
from PIL import Image
from safetensors.torch import load_file

from meanteacher.cli.app import app
from meanteacher.core import Problem
from meanteacher.data.shards import Shards
from meanteacher.data.toy import Moons
from meanteacher.distributed import STORE_VARIABLE
from meanteacher.experiment.run import environment
from meanteacher.files.images import decode
from meanteacher.models import FastNetSpec
from meanteacher.paper.layout import TABLES, Table
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.train import checkpoint
from meanteacher.views import PerImage
from shard_support import write_tar
from support import PATIENCE, child_environment
from tiff_support import tiled_tiff

SHORT = ("--set", "steps=24", "--set", "evaluate_every=6", "--set", "data.validation=0.1", "--no-compile")
"""Of two moons: four checkpoints within a fraction of a second, some of them the best so far."""
METHODS = ("mean-teacher", "temporal-ensembling", "improved-gan")
"""With the average of a network, with targets for every example, and with a second network that is trained."""
NOBODY = 65534
NAMELESS = 54321
"""A user without an entry in the list of users, and so without a home folder."""
RECIPES = """
from meanteacher.recipes import RECIPES
from meanteacher.schedules import Constant, StepChange
from meanteacher.train import AdamSpec

diverging = RECIPES["moons/mean-teacher"].varied(
    steps=24,
    evaluate_every=6,
    optim=AdamSpec(
        learning_rate=StepChange(first=0.01, then=float("inf"), at=15), beta1=Constant(0.9), beta2=Constant(0.99)
    ),
)
"""


@dataclass(slots=True)
class Place:
    """A folder for the runs of one fault, and how thorough to be."""

    folder: Path
    quick: bool
    n: int = 0
    straight: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """words -> the result of a run that nothing happened to"""

    def out(self) -> Path:
        self.n += 1
        return self.folder / f"run-{self.n}"

    def start(self, *words: object, out: Path, **options: Any) -> Process:
        self.n += 1
        return start(*words, "--out", out, log=self.folder / f"{self.n}.log", **options)

    def run(self, out: Path, method: str = "mean-teacher", *more: str, **options: Any) -> Process:
        """The same command line starts the run and continues it."""
        return self.start("run", f"moons/{method}", *SHORT, *more, "--start-or-resume", out=out, **options)

    def expected(self, method: str = "mean-teacher", *more: str) -> Any:
        if (method, *more) not in self.straight:
            out = self.out()
            self.run(out, method, *more).ends_with(0)
            self.straight[method, *more] = result(out)
        return self.straight[method, *more]

    def ends_the_same(self, out: Path, method: str = "mean-teacher", *more: str) -> None:
        self.run(out, method, *more).ends_with(0, "Complete.")
        is_same(out, self.expected(method, *more))


class Points:
    """The points of a checkpoint write at which the disk changes: before each change, and within each file."""

    def __init__(self, kill_at: int | None = None, note: Path | None = None) -> None:
        self.n, self.kill_at, self.note = 0, kill_at, note
        self.inside = False

    def install(self) -> None:
        sys.addaudithook(self._on_event)
        for owner, name in ((checkpoint, "save_model"), (torch, "save")):
            setattr(owner, name, partial(self._write_half, getattr(owner, name)))
        real_save, real_fsync = checkpoint.Checkpoints.save, os.fsync

        def save(*given: Any) -> Path:
            self.inside = True
            try:
                return real_save(*given)
            finally:
                self.inside = False
                if self.note is not None:
                    self.note.write_text(str(self.n))

        def fsync(descriptor: int) -> None:
            self._point()
            real_fsync(descriptor)

        checkpoint.Checkpoints.save, os.fsync = save, fsync  # type: ignore[method-assign]

    def _point(self, half: Path | None = None) -> None:
        if self.inside:
            self.n += 1
            if self.n == self.kill_at:
                if half is not None:
                    os.truncate(half, half.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)

    def _on_event(self, event: str, given: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(given[2], int) and given[2] & os.O_CREAT
        if opens or event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}:
            self._point()

    def _write_half(self, write: Callable[..., None], value: object, path: str | Path) -> None:
        """The libraries write without Python: the file is cut in half as if they had been killed in the middle."""
        write(value, path)
        self._point(Path(path))


def killed_in_a_checkpoint_write(at: Place) -> str:
    counted = at.out()
    note = at.folder / "points"
    at.run(counted, before=Points(note=note).install).ends_with(0)
    n_points = int(note.read_text())
    expect(n_points > 60, f"only {n_points} points")
    chosen = range(1, n_points + 1, 23 if at.quick else 1)
    kills = 0
    for point in chosen:
        out = at.out()
        # The second process resumes, and is killed while it writes over what the first one left.
        for kill_at in (point, 1 + point % 40):
            process = at.run(out, before=Points(kill_at).install)
            if process.wait() == -signal.SIGKILL:
                kills += 1
            else:
                expect(kill_at != point, f"point {point} was not reached")
                process.ends_with(0)
        at.ends_the_same(out)
        shutil.rmtree(out)
    return f"{n_points} points in 4 writes, {kills} kills: {len(chosen)} of {len(chosen)} runs end with the same bytes"


def killed_anywhere(method: str, at: Place) -> str:
    began = time.perf_counter()
    at.expected(method)
    seconds = time.perf_counter() - began
    draws = random.Random(method)
    n, steps = (3 if at.quick else 50), []
    while len(steps) < n:
        out = at.out()
        process = at.run(out, method)
        time.sleep(draws.uniform(0, seconds))
        process.send(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            steps.append(max((entry["step"] for entry in metrics(out)), default=0))
            at.ends_the_same(out, method)
        shutil.rmtree(out, ignore_errors=True)
    return f"{n} of {n} runs end with the same bytes; killed after step {min(steps)} to {max(steps)} of 24"


def killed_rank(at: Place) -> str:
    """Two processes as torchrun starts them. One is killed; torchrun then ends the other and starts both again."""

    def ranks(out: Path) -> list[Process]:
        at.n += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            STORE_VARIABLE: str(at.folder / f"store-{at.n}"),
        }
        size = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
        each = [shared | size | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(2)]
        return [at.run(out, before=partial(os.environ.update, variables)) for variables in each]

    def complete(out: Path) -> float:
        began = time.perf_counter()
        for process in ranks(out):
            process.ends_with(0)
        return time.perf_counter() - began

    straight = at.out()
    seconds, expected = complete(straight), result(straight)
    draws, n, steps = random.Random(0), 2 if at.quick else 20, []
    while len(steps) < n:
        out = at.out()
        both = ranks(out)
        draws.shuffle(both)
        time.sleep(draws.uniform(0, seconds))
        codes = []
        for process in both:
            process.send(signal.SIGKILL)
            codes.append(process.wait())
            time.sleep(draws.uniform(0, 0.1))
        if -signal.SIGKILL in codes and not (out / "record.json").exists():
            steps.append(max((entry["step"] for entry in metrics(out)), default=0))
            complete(out)
            is_same(out, expected)
        shutil.rmtree(out, ignore_errors=True)
    return f"{n} of {n} runs end with the same bytes; killed after step {min(steps)} to {max(steps)} of 24"


def killed_fit(at: Place) -> str:
    import pytest

    from backbone_support import small_networks
    from photo_support import save

    for part, n in (("cat", 4), ("dog", 4), ("unlabelled", 6)):
        for k in range(n):
            save(at.folder / "photos" / part / f"{k}.png", seed=10 * len(part) + k, width=64, height=64)

    def fit(out: Path) -> Process:
        return at.start(
            "fit",
            at.folder / "photos",
            "--start-or-resume",
            out=out,
            before=partial(small_networks, pytest.MonkeyPatch()),
        )

    straight = at.out()
    began = time.perf_counter()
    fit(straight).ends_with(0)
    seconds, draws, n, kills = time.perf_counter() - began, random.Random(0), 1 if at.quick else 8, 0
    while kills < n:
        out = at.out()
        process = fit(out)
        time.sleep(draws.uniform(0, seconds))
        process.send(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            kills += 1
            fit(out).ends_with(0)
            for name in ("model/weights.safetensors", "predictions.csv", "label-next.csv"):
                expect((out / name).read_bytes() == (straight / name).read_bytes(), f"other bytes in {name}")
    written = (out / "fit.json").stat().st_mtime_ns
    fit(out).ends_with(0)
    expect((out / "fit.json").stat().st_mtime_ns == written, "a complete fit was written again")
    return f"{n} of {n} fits end with the same model and predictions; a complete one is left as it is"


def killed_labelling(at: Place) -> str:
    """The page is answered until a kill comes between a key and its response; then it is opened again."""
    from meanteacher.cli import label
    from meanteacher.photos.folder.tables import read_labels
    from photo_support import save

    for k in range(400):
        save(at.folder / "photos" / f"{k}.png", seed=k, width=4, height=4)
    file, draws = at.folder / "labels.csv", random.Random(0)
    said: dict[str, str] = {}
    n = 4 if at.quick else 60

    def no_features() -> None:
        label._keep_choosing = lambda session, should_stop: None

    for k in range(n):
        log = at.folder / f"{k}.log"
        process = start(
            *("label", at.folder / "photos", "--classes", "cat,dog", "--labels", file, "--no-open"),
            log=log,
            before=no_features,
        )
        wait_until(lambda process=process: process.poll() is not None or "Ctrl-C" in process.printed(), process)
        address = urlsplit(re.findall(r"http://\S+", process.printed())[0])

        def post(action: str, address: SplitResult = address, **content: object) -> HTTPConnection:
            connection = HTTPConnection(address.netloc, timeout=PATIENCE)
            body = json.dumps({"window": "w", **content})
            connection.request("POST", address.path + action, body, {"Content-Type": "application/json"})
            return connection

        question = json.loads(post("state").getresponse().read())["question"]
        for _ in range(draws.randrange(8)):
            answer = draws.choice(["cat", "dog"])
            response = post("answer", question=question["index"], label=answer).getresponse()
            said[question["name"]], question = answer, json.loads(response.read())["question"]
        answer = draws.choice(["cat", "dog"])
        connection = post("answer", question=question["index"], label=answer)
        time.sleep(draws.uniform(0, 0.01))
        process.send(signal.SIGKILL)
        expect(process.wait() == -signal.SIGKILL, f"ended by itself: {process.printed()[-300:]}")
        with suppress(OSError, HTTPException):
            if connection.getresponse().status == HTTPStatus.OK:
                said[question["name"]] = answer
        written = {row.path: row.label for row in read_labels(file)} if file.exists() else {}
        # The last answer may have been written before it could be confirmed.
        expect(written in (said, said | {question["name"]: answer}), f"{said} became {written}")
        said = written
    return f"{n} kills between a key and its response: {len(said)} of {len(said)} answers are in the file"


def file_size_limit(at: Place) -> str:
    limits = (200, 3_000, 20_000) if at.quick else (0, 200, 1_000, 3_000, 10_000, 20_000, 30_000, 60_000)
    at.expected()
    failed = 0
    for limit in limits:
        out = at.out()
        # The log is a file, too, so what is printed goes to a pipe.
        read, write = os.pipe()
        small = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        process = at.run(out, before=small, output=write)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as pipe:
            process.log.write_text(pipe.read(), encoding="utf-8")
        if process.wait():
            failed += 1
            process.ends_with(2, "Error: ")
        at.ends_the_same(out)
    expect(failed >= len(limits) - 1, f"only {failed} of {len(limits)} limits were reached")
    return f"{failed} limits from {limits[0]} bytes on: one sentence, exit code 2; later the same bytes"


@contextmanager
def _file_system(folder: Path, size: str) -> Any:
    """A small file system in memory, which no other process sees."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _can_mount() -> bool:
    """From here on this process and its children have mounts of their own. Containers may refuse that to root, too."""
    new_namespace, recursive, private = 0x20000, 0x4000, 1 << 18
    libc = ctypes.CDLL(None)
    return libc.unshare(new_namespace) == 0 and libc.mount(b"none", b"/", None, recursive | private, None) == 0


def full_disk(at: Place) -> str:
    if not _can_mount():
        return "not injected: needs the right to mount a file system"
    free = (0, 60_000, 200_000) if at.quick else (0, 4_096, 12_288, 40_000, 60_000, 100_000, 150_000, 200_000, 250_000)
    at.expected()
    failed = 0
    for n_bytes in free:
        disk = at.out()
        with _file_system(disk, "1m"):
            ballast = disk / "ballast"
            with suppress(OSError), ballast.open("wb") as file:
                file.write(bytes((1 << 20) - n_bytes))
            process = at.run(disk / "run")
            if process.wait():
                failed += 1
                process.ends_with(2, "Error: ")
            ballast.unlink()
            at.ends_the_same(disk / "run")
    expect(failed >= len(free) - 2, f"only {failed} of {len(free)} disks were too small")
    return (
        f"{failed} disks with {free[0]} to {free[-1]:,} bytes free: one sentence, exit code 2; with room the same bytes"
    )


def _as_user(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def _others_reach_the_code() -> bool:
    """Whether another user may read this checkout: root's own home is closed to others."""
    return all(folder.stat().st_mode & 0o001 for folder in Path(__file__).resolve().parents)


def read_only_folder(at: Place) -> str:
    """Permissions do not bind root, so as root the command runs as another user, and on a read-only file system."""
    is_root = os.getuid() == 0
    before = partial(_as_user, NOBODY) if is_root else lambda: None
    is_bound = not is_root or _others_reach_the_code()
    closed = at.folder / "closed"
    closed.mkdir()
    out = closed / "run"
    at.run(out).ends_with(0)
    (out / "record.json").unlink()
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for path in (out / "checkpoints", out, closed):
        path.chmod(0o555)
    if is_bound:
        at.run(closed / "new", before=before).ends_with(2, "Error: Cannot write to")
        at.run(out, before=before).ends_with(2, "Error: C")
    expect({path: path.read_bytes() for path in files} == files, "a file was changed")
    for path in (closed, out, out / "checkpoints"):
        path.chmod(0o755)
    at.ends_the_same(out)
    by_permissions = "by permissions (as another user) and " if is_bound else ""
    if not _can_mount():
        if not is_bound:
            return "not tried: root may write everywhere, may not mount here, and others do not reach this checkout"
        return "a new run and a resumed one, by permissions: one sentence, exit code 2, no file changed"
    disk = at.out()
    with _file_system(disk, "4m"):
        at.run(disk / "run").ends_with(0)
        (disk / "run" / "record.json").unlink()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for name in ("new", "run"):
            at.run(disk / name).ends_with(2, "Error: C")
    return f"new and resumed runs, {by_permissions}on a read-only disk: exit code 2, no file changed"


def _running(at: Place, out: Path, *, steps: int = 100_000, **options: Any) -> Process:
    """A run that trains, by default with so many steps that it does not end by itself."""
    settings = ("--set", f"steps={steps}", "--set", "evaluate_every=50", "--no-compile")
    process = at.start("run", "moons/mean-teacher", *settings, "--start-or-resume", out=out, **options)
    wait_until(lambda: process.poll() is not None or metrics(out), process)
    expect(process.poll() is None, f"ended before the fault: {process.printed()[-300:]}")
    return process


def folder_vanishes(at: Place) -> str:
    out = at.out()
    process = _running(at, out)
    out.rename(out.with_name("elsewhere"))
    process.ends_with(2, "Error: Could not write")
    return "one sentence, exit code 2"


def two_runs_in_one_folder(at: Place) -> str:
    out = at.out()
    first = _running(at, out)
    second = at.start("run", "moons/mean-teacher", "--start-or-resume", out=out)
    second.ends_with(2, "Another process is training in")
    expect(first.poll() is None, "the first run ended")
    first.send(signal.SIGTERM)
    first.ends_with(75)
    return "the second: one sentence, exit code 2; the first goes on"


def interrupted_table(at: Place) -> str:
    """Six runs, four at a time. The processes of the runs are started by the table, and each imports torch."""
    methods = ("supervised", "pseudo-label", "pi-model", "pseudo-ensemble", "mean-teacher", "fixmatch")
    recipes = [f"moons/{method}" for method in methods]
    out = at.out()

    def toy_table() -> None:
        os.environ.update(child_environment())
        TABLES["toy"] = (Table(title="Two moons", columns=("6 labels",), rows={name: (name,) for name in recipes}),)

    def table() -> Process:
        return at.start("table", "toy", "--seeds", "1", "--jobs", "4", out=out, before=toy_table)

    def records() -> list[Path]:
        return sorted(out.glob("moons/*/seed-0/record.json"))  # a run renames folders below its own

    process = table()
    wait_until(lambda: process.poll() is not None or records(), process)
    process.send(signal.SIGINT)
    process.ends_with(75, "nothing is lost")
    n, before = len(records()), {path: path.read_bytes() for path in records()}
    expect(0 < n < len(recipes), f"{n} of {len(recipes)} runs were complete")
    expect(not _processes_in(out), "a run goes on")
    table().ends_with(0)
    expect(len(records()) == len(recipes), f"{len(records())} of {len(recipes)} runs are complete")
    expect({path: path.read_bytes() for path in before} == before, "a complete run was trained again")
    return f"exit code 75 with {n} of 6 runs complete, no process left; the same command trains the other {6 - n}"


def _processes_in(folder: Path) -> list[int]:
    """Processes with this folder among their words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def reader_of_metrics(at: Place) -> str:
    """A program that follows the curve reads all complete lines, again and again."""
    out = at.out()
    process = _running(at, out, steps=200 if at.quick else 3000)
    reads, before = 0, []
    while process.poll() is None:
        entries = metrics(out)  # raises where a complete line is no JSON
        expect(entries[: len(before)] == before, "a line has changed")
        before, reads = entries, reads + 1
        time.sleep(0.0005)
    process.ends_with(0)
    return f"{reads:,} reads: every complete line is JSON, and none changes"


def stopping_signals(at: Place) -> str:
    at.expected()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    for number in numbers:
        out = at.out()
        process = _running(at, out)
        process.send(number)
        process.ends_with(75, "Resume with:")
        saved = int((out / "checkpoints" / "last").read_text().removeprefix("step_"))
        done = max(entry["step"] for entry in metrics(out))
        expect(saved == done, f"{number.name}: {done} steps, {saved} of them saved")
    return f"{', '.join(n.name for n in numbers)}: the step is finished and saved, exit code 75"


def ignored_hangup(at: Place) -> str:
    out = at.out()
    process = at.run(out, before=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN))
    wait_until(lambda: process.poll() is not None or (out / "run.json").exists(), process)
    while process.poll() is None:
        process.send(signal.SIGHUP)
        time.sleep(0.01)
    process.ends_with(0)
    is_same(out, at.expected())
    return "trains to its end: the same bytes"


def terminal_closes(at: Place) -> str:
    import fcntl
    import pty
    import termios

    out = at.out()
    outer, inner = pty.openpty()

    def take_terminal() -> None:
        os.close(outer)
        os.setsid()
        fcntl.ioctl(1, termios.TIOCSCTTY, 0)

    process = _running(at, out, output=inner, before=take_terminal)
    os.close(inner)
    os.set_blocking(outer, False)
    with suppress(BlockingIOError):
        while os.read(outer, 4096):
            pass
    done = max(entry["step"] for entry in metrics(out))
    os.close(outer)
    expect(process.wait() >= 0, f"ended by signal {process.code}")
    saved = int((out / "checkpoints" / "last").read_text().removeprefix("step_"))
    expect(saved == max(entry["step"] for entry in metrics(out)) >= done, f"saved {saved} of {done} steps")
    return "the step is finished and saved"


def output_closes(at: Place) -> str:
    """As in `meanteacher run ... | head`."""
    out = at.out()
    read, write = os.pipe()
    os.close(read)
    process = at.run(out, output=write)
    os.close(write)
    expect(process.wait() > 0, f"exit code {process.code}")
    at.ends_the_same(out)
    return f"exit code {process.code}; the same command ends with the same bytes"


def no_home(at: Place) -> str:
    at.folder.chmod(0o777)
    users = ["of a user"]
    out = at.out()
    at.run(out, before=partial(_without_home, None)).ends_with(0)
    is_same(out, at.expected())
    if os.getuid() == 0 and _others_reach_the_code():
        users.append("of a user without a name")
        out = at.out()
        at.run(out, before=partial(_without_home, NAMELESS)).ends_with(0)
        is_same(out, at.expected())
    return f"{' and '.join(users)}: the same bytes"


def _without_home(user: int | None) -> None:
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    if user is not None:
        _as_user(user)


def _fresh(at: Place, out: Path, redirection: str = "", **variables: str) -> int:
    """The command in a process that is started anew, since an interpreter chooses its streams once."""
    words = ["run", "moons/mean-teacher", *SHORT, "--start-or-resume", "--out", str(out)]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "meanteacher", *words],
        env=child_environment(**variables),
        check=False,
        timeout=PATIENCE,
        capture_output=not redirection,
    )
    return ended.returncode


def c_locale(at: Place) -> str:
    """The folder has a name that ASCII lacks, and the interpreter is kept from choosing UTF-8 by itself."""
    out = at.folder / "Läufe…"
    code = _fresh(at, out, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    expect(code == 0, f"exit code {code}")
    is_same(out, at.expected())
    return "a folder with a name outside ASCII: the same bytes"


def no_terminal(at: Place) -> str:
    out = at.out()
    code = _fresh(at, out, "<&- >&- 2>&-")
    expect(code == 0, f"exit code {code}")
    is_same(out, at.expected())
    return "input, output and errors closed: the same bytes"


def memory_and_handles(at: Place) -> str:
    out, steps = at.out(), 2_000 if at.quick else 20_000
    words = ("--set", f"steps={steps}", "--set", "evaluate_every=500", "--no-compile")
    process = at.start("run", "moons/mean-teacher", *words, out=out)
    readings: list[tuple[int, int, int]] = []
    page = os.sysconf("SC_PAGE_SIZE")
    while process.poll() is None:
        done = max((entry["step"] for entry in metrics(out)), default=0)
        with suppress(OSError, IndexError):
            resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * page
            readings.append((done, resident, len(list(Path(f"/proc/{process.pid}/fd").iterdir()))))
        time.sleep(0.2)
    process.ends_with(0)
    early = [reading for reading in readings if steps / 4 <= reading[0] <= steps / 2]
    late = [reading for reading in readings if reading[0] >= steps * 3 / 4]
    expect(early and late, "too few readings")
    grown = max(r[1] for r in late) - max(r[1] for r in early)
    handles = min(r[2] for r in late) - min(r[2] for r in early)  # more are open while a checkpoint is written
    expect(grown < 4 << 20, f"memory grows by {grown >> 10:,} KiB")
    expect(handles <= 0, f"{handles} more files are open")
    most = max(r[1] for r in readings)
    return (
        f"{steps:,} steps: {grown / (1 << 20):+.1f} MiB of {most >> 20} from the second quarter to the last, "
        f"{handles:+d} open files"
    )


def jumping_clock(at: Place) -> str:
    """The clock of the day jumps by hours at every look, back and forth."""

    def jump() -> None:
        hours = cycle((-30, 5, 0, 1000, -7))
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + 3600 * next(hours)
        time.time_ns = lambda: real_ns() + 3600 * 10**9 * next(hours)

    out = at.out()
    at.run(out, before=jump).ends_with(0)
    is_same(out, at.expected())
    seconds = json.loads((out / "record.json").read_text())["seconds"]
    expect(0 < seconds < PATIENCE, f"the record says {seconds} seconds")
    return "the same bytes, and the true duration in the record"


def divergence(at: Place) -> str:
    recipes = at.folder / "recipes.py"
    recipes.write_text(RECIPES)
    out = at.out()
    for _ in range(2):  # to resume does not help, and harms nothing
        process = at.start("run", f"{recipes}:diverging", "--start-or-resume", "--no-compile", out=out)
        process.ends_with(3, "Diverged: ")
        last = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
        expect(last.name == "step_00000012", f"the last checkpoint is {last.name}")
        for path in last.glob("*.safetensors"):
            weights = load_file(path).values()
            expect(all(w.isfinite().all() for w in weights if w.is_floating_point()), f"{path.name} is not finite")
        expect(not (out / "record.json").exists(), "there is a record")
    return "at step 16: exit code 3, the last checkpoint is of step 12 and finite; resumed, the same"


def damaged_checkpoint(at: Place) -> str:
    whole = at.out()
    at.run(whole).ends_with(0)
    (whole / "record.json").unlink()
    names = sorted(path.name for path in (whole / "checkpoints" / "step_00000024").iterdir())
    cases = [(name, how) for name in names for how in ("cut", "flipped", "missing")][:: 5 if at.quick else 1]
    for name, how in cases:
        out = at.out()
        shutil.copytree(whole, out)
        path = out / "checkpoints" / "step_00000024" / name
        content = bytearray(path.read_bytes())
        if how == "missing":
            path.unlink()
        elif how == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            content[content.find(b'"student.safetensors": "') + 30 if name.endswith("json") else len(content) // 2] ^= 1
            path.write_bytes(content)
        at.run(out).ends_with(2, "Delete that folder to resume from the one before it")
        shutil.rmtree(path.parent)
        at.ends_the_same(out)
    return f"{len(cases)} damages: one sentence, exit code 2; without that folder the run ends with the same bytes"


def _narrow_in_a_shard(folder: Path) -> tuple[int, Callable[[], object]]:
    content = io.BytesIO()
    Image.new("RGB", (1, 12_000), "red").save(content, "PNG")
    members = [("0.png", content.getvalue()), ("0.cls", b"a"), ("1.png", content.getvalue()), ("1.cls", b"b")]
    write_tar(folder / "a.tar", members)
    source = Shards(train="a.tar", test="a.tar", resize=256, size=224)
    return len(content.getvalue()), lambda: source.load(folder).test.images[torch.arange(2)]


def _tile(folder: Path) -> tuple[int, Callable[[], object]]:
    path = folder / "tile.tif"
    path.write_bytes(tiled_tiff(46_336))
    return path.stat().st_size, lambda: decode(path, 224)


def _deep_model(folder: Path) -> tuple[int, Callable[[], object]]:
    spec = FastNetSpec(width=0.125)
    network = spec.build(Problem(2, 1, (3, 16, 16))).eval()
    parts = {"spec": spec, "normaliser": PerImage()}
    model = Classifier(network, PerImage().fit(None), ("a", "b"), 16, 1.0, {}, **parts).save(folder / "model")
    about = json.loads((model / "model.json").read_text())
    about["network"] = {"kind": "WideResNet", "fields": {"depth": 1000}}
    (model / "model.json").write_text(json.dumps(about))
    return (model / "model.json").stat().st_size, lambda: load(model)


_SMALL_FILES: dict[str, Callable[[Path], tuple[int, Callable[[], object]]]] = {
    "a PNG of 1x12,000 pixels in a shard": _narrow_in_a_shard,
    "a TIFF of 16x16 pixels in a tile of 46,336x46,336": _tile,
    "a model.json that asks for 1,000 layers": _deep_model,
}
_MOST_MB = 100


def small_files(at: Place) -> str:
    """Each is read in a process of its own, whose memory is compared with that of one that reads nothing."""

    def used(compute: Callable[[], object]) -> tuple[float, float]:
        child = os.fork()
        if not child:
            with suppress(Exception):  # it may also be refused
                compute()
            os._exit(0)
        _, status, usage = os.wait4(child, 0)
        expect(status == 0, f"the process ended with {status}")
        return usage.ru_maxrss / 1000, usage.ru_utime + usage.ru_stime

    seen = []
    for name, make in _SMALL_FILES.items():
        n_bytes, read = make(at.folder)
        (memory, seconds), (idle, _) = used(read), used(lambda: None)
        expect(memory - idle < _MOST_MB, f"{name} takes {memory - idle:.0f} MB")
        seen.append(f"{name} ({n_bytes:,} bytes): {max(0.0, memory - idle):.0f} MB and {seconds:.1f} s")
    return "; ".join(seen)


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    expected: str
    inject: Callable[[Place], str]
    """Returns what was seen. Raises `UnexpectedError` where that is something else than expected."""
    in_tests: bool = True
    """Also in the tests, with fewer repetitions; else it takes too long, or the tests inject it in another way."""


_RESUMED = "the same command line continues the run, which ends with the same bytes"
FAULTS = (
    Fault(
        "SIGKILL at every point of a checkpoint write, and again while that is repeated",
        _RESUMED,
        killed_in_a_checkpoint_write,
    ),
    *(
        Fault(
            f"SIGKILL at 50 random moments, {method}", _RESUMED, partial(killed_anywhere, method), method == METHODS[0]
        )
        for method in METHODS
    ),
    Fault(
        "SIGKILL of one of two ranks at 20 random moments",
        "both, started again with the same command line, end with the same bytes",
        killed_rank,
    ),
    Fault(
        "SIGKILL at random moments of a fit", "the same command line continues it to the same model", killed_fit, False
    ),
    Fault("SIGKILL while photos are labelled", "every confirmed answer is in the labels file", killed_labelling),
    Fault("the file size is limited (RLIMIT_FSIZE)", f"exit code 2; with room {_RESUMED}", file_size_limit),
    Fault("the disk is full (tmpfs of 1 MiB)", f"exit code 2; with room {_RESUMED}", full_disk),
    Fault("the folder is read-only", "exit code 2; no file is changed", read_only_folder),
    Fault("the folder is moved away during the run", "exit code 2", folder_vanishes),
    Fault("two runs in one folder", "the second is refused, the first goes on", two_runs_in_one_folder),
    Fault(
        "Ctrl-C in a table with --jobs 4", "all runs are saved; the same command continues", interrupted_table, False
    ),
    Fault("metrics.jsonl is read while it is written", "no broken line", reader_of_metrics),
    Fault("a signal to stop", "the step is finished and saved; exit code 75", stopping_signals),
    Fault("SIGHUP under nohup", "has no effect", ignored_hangup),
    Fault("the terminal is closed", "the step is finished and saved", terminal_closes),
    Fault("the reader of the output leaves", "the run ends and can be continued", output_closes),
    Fault("no home folder", "has no effect", no_home),
    Fault("the C locale", "has no effect", c_locale, False),
    Fault("no terminal, input, output or errors", "has no effect", no_terminal, False),
    Fault("20,000 steps", "memory and open files stay as they are", memory_and_handles, False),
    Fault("the clock jumps", "has no effect", jumping_clock),
    Fault("divergence", "exit code 3; the last good checkpoint is kept", divergence),
    Fault(
        "a small file unpacks to a large one",
        f"at most {_MOST_MB} MB; without limits 3,100 MB, 2,000 MB and 13 s, 968 MB and 32 s",
        small_files,
    ),
    Fault(
        "a file of the checkpoint is damaged", "refused; the checkpoint before it can be resumed", damaged_checkpoint
    ),
)


Row = tuple[str, str]
"""What was seen, and the seconds of processor time that it took."""


def inject(fault: Fault, *, quick: bool) -> tuple[bool, Row]:
    """Whether what was seen is what was expected, and its row."""
    began = sum(os.times()[:4])
    with TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        try:
            passed, seen = True, fault.inject(Place(Path(folder), quick))
        except (UnexpectedError, OSError, ValueError, KeyError) as error:
            passed, seen = False, f"{_FAILED}: {type(error).__name__}: {error}"
    seen = " ".join(seen.replace(folder, "").split()).replace("|", "/")
    return passed, (seen, f"{sum(os.times()[:4]) - began:.1f}")


_FAILED = "**not as expected**"


def rows_of(page: Path) -> dict[str, Row]:
    """Of the faults on a page that was written before, by name."""
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: (seen, seconds) for name, _, seen, seconds in cells}


def page(rows: dict[str, Row]) -> str:
    here = environment()
    made_with = f"Python {here['python']} and torch {here['torch']} on {here['platform']}"
    found = [(fault, *rows[fault.name]) for fault in FAULTS if fault.name in rows]
    table = "\n".join(f"| {fault.name} | {fault.expected} | {seen} | {seconds} |" for fault, seen, seconds in found)
    total = sum(float(seconds) for *_, seconds in found)
    return f"""# Faults, injected

`make faults` injects these faults into real processes of the command line and writes this page. The tests inject most
of them too, with fewer repetitions. "The same bytes" are those of a run that nothing happened to: the weights of
student and memory, curve, errors, vitals and alarms. Nothing else is left in the folder.

| Fault | Expected | Seen | Seconds |
|---|---|---|---|
{table}

The seconds are processor time, {total:.0f} in all, with {made_with}. The runs are recipes of two moons
with 24 steps and 4 checkpoints, where nothing else is said. Not injected: loss of power, network file systems, GPUs,
and systems other than Linux.
"""


def run_all(chosen: list[Fault], *, quick: bool, out: Path | None) -> bool:
    """Print a row per fault, write it to the page if there is one, and return whether all is as expected."""
    failed = 0
    for fault in chosen:
        passed, (seen, seconds) = inject(fault, quick=quick)
        failed += not passed
        sys.stdout.write(f"| {fault.name} | {fault.expected} | {seen} | {seconds} |\n")
        sys.stdout.flush()
        if out is not None:
            out.write_text(page(rows_of(out) | {fault.name: (seen, seconds)}), encoding="utf-8")
    sys.stdout.write(f"{len(chosen) - failed} of {len(chosen)} faults: as expected.\n")
    return not failed


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", help="page whose rows are written")
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--quick", action="store_true", help="those of the tests, with fewer repetitions")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Whoever started this may ignore them: a shell does so for jobs in the background, nohup does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # What a command imports only when it needs it, in seconds.
    import torch._dynamo

    from meanteacher.cli import progress  # noqa: F401

    Moons().load(Path())
    typer.main.get_command(app).commands["run"].make_context("run", ["moons/mean-teacher"])
    assert is_single_threaded(), "set OMP_NUM_THREADS=1: only a process with one thread can be forked"
    chosen = [f for f in FAULTS if given.only in f.name and (f.in_tests or not given.quick)]
    sys.exit(not chosen or not run_all(chosen, quick=given.quick, out=given.out))
