"""The folder of one run: its identity, its lock, its record. One run per folder, and one process that writes."""

import platform
import subprocess
from collections.abc import Callable, Mapping
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
from meanteacher.files.typed import checked, read_json
from meanteacher.records import Environment, Record, RunFile, load_record, write_record
from meanteacher.train.execution import DEFAULT, RunOptions

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
        described: Mapping[str, Any],
        *,
        resume: bool | None,
        options: RunOptions = DEFAULT,
        ranks: Ranks = ALONE,
    ) -> None:
        self.path = path
        self.identity, self.described = identity, described
        self._wanted = options
        self._ranks = ranks
        self._lock = ExitStack()
        self.resume = self._from_first(lambda: (path / "run.json").exists() if resume is None else resume)

    def __enter__(self) -> Self:
        self._from_first(self._open)
        return self

    def _open(self) -> None:
        self._check_kind()
        options = self._wanted if self.resume else self._wanted.on(choose_device(self._wanted.device))
        self._lock.enter_context(locked_folder(self.path, "training in", wait=_LOOK_SECONDS))
        try:
            if self.resume:
                self._check_same_run()
            else:
                self._write(
                    RunFile(
                        identity=self.identity,
                        recipe=self.described,
                        threads=torch.get_num_threads(),
                        processes=self._ranks.size,
                        options=asdict(options),
                    )
                )
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
        return same_kind(self._wanted.device, self.options().device, self.path)

    def use_same_threads(self) -> None:
        """Another number of threads rounds sums differently, and a resumed run is exact.

        With another number of processes it cannot be exact, and the threads are divided anew.
        """
        about = self._about()
        if about.processes == self._ranks.size and about.threads != torch.get_num_threads():
            torch.set_num_threads(about.threads)

    def options(self) -> RunOptions:
        """The options that the run was started with.

        Raises:
            InputError: run.json is damaged.
        """
        try:
            return checked(self._about().options, RunOptions)
        except ValueError as error:
            raise InputError(
                f"{self.path / 'run.json'} is damaged (options: {error}). Start the run again in another folder."
            ) from error

    def record(self) -> Record | None:
        """The record of a run that is complete."""
        path = self.path / "record.json"
        return self._from_first(lambda: load_record(path) if path.exists() else None)

    def write_record(self, record: Record) -> None:
        def write() -> None:
            with reporting_full_disk(self.path / "record.json"):
                write_record(self.path / "record.json", record)

        self._from_first(write)

    def _write(self, about: RunFile) -> None:
        with reporting_full_disk(self.path / "run.json"):
            write_json(self.path / "run.json", asdict(about))

    def _about(self) -> RunFile:
        return self._from_first(self._read_run)

    def _read_run(self) -> RunFile:
        return read_json(self.path / "run.json", RunFile, "Start the run again in another folder.")

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
        saved = self._read_run()
        # Other claims or deviations about the same computation do not make it another run.
        changed = differences(computed(saved.recipe), computed(self.described))
        changed += differences(saved.identity, self.identity)
        # The recipe's fields are listed already, and those of its training are named as by --set.
        changed = [line.removeprefix("training.") for line in changed if not line.startswith("recipe:")]
        if changed:
            raise InputError(
                f"{self.path} holds another run, which differs in: {'; '.join(changed)}. "
                "Resume it with what it was started with, or give another folder with --out."
            )


def environment(device: torch.device = CPU) -> Environment:
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
    """Commit of the source tree that this package runs from, with "-dirty" if files are changed; None if installed."""
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
