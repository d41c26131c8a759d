"""A run in a folder: prepare, train or resume, evaluate, write the record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meanteacher.data import Split, TrainTest
from meanteacher.data.dataset import BrokenImages
from meanteacher.devices import choose_device
from meanteacher.distributed.ranks import Ranks, check_devices, join
from meanteacher.experiment.describe import describe, fingerprint, recorded
from meanteacher.experiment.folder import RunFolder, environment
from meanteacher.experiment.prepared import Prepared
from meanteacher.experiment.recipe import Recipe, TrainingSpec
from meanteacher.files import reporting_full_disk
from meanteacher.methods import METHODS
from meanteacher.models.layers import synchronise_batch_norm
from meanteacher.records import LeftOut, Processes, Record, RecordedRecipe, RunData, RunErrors
from meanteacher.train import Callback, Checkpoints, MetricsFile, TrainState, Vitals
from meanteacher.train.execution import DEFAULT, RunOptions, check_passes, compile_networks
from meanteacher.train.parallel import OwnRows, take_own_buffers


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
    resume: bool | None = False,
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
    resume: bool | None = False,
    options: RunOptions = DEFAULT,
    callbacks: Sequence[Callback] = (),
    skip_to: Callable[[int], int] | None = None,
) -> Outcome:
    """Train on loaded data, and write everything about the run to `out`.

    Processes that were started together, for instance by torchrun, train one network: each calls this function, and
    rank 0 writes. All have to see `out`.

    Args:
        training: how to train
        recorded: the experiment as its record describes it
        seed: of the batches, the noise and the weights
        out: a folder for this run alone
        data: to train on; runs that share it read its pixels for the fingerprint only once
        split: which images are labelled
        resume: continue the run in `out`; None if there is one, and start it otherwise
        options: how to execute it; a resumed run keeps its own
        callbacks: follow the run, and may stop it
        skip_to: given the step that is due, the step to take; a later one skips those between, to save time

    Raises:
        InputError: something given is wrong; nothing in `out` is lost.
        DivergedError: the costs are no longer finite; the last good checkpoint is kept.
    """
    ranks = join()
    if ranks.restarts and not resume:
        resume = None  # the processes were started again after a failure, with the same words
    prepared = Prepared(training, data=data, split=split, seed=seed, ranks=ranks)
    identity = identity_of(recorded.fingerprint, seed, data, split)
    checkpoints = Checkpoints(out / "checkpoints", identity)
    with RunFolder(out, identity, recorded.fields, resume=resume, options=options, ranks=ranks) as folder:
        record = folder.record()
        if record is not None:
            return Outcome(True, training.steps, record, prepared, checkpoints)
        prepared = prepared.on(folder.device())
        check_devices(prepared.device, ranks)
        folder.use_same_threads()
        options = folder.options()
        if ranks.is_first:
            with reporting_full_disk(out / "split.txt"):
                split.save(out / "split.txt")
        state = _started(prepared, options, checkpoints, resumed=folder.resume)
        vitals = Vitals(prepared.declared)
        metrics = [MetricsFile(out / "metrics.jsonl", from_step=state.step)] if ranks.is_first else []
        complete = prepared.train(
            state,
            vitals=vitals,
            options=options,
            callbacks=(*metrics, *callbacks),
            checkpoints=checkpoints,
            skip_to=skip_to,
        )
        ranks.meet("ending the run")  # the last checkpoint is written
        if complete:
            record = _record(prepared, checkpoints, state, vitals, options, recorded)
            folder.write_record(record)
        return Outcome(complete, state.step, record, prepared, checkpoints)


def restored(
    recipe: Recipe, *, seed: int, out: Path, data: TrainTest, name: str = "last", device: str = "auto"
) -> TrainState:
    """The state of the checkpoint "last" or "best" of an earlier run in `out`, on any device.

    Raises:
        InputError: there is no such checkpoint, it is damaged, or it belongs to another run.
    """
    split = recipe.data.split(data.train, seed)
    prepared = Prepared(recipe.training, data=data, split=split, seed=seed, device=choose_device(device))
    checkpoints = Checkpoints(out / "checkpoints", identity_of(fingerprint(recipe), seed, data, split))
    return _restored(prepared, checkpoints, name)


def identity_of(recipe: str, seed: int, data: TrainTest, split: Split) -> dict[str, str]:
    """What a checkpoint belongs to: fingerprints of recipe, data and split, and the seed.

    Every pixel of images in memory is read, once per data set.
    """
    return {
        "recipe": recipe,
        "seed": str(seed),
        "data": data.train.fingerprint(),
        "split": split.fingerprint(),
    }


def _restored(prepared: Prepared, checkpoints: Checkpoints, name: str) -> TrainState:
    state = prepared.start()
    checkpoints.restore(state, name)
    return state


def _started(prepared: Prepared, options: RunOptions, checkpoints: Checkpoints, *, resumed: bool) -> TrainState:
    """The state before the next step of the run, with networks as the options want them."""
    ranks, method = prepared.ranks, prepared.training.method
    state = prepared.start()
    if ranks.from_first(lambda: resumed and checkpoints.exists(), "looking for a checkpoint"):
        checkpoints.restore(state)
        take_own_buffers(state, ranks)
    check_passes(options, state, method, OwnRows(prepared.stream, ranks))
    if options.sync_batch_norm and ranks.size > 1:
        synchronise_batch_norm(state.student)
        synchronise_batch_norm(state.memory)
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
    last, best = prepared.final_errors(state), state.best()
    best_errors = None if best is None else last
    if best is not None and best.step != state.step:
        best_errors = prepared.final_errors(_restored(prepared, checkpoints, "best"))
    training, data, identity = prepared.training, prepared.data, checkpoints.identity
    names = {kind: name for name, kind in METHODS.items()}
    n_images = (state.step - state.skipped) * training.batch.size
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
        environment={**environment(prepared.device), **options.described()},
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
