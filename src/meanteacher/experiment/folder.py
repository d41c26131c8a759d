"""The folder of one run: its identity, its lock, its record. One run per folder, and one process that writes."""

import platform
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from meanteacher.core import InputError
from meanteacher.devices import CPU, choose_device, device_name, same_kind
from meanteacher.distributed.ranks import ALONE, Ranks
from meanteacher.experiment.describe import computed, differences
from meanteacher.files import is_left_over, locked_folder, reporting_full_disk, write_json
from meanteacher.files.fields import Field, RecordError, Shape, read_json, whole
from meanteacher.train.compile import Speed

_LOOK_SECONDS = 1.0
"""For which others may hold the lock that only look whether the run is running."""


T = TypeVar("T")


class RunFolder:
    """Locks a folder for a new run, or to resume the run in it; with `resume` None, whichever it holds.

    Of several processes rank 0 locks, reads and writes it, and tells the others what it holds.
    """

    def __init__(
        self,
        path: Path,
        identity: dict[str, str],
        described: dict[str, Any],
        *,
        resume: bool | None,
        device: str = "auto",
        ranks: Ranks = ALONE,
    ) -> None:
        self.path = path
        self.identity, self.described = identity, described
        self._wanted = device
        self._ranks = ranks
        self._lock = ExitStack()
        self.resume = self._from_first(lambda: (path / "run.json").exists() if resume is None else resume)

    def __enter__(self) -> Self:
        self._from_first(self._open)
        return self

    def _open(self) -> None:
        self._check_kind()
        kind = None if self.resume else choose_device(self._wanted).type
        self._lock.enter_context(locked_folder(self.path, "training in", wait=_LOOK_SECONDS))
        try:
            if self.resume:
                self._check_same_run()
            else:
                about = {"identity": self.identity, "recipe": self.described, "threads": torch.get_num_threads()}
                if self._ranks.size > 1:
                    about["processes"] = self._ranks.size
                self._write("run.json", {**about, "device": kind})
        except BaseException:
            self._lock.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def device(self) -> torch.device:
        """Where the run computes; a resumed one on the same kind of device as before.

        Raises:
            InputError: another kind was asked for, or this machine has none.
        """
        # A run without the entry is from before there was a choice.
        return same_kind(self._wanted, self._about().get("device", "cpu"), self.path)

    def use_same_threads(self) -> None:
        """Another number of threads rounds sums differently, and a resumed run is exact.

        With another number of processes it cannot be exact, and the threads are divided anew.
        """
        about = self._about()
        threads = about.get("threads")
        if about.get("processes", 1) != self._ranks.size:
            return
        if threads is not None and threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def speed(self) -> Speed | None:
        """How the steps of this run are computed, if that was chosen already."""
        stored = self._about().get("speed")
        try:
            return None if stored is None else Speed(**stored)
        except (TypeError, InputError) as error:
            raise InputError(
                f"{self.path / 'run.json'} is damaged (speed: {error}). Start the run again in another folder."
            ) from error

    def write_speed(self, speed: Speed) -> None:
        path = self.path / "run.json"
        self._from_first(lambda: self._write("run.json", {**_read(path, _RUN), "speed": asdict(speed)}))

    def record(self) -> dict[str, Any] | None:
        """The record of a run that is complete."""
        path = self.path / "record.json"
        return self._from_first(lambda: _read(path, _RECORD) if path.exists() else None)

    def write_record(self, record: dict[str, Any]) -> None:
        self._from_first(lambda: self._write("record.json", record))

    def _write(self, name: str, value: dict[str, Any]) -> None:
        with reporting_full_disk(self.path / name):
            write_json(self.path / name, value)

    def _about(self) -> dict[str, Any]:
        return self._from_first(lambda: _read(self.path / "run.json", _RUN))

    def _from_first(self, compute: Callable[[], T]) -> T:
        return self._ranks.from_first(compute, f"opening {self.path}")

    def _check_kind(self) -> None:
        holds_run = (self.path / "run.json").exists()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file. Give a folder with --out.")
        if self.resume and not holds_run:
            raise InputError(f"{self.path} holds no run to resume. Start it without --resume.")
        if not self.resume and holds_run:
            raise InputError(
                f"{self.path} holds a run already. Continue it with --resume, or give another folder with --out."
            )
        if not self.resume and self.path.exists() and not all(map(is_left_over, self.path.iterdir())):
            raise InputError(
                f"{self.path} is not empty and holds no run of meanteacher. Give another folder with --out."
            )

    def _check_same_run(self) -> None:
        saved = _read(self.path / "run.json", _RUN)
        # Other claims or deviations about the same computation do not make it another run.
        recipe = saved.get("recipe")
        changed = differences(computed(recipe) if isinstance(recipe, dict) else None, computed(self.described))
        changed += differences(saved.get("identity"), self.identity)
        changed = [line for line in changed if not line.startswith("recipe:")]  # its fields are listed already
        if changed:
            raise InputError(
                f"{self.path} holds another run, which differs in: {'; '.join(changed)}. "
                "Resume it with what it was started with, or give another folder with --out."
            )


_RUN: Shape = {
    "identity?": {"*": Field.text},
    "recipe?": Field.mapping,
    "threads?": whole(1, 1024),
    "processes?": whole(1, 1 << 20),
    "device?": Field.text,
    "speed?": {
        "compiled?": Field.truth,
        "precision?": Field.text,
        "micro_batch?": whole(1, 1 << 40),
        "sync_batch_norm?": Field.truth,
    },
}
_ERRORS: Shape = {"test": Field.fraction, "test_top5?": Field.fraction, "validation?": Field.fraction}
_RECORD: Shape = {
    "schema": whole(1, 1),
    "recipe": {"name": Field.text, "fingerprint": Field.text},
    "data": {"broken?": {"*": {"n": Field.count, "first": [Field.text]}}},
    "curve": [{"step": Field.count, "part": Field.text, "student": Field.fraction, "teacher": Field.fraction}],
    "errors": {"last": {"step": Field.count, "student": _ERRORS, "teacher": _ERRORS}},
    "vitals": [Field.mapping],
    "alarms": [{"step": Field.count, "kind": Field.text, "sentence": Field.text}],
}
"""What this package uses of its own records; `report.records` reads all of one."""


def _read(path: Path, shape: Shape) -> dict[str, Any]:
    try:
        content: dict[str, Any] = read_json(path, "Start the run again in another folder.").check(shape)
    except RecordError as error:
        raise InputError(f"{path} is damaged. {error}") from error
    return content


def environment(device: torch.device = CPU) -> dict[str, str | int | None]:
    """What may explain why the same recipe gives another result elsewhere.

    Args:
        device: of the run
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
    """Of the source tree this package runs from, with "-dirty" if files are changed; None if installed."""
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
            return None  # another repository around an installed package
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
