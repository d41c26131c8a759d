"""Run a recipe into a folder: build its parts, train or resume, evaluate, write the record."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from meanteacher.core import Problem
from meanteacher.data import Dataset, ImageStream, Split, TrainTest, make_split
from meanteacher.devices import CPU, choose_device, wait_for
from meanteacher.evaluate import error_rate
from meanteacher.experiment.describe import describe, fingerprint
from meanteacher.experiment.folder import RunFolder, environment
from meanteacher.experiment.recipe import Recipe
from meanteacher.methods import METHODS
from meanteacher.seeding import isolated_global_randomness, seed_global
from meanteacher.train import (
    Callback,
    Checkpoints,
    Declared,
    Evaluation,
    MetricsFile,
    TrainState,
    Vitals,
    start,
    train,
)
from meanteacher.train.compile import Speed, WantedCompile, WantedPrecision, check_speed, choose_speed, compile_networks

RECORD_SCHEMA = 1
_WITHOUT_VITALS = 1001
"""The vitals read the gradients of the first steps often, and from here on every thousandth: what most steps cost."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    complete: bool
    step: int
    record: dict[str, Any] | None
    """The record, which is also in the folder; None for a run that was interrupted."""


def run(
    recipe: Recipe,
    *,
    seed: int,
    out: Path,
    data: TrainTest,
    split: Split | None = None,
    resume: bool = False,
    device: str = "auto",
    compiled: WantedCompile = "no",
    precision: WantedPrecision = "float32",
    announce: Callable[[str], None] = lambda line: None,
    callbacks: Sequence[Callback] = (),
    should_stop: Callable[[], bool] = lambda: False,
    skip_to: Callable[[int], int] = lambda step: step,
) -> Outcome:
    """Train `recipe` with `seed` and leave everything about it in `out`.

    Args:
        recipe: what to do
        seed: of the labelled set, the batches, the noise and the weights
        out: a folder of its own for this run
        data: what `recipe.data.source` loads
        split: who is labelled; drawn by the seed without
        resume: continue the run that `out` holds
        device: its name; "auto" takes a GPU if there is one, and to resume, the kind that the run was started on
        compiled: whether the networks are compiled, "auto" where that is measured to pay; a resumed run stays as it is
        precision: what the networks compute in; a resumed run stays as it is
        announce: is told in one line what came of trying either
        callbacks: told how it goes as it happens
        should_stop: asked after every step; True saves a checkpoint and ends the run
        skip_to: given the step that is due, the step to take; a later one leaves those between out, to save time

    Raises:
        InputError: something given is wrong; nothing in `out` is lost.
        DivergedError: the costs are no longer finite; the last good checkpoint is kept.
    """
    experiment = _Experiment(recipe, seed, data, split)
    identity = experiment.identity
    with RunFolder(out, identity, describe(recipe), resume=resume, device=device) as folder:
        record = folder.record()
        if record is not None:
            return Outcome(complete=True, step=recipe.steps, record=record)
        experiment.device = folder.device()
        folder.use_same_threads()
        experiment.split.save(out / "split.txt")
        checkpoints = Checkpoints(out / "checkpoints", identity)
        state = experiment.start()
        resumed = resume and checkpoints.exists()
        if resumed:
            checkpoints.restore(state)
        speed = folder.speed()
        if speed is not None:
            check_speed(speed, state, recipe.method, experiment.stream)
        else:
            speed = Speed()  # as runs were before there was a choice
            if not resumed:
                speed = choose_speed(
                    state,
                    recipe.method,
                    experiment.stream,
                    steps=recipe.steps,
                    compiled=compiled,
                    precision=precision,
                    announce=announce,
                )
            folder.write_speed(speed)
        if speed.compiled:
            compile_networks(state.student, state.predictor(recipe.method))
        vitals = Vitals(experiment.declared())
        metrics = MetricsFile(out / "metrics.jsonl", from_step=state.step)
        complete = train(
            state,
            recipe.method,
            recipe.optim,
            experiment.stream,
            steps=recipe.steps,
            seed=seed,
            vitals=vitals,
            evaluate=experiment.evaluate,
            evaluate_every=recipe.evaluate_every,
            precision=speed.precision,
            callbacks=(metrics, *callbacks),
            checkpoints=checkpoints,
            should_stop=should_stop,
            skip_to=skip_to,
        )
        if not complete:
            return Outcome(complete=False, step=state.step, record=None)
        record = experiment.record(state, vitals, checkpoints, speed)
        folder.write_record(record)
        return Outcome(complete=True, step=state.step, record=record)


def step_seconds(
    recipe: Recipe, *, data: TrainTest, split: Split, seconds: float, most: int, device: str = "auto"
) -> list[float]:
    """How long each of the first few steps of a recipe takes. Leaves nothing behind.

    Args:
        recipe: of many more steps than are timed
        data: to train on
        split: who is labelled
        seconds: no step is begun after these
        most: steps to time; at least one is
        device: where to compute
    """
    experiment = _Experiment(recipe, 0, data, split)
    experiment.device = choose_device(device)
    state = experiment.start()
    state.step = _WITHOUT_VITALS
    times = [time.perf_counter()]

    def is_over() -> bool:
        wait_for(experiment.device)
        times.append(time.perf_counter())
        return times[-1] - times[0] >= seconds or len(times) > most

    train(
        state,
        recipe.method,
        recipe.optim,
        experiment.stream,
        steps=recipe.steps,
        seed=0,
        vitals=Vitals(experiment.declared()),
        evaluate=experiment.evaluate,
        evaluate_every=recipe.steps,
        should_stop=is_over,
    )
    return [end - begin for begin, end in pairwise(times)]


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
    """The state that the run in `out` ended with, or that of its best checkpoint, on any device.

    Raises:
        InputError: there is no such checkpoint, it is damaged, or it is another run's.
    """
    experiment = _Experiment(recipe, seed, data, split)
    experiment.device = choose_device(device)
    state = experiment.start()
    Checkpoints(out / "checkpoints", experiment.identity).restore(state, name)
    return state


class _Experiment:
    """The parts of a recipe once the data are there."""

    def __init__(self, recipe: Recipe, seed: int, data: TrainTest, split: Split | None = None) -> None:
        split = split or make_split(
            data.train.labels,
            n_classes=data.train.n_classes,
            n_labelled=recipe.data.n_labelled,
            seed=seed,
            validation=recipe.data.validation,
        )
        self.recipe, self.seed, self.data, self.split = recipe, seed, data, split
        self.identity = {
            "recipe": fingerprint(recipe),
            "seed": str(seed),
            "data": data.train.fingerprint(),
            "split": split.fingerprint(),
        }
        self.sampler = recipe.batch.sampler(split, seed)
        recipe.check_labelled_share(self.sampler.labelled_share)
        self.device = CPU  # to be set before anything below is asked for

    @cached_property
    def normalise(self) -> nn.Module:
        split = self.split
        kept = torch.cat([split.labelled, split.unlabelled]) if len(split.validation) else None
        return self.recipe.normalise.fit(self.data.train.images, kept).to(self.device)

    @cached_property
    def placed(self) -> TrainTest:
        return TrainTest(self.data.train.on(self.device), self.data.test.on(self.device))

    @cached_property
    def stream(self) -> ImageStream:
        roles = (*self.recipe.method.roles, "labelled")
        return ImageStream(
            self.placed.train,
            self.sampler,
            views={role: view for role, view in self.recipe.views.items() if role in roles},
            normalise=self.normalise,
            seed=self.seed,
            device=self.device,
        )

    def start(self) -> TrainState:
        problem = Problem(
            n_classes=self.data.train.n_classes,
            n_examples=len(self.data.train),
            input_shape=tuple(self.data.train.images.shape[1:]),
        )
        with isolated_global_randomness():
            seed_global(self.seed, "weights")
            student = self.recipe.model.build(problem)  # on the CPU: the same first weights on every device
        return start(
            student,
            self.recipe.method,
            self.recipe.optim,
            self.stream,
            normalise=self.normalise,
            problem=problem,
            seed=self.seed,
            device=self.device,
        )

    def declared(self) -> Declared:
        return Declared(
            n_labelled=len(self.split.labelled),
            labelled_share=self.sampler.labelled_share,
            exact=self.sampler.exact,
            steps=self.recipe.steps,
        )

    def evaluate(self, state: TrainState) -> Evaluation:
        """On the validation part where there is one; the test curve is to look at, never to choose by."""
        part = "validation" if len(self.split.validation) else "test"
        errors = self._errors(state, part)
        return Evaluation(state.step, part, errors["student"], errors["teacher"])

    def record(self, state: TrainState, vitals: Vitals, checkpoints: Checkpoints, speed: Speed) -> dict[str, Any]:
        last = self._all_errors(state)
        best = state.best()
        best_errors = None if best is None else last
        if best is not None and best.step != state.step:
            at_best = self.start()
            checkpoints.restore(at_best, "best")
            best_errors = self._all_errors(at_best)
        train_set, split, method = self.data.train, self.split, self.recipe.method
        names = {kind: name for name, kind in METHODS.items()}
        return {
            "schema": RECORD_SCHEMA,
            "recipe": {
                "name": self.recipe.name,
                "fingerprint": self.identity["recipe"],
                "fields": describe(self.recipe),
            },
            "method": names.get(type(method), type(method).__name__),
            "seed": self.seed,
            "status": "complete",
            "data": {
                "fingerprint": self.identity["data"],
                "n_train": len(train_set),
                "n_labelled": len(split.labelled),
                "n_validation": len(split.validation),
                "n_test": len(self.data.test),
                "class_names": list(train_set.class_names),
            },
            "split": {"fingerprint": self.identity["split"]},
            "environment": {**environment(self.device), **speed.described()},
            "n_parameters": sum(p.numel() for p in state.student.parameters()),
            "memory_bytes": sum(t.numel() * t.element_size() for t in state.memory.state_dict().values()),
            "steps": state.step,
            "skipped_steps": state.skipped,
            "seconds": round(state.seconds, 3),
            "cpu_seconds": round(state.cpu_seconds, 3),
            "images_per_second": round(
                (state.step - state.skipped) * self.recipe.batch.size / max(state.seconds, 1e-9), 1
            ),
            "curve": [asdict(point) for point in state.curve],
            "errors": {"last": last, "best_validation": best_errors},
            "vitals": vitals.readings,
            "alarms": [asdict(alarm) for alarm in vitals.alarms],
        }

    def _all_errors(self, state: TrainState) -> dict[str, Any]:
        # What the curve has just measured need not be measured again.
        known = {point.part: asdict(point) for point in state.curve if point.step == state.step}
        test = known.get("test") or self._errors(state, "test")
        validation = known.get("validation")
        return {
            "step": state.step,
            **{
                model: {"test": test[model], "validation": validation[model] if validation else None}
                for model in ("student", "teacher")
            },
        }

    def _errors(self, state: TrainState, part: str) -> dict[str, float]:
        dataset: Dataset = self.placed.test if part == "test" else self.placed.train
        index: Tensor | None = None if part == "test" else self.split.validation
        return {
            "student": error_rate(state.student, dataset, index, normalise=self.normalise),
            "teacher": error_rate(state.predictor(self.recipe.method), dataset, index, normalise=self.normalise),
        }
