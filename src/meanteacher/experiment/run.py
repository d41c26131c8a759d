"""Run a recipe into a folder: build its parts, train or resume, evaluate, write the record."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from meanteacher.data import Split, TrainTest
from meanteacher.data.dataset import BrokenImages
from meanteacher.devices import choose_device, wait_for
from meanteacher.distributed.ranks import Ranks, check_devices, join
from meanteacher.experiment.describe import describe
from meanteacher.experiment.folder import RunFolder, environment
from meanteacher.experiment.prepared import Prepared
from meanteacher.experiment.recipe import Recipe
from meanteacher.files import reporting_full_disk
from meanteacher.methods import METHODS
from meanteacher.models.layers import synchronise_batch_norm
from meanteacher.records import LeftOut, Processes, Record, RecordedRecipe, RunData, RunErrors
from meanteacher.train import Callback, Intervals, MetricsFile, TrainState, Vitals, train
from meanteacher.train.compile import Speed, WantedCompile, WantedPrecision, check_speed, choose_speed, compile_networks
from meanteacher.train.parallel import OwnRows, take_own_buffers

_STEP_WITHOUT_VITALS = 1001
"""The vitals read the gradients often in the first steps, and every thousandth step later: like most steps, this one
has no reading."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    complete: bool
    step: int
    record: Record | None
    """The record, which is also in the folder; None for a run that was interrupted."""
    prepared: Prepared
    out: Path

    def restored(self, name: str = "last", *, device: str = "auto") -> TrainState:
        """The state of the checkpoint "last" or "best" of this run, without preparing the data again."""
        return self.prepared.on(choose_device(device)).restored(self.out, name)


def run(
    recipe: Recipe,
    *,
    seed: int,
    out: Path,
    data: TrainTest,
    split: Split | None = None,
    resume: bool | None = False,
    device: str = "auto",
    compiled: WantedCompile = "no",
    precision: WantedPrecision = "float32",
    micro_batch: int | None = None,
    sync_batch_norm: bool = False,
    announce: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
    skip_to: Callable[[int], int] | None = None,
) -> Outcome:
    """Train `recipe` with `seed` on loaded data and write everything about the run to `out`.

    Processes that were started together, for instance by torchrun, train one network: each calls this function, and
    rank 0 writes. All have to see `out`.

    Args:
        recipe: what to do
        seed: of the labelled set, the batches, the noise and the weights
        out: a folder for this run alone
        data: what `recipe.data.source` loads; runs that share it read its pixels for the fingerprint only once
        split: which images are labelled; drawn by the seed if not given
        resume: continue the run in `out`; None if there is one, and start it otherwise
        device: its name; "auto" takes a GPU if there is one, and a resumed run the kind that it was started on
        compiled: whether to compile the networks; "auto" if that is measured to save time. A resumed run keeps its own
        precision: what the networks compute in; a resumed run keeps its own
        micro_batch: rows that a process computes at a time, to need less memory; a resumed run keeps its own
        sync_batch_norm: whether the batch statistics of several processes are those of the whole batch; a resumed run
            keeps its own
        announce: called with one sentence on the outcome of trying either
        callbacks: told how it goes as it happens
        should_stop: asked after every step; True saves a checkpoint and ends the run
        skip_to: given the step that is due, the step to take; a later one skips those between, to save time

    Raises:
        InputError: something given is wrong; nothing in `out` is lost.
        DivergedError: the costs are no longer finite; the last good checkpoint is kept.
    """
    ranks = join()
    if ranks.restarts and not resume:
        resume = None  # the processes were started again after a failure, with the same words
    wanted = Speed(micro_batch=micro_batch, sync_batch_norm=sync_batch_norm and ranks.size > 1)
    prepared = Prepared(recipe, seed=seed, data=data, split=split, ranks=ranks)
    folder = RunFolder(out, prepared.identity, describe(recipe), resume=resume, device=device, ranks=ranks)
    with folder:
        record = folder.record()
        if record is not None:
            return Outcome(complete=True, step=recipe.steps, record=record, prepared=prepared, out=out)
        prepared = prepared.on(folder.device())
        check_devices(prepared.device, ranks)
        folder.use_same_threads()
        if ranks.is_first:
            with reporting_full_disk(out / "split.txt"):
                prepared.split.save(out / "split.txt")
        checkpoints = prepared.checkpoints(out)
        state = prepared.start()
        resumed = ranks.from_first(lambda: folder.resume and checkpoints.exists(), "looking for a checkpoint")
        if resumed:
            checkpoints.restore(state)
            take_own_buffers(state, ranks)
        speed = folder.speed()
        if speed is not None:
            check_speed(speed, state, recipe.method, OwnRows(prepared.stream, ranks))
        else:
            speed = wanted  # with the precision of runs from before there was a choice
            if not resumed:
                chosen = choose_speed(
                    state,
                    recipe.method,
                    OwnRows(prepared.stream, ranks),
                    steps=recipe.steps,
                    compiled=compiled if micro_batch is None else "no",
                    precision=precision,
                    announce=announce if ranks.is_first else lambda line: None,
                )
                speed = replace(chosen, micro_batch=wanted.micro_batch, sync_batch_norm=wanted.sync_batch_norm)
                speed = ranks.gather(speed, "choosing how to compute")[0]
            folder.write_speed(speed)
        if speed.sync_batch_norm:
            synchronise_batch_norm(state.student)
            synchronise_batch_norm(state.memory)
        if speed.compiled:
            compile_networks(state.student, state.predictor(recipe.method))
        vitals = Vitals(prepared.declared)
        metrics = [MetricsFile(out / "metrics.jsonl", from_step=state.step)] if ranks.is_first else []
        complete = train(
            state,
            recipe.method,
            recipe.optim,
            prepared.stream,
            steps=recipe.steps,
            seed=seed,
            vitals=vitals,
            evaluate=prepared.evaluate,
            every=Intervals(evaluate=recipe.evaluate_every),
            speed=speed,
            ranks=ranks,
            callbacks=(*metrics, *callbacks),
            checkpoints=checkpoints,
            should_stop=should_stop,
            skip_to=skip_to,
        )
        ranks.meet("ending the run")  # the last checkpoint is written
        if complete:
            record = _record(prepared, out, state, vitals, speed)
            folder.write_record(record)
        return Outcome(complete=complete, step=state.step, record=record, prepared=prepared, out=out)


def restored(
    recipe: Recipe,
    *,
    seed: int,
    out: Path,
    data: TrainTest,
    split: Split | None = None,
    name: str = "last",
    device: str = "auto",
) -> TrainState:
    """The state of the checkpoint "last" or "best" of an earlier run in `out`, on any device.

    Raises:
        InputError: there is no such checkpoint, it is damaged, or it belongs to another run.
    """
    return Prepared(recipe, seed=seed, data=data, split=split, device=choose_device(device)).restored(out, name)


def step_seconds(
    recipe: Recipe, *, data: TrainTest, split: Split, seconds: float, most: int, device: str = "auto"
) -> list[float]:
    """How long each of the first few steps of a recipe takes. Writes no file.

    Args:
        recipe: of many more steps than are timed
        data: to train on
        split: which images are labelled
        seconds: after which no further step begins
        most: the largest number of steps to time; one is always timed
        device: where to compute
    """
    prepared = Prepared(recipe, seed=0, data=data, split=split, device=choose_device(device))
    state = prepared.start()
    state.step = _STEP_WITHOUT_VITALS
    times = [time.perf_counter()]

    def is_over() -> bool:
        wait_for(prepared.device)
        times.append(time.perf_counter())
        return times[-1] - times[0] >= seconds or len(times) > most

    train(
        state,
        recipe.method,
        recipe.optim,
        prepared.stream,
        steps=recipe.steps,
        seed=0,
        vitals=Vitals(prepared.declared),
        evaluate=prepared.evaluate,
        every=Intervals(evaluate=recipe.steps),
        should_stop=is_over,
    )
    return [end - begin for begin, end in pairwise(times)]


def _record(prepared: Prepared, out: Path, state: TrainState, vitals: Vitals, speed: Speed) -> Record:
    last, best = prepared.final_errors(state), state.best()
    best_errors = None if best is None else last
    if best is not None and best.step != state.step:
        best_errors = prepared.final_errors(prepared.restored(out, "best"))
    recipe, data, split = prepared.recipe, prepared.data, prepared.split
    names = {kind: name for name, kind in METHODS.items()}
    n_images = (state.step - state.skipped) * recipe.batch.size
    fields = describe(recipe)
    del fields["claim"], fields["deviations"]
    return Record(
        recipe=RecordedRecipe(
            name=recipe.name,
            fingerprint=prepared.identity["recipe"],
            fields=fields,
            claim=recipe.claim,
            deviations=recipe.deviations,
        ),
        method=names.get(type(recipe.method), type(recipe.method).__name__),
        seed=prepared.seed,
        data=RunData(
            fingerprint=prepared.identity["data"],
            official=data.official,
            n_train=len(data.train),
            n_labelled=len(split.labelled),
            n_validation=len(split.validation),
            n_test=len(data.test),
            class_names=data.train.class_names,
            broken=_broken_images(data, prepared.ranks),
        ),
        split_fingerprint=prepared.identity["split"],
        environment={**environment(prepared.device), **speed.described()},
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
