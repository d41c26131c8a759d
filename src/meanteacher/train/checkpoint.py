"""Everything that changes during a run, and how it is saved: a checkpoint holds this and nothing else."""

import hashlib
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any, TypedDict, cast

import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from meanteacher.core import DivergedError, InputError, Method
from meanteacher.distributed import Ranks
from meanteacher.files import make_own, open_regular, read_regular, remove, write_atomic
from meanteacher.files.typed import Count, Positive, RecordError, Text, checked, read_json
from meanteacher.records import Alarm, Evaluation, Reading
from meanteacher.train.vitals import Vitals


def trained_parameters(student: nn.Module, memory: nn.Module) -> list[nn.Parameter]:
    """What the optimiser moves: the student, and what a method trains beside it (a generator, a denoiser).

    A teacher in the memory requires no gradient, so it is not included.
    """
    return [p for module in (student, memory) for p in module.parameters() if p.requires_grad]


class SavedReplay(TypedDict):
    """The examples that an on-line run keeps."""

    n_offered: Count
    kept: list[tuple[Any, Any, Any]]
    """Image, label, and how many examples had arrived before it."""


class SavedStream(TypedDict):
    """Where an on-line run stands."""

    position: Any
    n_seen: Count
    replay: SavedReplay | None


@dataclass(slots=True, eq=False)
class TrainState:
    """A run after `step` steps."""

    student: nn.Module
    memory: nn.Module
    normalise: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    skipped: int = 0
    """Steps of the schedule that were left out to finish in time."""
    seconds: float = 0.0
    """Spent training and evaluating, over all interruptions."""
    cpu_seconds: float = 0.0
    """The same in processor time, which does not depend on other load."""
    curve: list[Evaluation] = field(default_factory=list)
    vitals: dict[str, Any] = field(default_factory=dict)
    """What the vitals remember, in plain values."""
    processes: list[tuple[int, int]] = field(default_factory=list)
    """(step, number of processes from there on)"""
    stream: SavedStream | None = None
    """Where an on-line run is in its stream, and what it keeps of it, in plain values and tensors. None in a run on
    a data set, whose batches are functions of the step."""
    scaler: dict[str, Any] = field(default_factory=dict)
    """The state of torch's `GradScaler` in float16; empty in other precisions."""
    overflows: int = 0
    """Steps whose gradients overflowed in float16, so that nothing was updated."""

    def modules(self) -> dict[str, nn.Module]:
        """What is saved as weights."""
        return {"student": self.student, "memory": self.memory, "normalise": self.normalise}

    def best(self) -> Evaluation | None:
        """The evaluation with the lowest validation error of the teacher, the earliest of equals.

        There is none without validation data: a test error that was used to choose is too low.
        """
        candidates = [point for point in self.curve if point.part == "validation"]
        return min(candidates, key=lambda point: point.teacher, default=None)

    def predictor(self, method: Method) -> nn.Module:
        return method.predictor(self.student, self.memory)


_FORMAT = 1
_PLAIN = ("step", "skipped", "seconds", "cpu_seconds", "processes", "stream", "scaler", "overflows")
"""Fields of the state that are saved as they are."""


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder = folder
        self.identity = dict(identity)
        """Recipe, data, split and seed: a checkpoint with another identity is refused."""

    def save(self, state: TrainState) -> Path:
        """Write the state and sync it to the disk. If that fails, the previous checkpoint is intact."""
        final = self.folder / _name(state.step)
        temporary = self.folder / f".writing-{final.name}"
        try:
            make_own(self.folder)
            self._clear_leftovers()
            temporary.mkdir()
            self._write(state, temporary)
            remove(final)  # reached before, then damaged or trained again
            temporary.rename(final)
            _sync(self.folder)
            self._point("last", final.name)
            best = state.best()
            # Also where the best one was saved before, by a process that was killed before it could point to it.
            if best is not None and self._pointer("best") != _name(best.step):
                self._point("best", _name(best.step))
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise InputError(
                f"Could not write the checkpoint of step {state.step} to {self.folder}: {error}. "
                "Earlier checkpoints are intact: free some space and resume the run."
            ) from error
        self._prune()
        return final

    def restore(self, state: TrainState, name: str = "last") -> None:
        """Load checkpoint `name` into the state, unless it is damaged or belongs to another run."""
        folder = self.path(name)
        self._verify(folder)
        try:
            saved = _load_state(folder / "state.pt")
            for part, module in state.modules().items():
                load_model(module, folder / f"{part}.safetensors")
            _check_optimizer(saved["optimizer"], state.optimizer)
            state.optimizer.load_state_dict(saved["optimizer"])
            for entry in _PLAIN:
                setattr(state, entry, saved[entry])
            state.curve = [Evaluation(**point) for point in saved["curve"]]
            state.vitals = saved["vitals"] or {}
        # A damaged state makes torch and the optimiser fail in many ways.
        except Exception as error:
            raise InputError(f"{folder} is not a state that meanteacher wrote: {_reason(error)}") from error

    def path(self, name: str) -> Path:
        """The folder that the pointer `last` or `best` names."""
        pointer = self._pointer(name)
        folder = self.folder / pointer
        if not pointer or not folder.is_dir():
            # A pointer may be missing or name a folder that was removed; `last` is then the newest folder.
            steps = self._steps() if name == "last" else []
            if not steps:
                raise InputError(f"{self.folder} holds no checkpoint to resume from. Start the run without --resume.")
            folder = steps[-1]
        return folder

    def exists(self) -> bool:
        return bool(self._steps())

    def _pointer(self, name: str) -> str:
        """The name of the folder that `last` or `best` holds; empty if there is none."""
        try:
            target = read_regular(self.folder / name, 1000).decode("ascii", "replace").strip()
        except OSError:
            return ""
        return target if _STEP.fullmatch(target) else ""

    def _steps(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step_*") if _STEP.fullmatch(path.name))

    def _write(self, state: TrainState, folder: Path) -> None:
        for part, module in state.modules().items():
            save_model(module, str(folder / f"{part}.safetensors"))
        torch.save(
            {
                "optimizer": state.optimizer.state_dict(),
                **{name: getattr(state, name) for name in _PLAIN},
                "curve": [asdict(point) for point in state.curve],
                "vitals": state.vitals or None,
            },
            folder / "state.pt",
        )
        manifest = {
            "format": _FORMAT,
            "step": state.step,
            "identity": self.identity,
            "sha256": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in (*folder.iterdir(), folder):
            _sync(path)

    def _verify(self, folder: Path) -> None:
        damaged = f"Delete that folder to resume from the one before it, or start the run again elsewhere: {folder}"
        try:
            manifest = read_json(folder / "manifest.json", _Manifest, "")
            expected = {f"{part}.safetensors" for part in ("student", "memory", "normalise")} | {"state.pt"}
            wrong = [name for name in sorted(expected) if _sha256(folder / name) != manifest.sha256.get(name)]
        except (OSError, RecordError) as error:
            raise InputError(f"The checkpoint is damaged or incomplete ({str(error).strip()}). {damaged}") from error
        if manifest.format != _FORMAT:
            raise InputError(
                f"The checkpoint {folder} has format {manifest.format}, this version reads {_FORMAT}. "
                "Resume with the version of meanteacher that wrote it."
            )
        if wrong:
            raise InputError(
                f"The checkpoint is damaged: {', '.join(wrong)} is not what was written (sha256). {damaged}"
            )
        other = [key for key in sorted(self.identity) if manifest.identity.get(key) != self.identity[key]]
        if other:
            raise InputError(
                f"The checkpoint {folder} is from another run (other {' and '.join(other)}). "
                "Resume with what the run was started with, or give another output folder."
            )

    def _point(self, name: str, target: str) -> None:
        write_atomic(self.folder / name, target + "\n")
        _sync(self.folder)

    def _prune(self) -> None:
        keep = {*self._steps()[-2:], self.folder / self._pointer("best")}
        for folder in self._steps():
            if folder not in keep:
                remove(folder)

    def _clear_leftovers(self) -> None:
        """Remove the files of a process that was killed while it wrote."""
        for pattern in (".writing-step_*", ".last.*.part", ".best.*.part"):
            for leftover in self.folder.glob(pattern):
                remove(leftover)


class Keeper:
    """Keeps the clocks of a run over all its interruptions, and saves its state, if there are checkpoints."""

    def __init__(
        self, state: TrainState, vitals: Vitals, checkpoints: Checkpoints | None, ranks: Ranks, save_seconds: float
    ) -> None:
        self.state, self.vitals, self.checkpoints, self.ranks = state, vitals, checkpoints, ranks
        self.save_seconds = save_seconds
        self._saved = time.perf_counter()
        self._began = self._saved - state.seconds
        self._cpu_began, self._cpu_before = time.process_time(), state.cpu_seconds
        if not state.processes or state.processes[-1][1] != ranks.size:
            state.processes.append((state.step, ranks.size))

    def agree(self, stops: bool) -> tuple[bool, bool]:
        """Whether any rank stops the run, and whether a checkpoint is overdue on any: all ranks then do the same."""
        overdue = time.perf_counter() - self._saved > self.save_seconds
        both = self.ranks.agree(stops, overdue, doing=f"ending step {self.state.step - 1}")
        return bool(both[0]), bool(both[1])

    def save(self) -> None:
        """Write a checkpoint, unless a weight is not finite."""
        state, ranks = self.state, self.ranks
        self._saved = time.perf_counter()
        state.seconds = self._saved - self._began
        cpu_seconds = ranks.gather(time.process_time() - self._cpu_began, f"saving step {state.step}")
        state.cpu_seconds = self._cpu_before + sum(cpu_seconds)
        state.vitals = self.vitals.state()
        check_weights(state)
        if self.checkpoints is not None and ranks.is_first:
            self.checkpoints.save(state)


def check_weights(state: TrainState) -> None:
    """Refuse to save weights that are not finite: the checkpoint would replace a usable one."""
    for name, parameter in state.student.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DivergedError(
                f"The student's '{name}' is no longer finite at step {state.step}. Likely cause: the "
                "learning rate is too large; lower it or ramp it up more slowly."
            )


def _load_state(path: Path) -> dict[str, Any]:
    """The content of state.pt, of which nothing is executed, unpacked or trusted."""
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("it is compressed")
    saved: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    checked(saved, _SavedState)
    return saved


class _SavedVitals(TypedDict):
    readings: list[Reading]
    alarms: list[Alarm]
    streaks: dict[str, Count]
    labelled: list[Count]
    rows: Count
    labelled_rows: Count
    sums: dict[str, float]


class _SavedOptimizer(TypedDict):
    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


class _SavedState(TypedDict):
    """The content of state.pt."""

    optimizer: _SavedOptimizer
    step: Count
    skipped: Count
    seconds: Positive
    cpu_seconds: Positive
    curve: list[Evaluation]
    vitals: _SavedVitals | None
    processes: list[tuple[Count, Annotated[int, Meta(ge=1)]]]
    stream: SavedStream | None
    scaler: dict[str, Positive]
    overflows: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """manifest.json of a checkpoint."""

    format: Any
    step: Count
    identity: dict[str, Text]
    sha256: dict[str, Text]


_STEP = re.compile(r"step_\d{8,20}")


def _check_optimizer(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments that are not of the parameters' shapes, which torch would notice only in the next step."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for k, state in saved["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[k].shape:
                raise ValueError(f"{name} of the optimiser has the shape {tuple(value.shape)}")


def _reason(error: Exception) -> str:
    """The first line of what went wrong; of a pickle, not torch's advice to load it in an unsafe way."""
    if isinstance(error, UnpicklingError | zipfile.BadZipFile | EOFError):
        return "state.pt holds something else than tensors and plain values"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _name(step: int) -> str:
    return f"step_{step:08d}"


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()


def _sync(path: Path) -> None:
    is_folder = path.is_dir()
    try:
        # Windows syncs only files that are open for writing, and cannot open folders.
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    except PermissionError:
        if is_folder:
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
