"""Many runs: each is one recipe with one seed, in a folder of its own that tells what there is of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from meanteacher.core import InputError
from meanteacher.experiment.describe import fingerprint
from meanteacher.experiment.recipe import Recipe
from meanteacher.files import LOCK, HeldError, last_lines, locked
from meanteacher.records import Record, load_record

State = Literal["complete", "running", "started", "missing"]


@dataclass(frozen=True)
class Run:
    """One recipe with one seed."""

    name: str
    """The recipe's name, as `meanteacher run` takes it."""
    recipe: Recipe = field(hash=False)  # its views are a mapping, which has no hash
    seed: int
    out: Path = Path("runs")
    """The folder of all runs."""
    settings: tuple[str, ...] = ()
    """What `--set` changed in the recipe of that name, each as FIELD=VALUE."""

    @property
    def title(self) -> str:
        return f"{self.recipe.name}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        return self.out / Path(self.recipe.name) / f"seed-{self.seed}"

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def log(self) -> Path:
        """What the run prints, beside its folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def arguments(self) -> list[str]:
        """Arguments of the command that starts the run, or continues it."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        place = ["--seed", str(self.seed), "--out", str(self.folder), "--start-or-resume"]
        return ["run", self.name, *settings, *place]

    def state(self) -> State:
        """What there is of it. A run of another version of the recipe is refused, and a damaged record."""
        if self.record.exists():
            recorded = load_record(self.record).recipe.fingerprint
            if recorded != self._fingerprint:
                raise InputError(
                    f"{self.folder} holds a run of another version of {self.recipe.name}: its fingerprint is "
                    f"{recorded}, now it is {self._fingerprint}. Move it away, or give another folder with --out."
                )
            return "complete"
        if self._held():
            return "running"
        return "started" if (self.folder / "run.json").exists() else "missing"

    def steps_done(self) -> int:
        """By the last line of its metrics."""
        for line in last_lines(self.folder / "metrics.jsonl"):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # the line that is being written, or the end of a longer one
        return 0

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.recipe)

    def _held(self) -> bool:
        lock = self.folder / LOCK
        if not lock.exists():
            return False
        try:
            with locked(lock):
                return False
        except HeldError:
            return True
        except OSError as error:
            raise InputError(f"{lock} is no lock of a run ({error.strerror}). Move the folder away.") from error


def check_seeds(seeds: int | None) -> None:
    """Refuse a number of seeds below one."""
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds is at least 1, got {seeds}.")


def evenly(groups: Sequence[Sequence[Run]]) -> list[Run]:
    """The runs of all groups: first the first of each, so that a table fills evenly."""
    longest = max(map(len, groups), default=0)
    return [runs[i] for i in range(longest) for runs in groups if i < len(runs)]


def complete(runs: Sequence[Run]) -> dict[Run, Record]:
    """The complete ones of these runs, with their records."""
    return {run: load_record(run.record) for run in runs if run.state() == "complete"}
