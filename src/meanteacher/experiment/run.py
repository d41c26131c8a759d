"""A run in a folder of its own: prepare, train or resume, evaluate, write the record."""

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch

from meanteacher.core import InputError, Resume
from meanteacher.data import Split, TrainTest
from meanteacher.data.dataset import BrokenImages
from meanteacher.devices import CPU, choose_device, device_name, same_kind
from meanteacher.distributed import ALONE, Ranks, check_devices, join
from meanteacher.experiment.describe import computed, describe, differences, recorded
from meanteacher.experiment.prepared import Prepared
from meanteacher.experiment.recipe import Recipe, TrainingSpec
from meanteacher.files import is_left_over, locked_folder, reporting_full_disk, write_json
from meanteacher.files.typed import checked, read_json
from meanteacher.methods import METHODS
from meanteacher.models.layers import synchronise_batch_norm
from meanteacher.records import (
    Environment,
    LeftOut,
    Processes,
    Record,
    RecordedRecipe,
    RunData,
    RunErrors,
    RunFile,
    load_record,
    to_json,
    write_record,
)
from meanteacher.train import Callback, Checkpoints, MetricsFile, TrainState, Vitals
from meanteacher.train.execution import DEFAULT, RunOptions, autocast, check_passes, compile_networks


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    complete: bool
    step: int
    record: Record | None
    """The record, which is also in the folder; None for a run that was interrupted."""
    prepared: Prepared
    checkpoints: Checkpoints

    def restored(self, name: str = "last", *, device: str = "auto") -> TrainState:
        """The state of the checkpoint "last" or "best" of this run, without preparing the data again."""
        return _restored(self.prepared.on(choose_device(device)), self.checkpoints, name)


def run(
    recipe: Recipe,
    *,
    seed: int,
    out: Path,
    data: TrainTest,
    resume: Resume = False,
    options: RunOptions = DEFAULT,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train `recipe` with `seed` on loaded data and write everything about the run to `out`.

    The arguments are those of `mt.run`, except that `recipe`, `out` and `data` are values.
    """
    return run_training(
        recipe.training,
        recorded=recorded(describe(recipe), recipe.claim, recipe.deviations),
        seed=seed,
        out=out,
        data=data,
        split=recipe.data.split(data.train, seed),
        resume=resume,
        options=options,
        callbacks=callbacks,
    )


def run_training(
    training: TrainingSpec,
    *,
    recorded: RecordedRecipe,
    seed: int,
    out: Path,
    data: TrainTest,
    split: Split,
    resume: Resume = False,
    options: RunOptions = DEFAULT,
    callbacks: Sequence[Callback] = (),
    skip_to: Callable[[int], int] | None = None,
) -> Outcome:
    """Train on loaded data, and write everything about the run to `out`.

    Processes that were started together, for instance by torchrun, train one network: each calls this function, and
    rank 0 writes. All have to see `out`.

    The arguments are those of `mt.run`, except that all are values; `skip_to` is that of `meanteacher.train.train`, for
    a run of one process. Runs that share their data read the pixels for the fingerprint only once.
    """
    ranks = join()
    if ranks.restarts and not resume:
        resume = "auto"  # the processes were started again after a failure, with the same words
    prepared = Prepared(training, data=data, split=split, seed=seed, ranks=ranks)
    identity = identity_of(recorded.fingerprint, seed, data, split)
    checkpoints = Checkpoints(out / "checkpoints", identity)
    with RunFolder(out, identity, recorded.fields, resume, options, ranks) as folder:
        record = folder.record
        if record is not None:
            return Outcome(True, training.steps, record, prepared, checkpoints)
        prepared = prepared.on(folder.device())
        check_devices(prepared.device, ranks)
        folder.use_same_threads()
        torch.backends.cudnn.benchmark = prepared.device.type == "cuda"  # the fastest kernels for the shapes of the run
        options = folder.options()
        if ranks.is_first:
            with reporting_full_disk(out / "split.txt"):
                split.save(out / "split.txt")
        state = _started(prepared, options, checkpoints if folder.holds_checkpoint else None)
        vitals = Vitals(prepared.declared)
        if ranks.is_first:
            callbacks = (MetricsFile(out / "metrics.jsonl", from_step=state.step), *callbacks)
            for callback in callbacks:
                callback.on_start(recorded, seed)
        complete = prepared.train(
            state, vitals=vitals, options=options, callbacks=callbacks, checkpoints=checkpoints, skip_to=skip_to
        )
        ranks.agree(0, doing="ending the run")  # the last checkpoint is written
        if complete:
            record = _record(prepared, checkpoints, state, vitals, options, recorded)
            folder.write_record(record)
        return Outcome(complete, state.step, record, prepared, checkpoints)


def identity_of(recipe: str, seed: int, data: TrainTest, split: Split) -> dict[str, str]:
    """What a checkpoint belongs to: fingerprints of recipe, data and split, and the seed.

    Every pixel of images in memory is read, once per data set.
    """
    return {"recipe": recipe, "seed": str(seed), "data": data.train.fingerprint(), "split": split.fingerprint()}


def _restored(prepared: Prepared, checkpoints: Checkpoints, name: str) -> TrainState:
    state = prepared.start()
    checkpoints.restore(state, name)
    return state


def _started(prepared: Prepared, options: RunOptions, resumed: Checkpoints | None) -> TrainState:
    """The state before the next step of the run, with networks as the options want them."""
    ranks, method = prepared.ranks, prepared.training.method
    state = prepared.start()
    if resumed is not None:
        resumed.restore(state)
    check_passes(options, state, method, prepared.stream, ranks.rows)
    if options.sync_batch_norm and ranks.size > 1:
        synchronise_batch_norm(state.student, ranks)
        synchronise_batch_norm(state.memory, ranks)
    if options.compile:
        compile_networks(state.student, state.predictor(method))
    return state


def _record(
    prepared: Prepared,
    checkpoints: Checkpoints,
    state: TrainState,
    vitals: Vitals,
    options: RunOptions,
    recorded: RecordedRecipe,
) -> Record:
    best = state.best()
    with autocast(options.precision, prepared.device):
        last = prepared.final_errors(state)
        best_errors = None if best is None else last
        if best is not None and best.step != state.step:
            best_errors = prepared.final_errors(_restored(prepared, checkpoints, "best"))
    training, data, identity = prepared.training, prepared.data, checkpoints.identity
    names = {kind: name for name, kind in METHODS.items()}
    n_images = (state.step - state.skipped) * training.batch.size
    overflows = {"overflows": state.overflows} if options.precision == "float16" else {}
    return Record(
        recipe=recorded,
        method=names.get(type(training.method), type(training.method).__name__),
        seed=prepared.seed,
        data=RunData(
            fingerprint=identity["data"],
            official=data.official,
            n_train=len(data.train),
            n_labelled=len(prepared.split.labelled),
            n_validation=len(prepared.split.validation),
            n_test=len(data.test),
            class_names=data.train.class_names,
            broken=_broken_images(data, prepared.ranks),
        ),
        split_fingerprint=identity["split"],
        environment={**environment(prepared.device), **options.described(), **overflows},
        n_parameters=sum(p.numel() for p in state.student.parameters()),
        memory_bytes=sum(t.numel() * t.element_size() for t in state.memory.state_dict().values()),
        processes=tuple(Processes(from_step=step, n=n) for step, n in state.processes),
        steps=state.step,
        skipped_steps=state.skipped,
        seconds=round(state.seconds, 3),
        cpu_seconds=round(state.cpu_seconds, 3),
        images_per_second=round(n_images / max(state.seconds, 1e-9), 1),
        curve=tuple(state.curve),
        errors=RunErrors(last=last, best_validation=best_errors),
        vitals=tuple(vitals.readings),
        alarms=tuple(vitals.alarms),
    )


def _broken_images(data: TrainTest, ranks: Ranks) -> dict[str, LeftOut]:
    """The images of each part that were left out, if there are any.

    Images that only decoding finds broken are those that the processes have met, each among its own rows.
    """
    counts = {}
    for part in ("train", "test"):
        found = BrokenImages()
        for met in ranks.gather(getattr(data, part).broken.reasons, "naming broken images"):
            found.reasons |= met
        if found.reasons:
            counts[part] = LeftOut(n=len(found.reasons), first=tuple(found.described()))
    return counts


_LOOK_SECONDS = 1.0
"""For which others may hold the lock that only look whether the run is running."""


@dataclass(eq=False)
class RunFolder:
    """Locks a folder for a new run, or to resume the run in it; with `resume` "auto", whichever it holds.

    Of several processes rank 0 locks, reads and writes it, and tells the others what it holds.
    """

    path: Path
    identity: dict[str, str]
    described: Mapping[str, Any]
    resume: Resume
    wanted: RunOptions = DEFAULT
    """The options of a new run; a resumed one keeps its own."""
    ranks: Ranks = ALONE
    record: Record | None = field(default=None, init=False)
    """The record of a run that is complete."""
    holds_checkpoint: bool = field(default=False, init=False)
    _lock: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Self:
        about, record, self.holds_checkpoint = self.ranks.from_first(self._open, f"opening {self.path}")
        self.run, file = checked(about, RunFile), str(self.path / "record.json")
        self.record = None if record is None else replace(checked(record, Record), file=file)
        return self

    def _open(self) -> tuple[dict[str, Any], Any, bool]:
        """The contents of run.json and record.json, and whether the run has a checkpoint."""
        resume = (self.path / "run.json").exists() if self.resume == "auto" else self.resume
        self._check_kind(resume)
        options = self.wanted if resume else self.wanted.on(choose_device(self.wanted.device))
        record = self.path / "record.json"
        with ExitStack() as lock:
            lock.enter_context(locked_folder(self.path, "training in", wait=_LOOK_SECONDS))
            if resume:
                about = self._same_run()
            else:
                about = RunFile(
                    identity=self.identity,
                    recipe=self.described,
                    threads=torch.get_num_threads(),
                    processes=self.ranks.size,
                    options=asdict(options),
                )
                with reporting_full_disk(self.path / "run.json"):
                    write_json(self.path / "run.json", asdict(about))
            found = to_json(load_record(record)) if record.exists() else None
            self._lock = lock.pop_all()  # it is held until the end of the run
        return asdict(about), found, resume and Checkpoints(self.path / "checkpoints", self.identity).exists()

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def device(self) -> torch.device:
        """Where the run computes; a resumed one on the same kind of device as before."""
        return same_kind(self.wanted.device, self.options().device, self.path)

    def options(self) -> RunOptions:
        """The options that the run was started with."""
        try:
            return checked(self.run.options, RunOptions)
        except ValueError as error:
            raise InputError(
                f"{self.path / 'run.json'} is damaged (options: {error}). Start the run again in another folder."
            ) from error

    def use_same_threads(self) -> None:
        """Another number of threads rounds sums differently, and a resumed run is exact.

        With another number of processes it cannot be exact, and the threads are divided anew.
        """
        if self.run.processes == self.ranks.size and self.run.threads != torch.get_num_threads():
            torch.set_num_threads(self.run.threads)

    def write_record(self, record: Record) -> None:
        path = self.path / "record.json"

        @reporting_full_disk(path)
        def write() -> None:
            write_record(path, record)

        self.ranks.from_first(write, f"writing the record to {self.path}")

    def _check_kind(self, resume: bool) -> None:
        holds_run = (self.path / "run.json").exists()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file. Give a folder with --out.")
        if resume and not holds_run:
            raise InputError(f"{self.path} holds no run to resume. Start it without --resume.")
        if not resume and holds_run:
            raise InputError(
                f"{self.path} holds a run already. Continue it with --resume, or give another folder with --out."
            )
        if not resume and self.path.exists() and not all(map(is_left_over, self.path.iterdir())):
            raise InputError(
                f"{self.path} is not empty and holds no run of meanteacher. Give another folder with --out."
            )

    def _same_run(self) -> RunFile:
        """The content of run.json, of the same run."""
        saved = read_json(self.path / "run.json", RunFile, "Start the run again in another folder.")
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
        return saved


def environment(device: torch.device = CPU) -> Environment:
    """What may explain why the same recipe gives another result elsewhere."""
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
    git = ["git", "-C", str(Path(__file__).parent)]
    track = [*git, "ls-files", "--error-unmatch", Path(__file__).name]
    name = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.run(track, capture_output=True, timeout=10, check=True)  # fails in another repository around us
        return subprocess.run(name, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
