"""A training together with its data: batches, networks, steps and evaluation, each made at most once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import nn

from meanteacher.core import InputError, Problem
from meanteacher.data import ImageStream, Split, TrainTest
from meanteacher.devices import CPU, choose_device, wait_for
from meanteacher.distributed import ALONE, Ranks
from meanteacher.evaluate import classification_costs, top_error_rates
from meanteacher.experiment.recipe import TrainingSpec
from meanteacher.records import Evaluation, FinalErrors, ModelErrors, Part
from meanteacher.seeding import generator, isolated_global_randomness, seed_global
from meanteacher.train import Callback, Checkpoints, Declared, Intervals, StopWhen, TrainState, Vitals, start, train
from meanteacher.train.execution import DEFAULT, RunOptions
from meanteacher.views.normalise import ToFloat

_COST_IMAGES = 1000
"""Labelled images at most on which the classification cost of the curve is measured."""
_MANY_CLASSES = 100
"""From this number on, the record also has the top-5 error. The paper reports it on ImageNet."""
_STEP_WITHOUT_VITALS = 1001
"""The vitals read the gradients often in the first steps, and every thousandth step later: like most steps, this one
has no reading."""


@dataclass(eq=False)
class Prepared:
    """All that a run computes with, on one device. The seed is that of the batches, the noise and the weights."""

    training: TrainingSpec
    _: KW_ONLY
    data: TrainTest
    split: Split
    seed: int
    device: torch.device = CPU
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        rows = self.training.batch.size
        if rows < self.ranks.size:
            raise InputError(
                f"A batch of {rows} rows cannot be divided over {self.ranks.size} processes. Start at most {rows}, or "
                f"take larger batches with --set batch.size={self.ranks.size}."
            )
        self.sampler = self.training.batch.sampler(self.split, self.seed)
        self.training.check_labelled_share(self.sampler.labelled_share)

    def on(self, device: torch.device) -> "Prepared":
        """The same on that device."""
        return self if device == self.device else replace(self, device=device)

    @cached_property
    def normalise(self) -> nn.Module:
        if self.training.normalise is None:
            return ToFloat()
        split = self.split
        kept = torch.cat([split.labelled, split.unlabelled]) if len(split.validation) else None
        train = self.data.train
        return self.training.normalise.fit(train.images, train.to_fit(kept)).to(self.device)

    @cached_property
    def placed(self) -> TrainTest:
        return TrainTest(self.data.train.on(self.device), self.data.test.on(self.device))

    @cached_property
    def stream(self) -> ImageStream:
        """The batches, of which this rank sees its rows."""
        return self._stream(self.ranks)

    def _stream(self, ranks: Ranks) -> ImageStream:
        return ImageStream(
            self.placed.train,
            self.sampler,
            views={role: view for role, view in self.training.views.items() if role in self.training.method.roles},
            labelled_view=self.training.labelled_view,
            normalise=self.normalise,
            seed=self.seed,
            device=self.device,
            rows=ranks.rows,
        )

    @property
    def declared(self) -> Declared:
        """What the live vitals hold the run to."""
        method, steps = self.training.method, self.training.steps
        decay = getattr(method, "decay", None)
        learns_from_it = getattr(method, "teacher_runs", True)
        return Declared(
            n_labelled=len(self.split.labelled),
            labelled_share=self.sampler.labelled_share,
            exact=self.sampler.exact,
            steps=steps,
            evaluates_student=decay is not None
            and not learns_from_it
            and not any(map(decay, (0, steps // 2, steps - 1))),
        )

    def start(self) -> TrainState:
        """The state before the first step."""
        problem = Problem(
            n_classes=self.data.train.n_classes, n_examples=len(self.data.train), input_shape=self._seen_shape()
        )
        with isolated_global_randomness():
            seed_global(self.seed, "weights")
            try:
                student = self.training.model.build(problem)  # on the CPU: the same first weights on every device
            except InputError:
                raise
            except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise InputError(
                    f"The network {self.training.model} cannot be built ({reason}). Correct its fields (--set)."
                ) from error
        return start(
            student,
            self.training.method,
            self.training.optim,
            self._stream(ALONE),  # first weights that depend on a batch depend on the whole of it
            ranks=self.ranks,
            normalise=self.normalise,
            problem=problem,
            seed=self.seed,
            device=self.device,
        )

    def _seen_shape(self) -> tuple[int, ...]:
        """Shape of one image as a network sees it: a view may crop it, or choose one of several that are stored."""
        draws = generator(self.seed, "shape", device=self.device)
        shape = (1, *self.data.train.images.shape[1:])
        image = torch.rand(shape, generator=draws, device=self.device)
        return tuple(self.training.views[self.training.method.roles[0]](self.normalise(image), draws).shape[1:])

    def train(
        self,
        state: TrainState,
        *,
        vitals: Vitals | None = None,
        options: RunOptions = DEFAULT,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        skip_to: Callable[[int], int] | None = None,
    ) -> bool:
        """Train from `state.step` to the last step, in place, as `meanteacher.train.train` does."""
        training = self.training
        return train(
            state,
            training.method,
            training.optim,
            self.stream,
            steps=training.steps,
            seed=self.seed,
            vitals=vitals or Vitals(self.declared),
            evaluate=self.evaluate,
            every=Intervals(evaluate=training.evaluate_every),
            options=options,
            ranks=self.ranks,
            callbacks=callbacks,
            checkpoints=checkpoints,
            skip_to=skip_to,
        )

    def evaluate(self, state: TrainState) -> Evaluation:
        """On the validation part if there is one, otherwise on the test images: that curve may choose no model."""
        part: Part = "validation" if len(self.split.validation) else "test"
        errors = self._errors(state, part, 1)[0]
        costs: dict[str, float] = {}
        if self.training.evaluate_costs:
            costs = classification_costs(
                {"student_cost": state.student, "teacher_cost": state.predictor(self.training.method)},
                self.placed.train,
                self.split.labelled[:_COST_IMAGES],
                normalise=self.normalise,
            )
        return Evaluation(state.step, part, errors["student"], errors["teacher"], **costs)

    def final_errors(self, state: TrainState) -> FinalErrors:
        """The errors of both models on the test images and on the validation part.

        With at least a hundred classes the top-5 errors on the test images are included.
        """
        # What the curve has just measured need not be measured again.
        known = {point.part: asdict(point) for point in state.curve if point.step == state.step}
        top5: dict[str, float] = {}
        if self.data.train.n_classes >= _MANY_CLASSES:
            test, top5 = self._errors(state, "test", 1, 5)
        else:
            test = known.get("test") or self._errors(state, "test", 1)[0]
        validation = known.get("validation", {})
        student, teacher = (
            ModelErrors(test=test[model], validation=validation.get(model), test_top5=top5.get(model))
            for model in ("student", "teacher")
        )
        return FinalErrors(step=state.step, student=student, teacher=teacher)

    def _errors(self, state: TrainState, part: str, *tops: int) -> list[dict[str, float]]:
        dataset, index = (self.placed.test, None) if part == "test" else (self.placed.train, self.split.validation)
        n = len(dataset) if index is None else len(index)
        ranks = self.ranks if self.ranks.size <= n else ALONE  # fewer images than processes: each evaluates all
        if ranks.size > 1:
            index = (torch.arange(n) if index is None else index)[ranks.rows]
        return top_error_rates(
            {"student": state.student, "teacher": state.predictor(self.training.method)},
            dataset,
            index,
            normalise=self.normalise,
            tops=tops,
            add_up=lambda counts: ranks.summed(counts, "adding up errors"),
        )


def step_seconds(
    training: TrainingSpec, *, data: TrainTest, split: Split, seconds: float, most: int, device: str = "auto"
) -> list[float]:
    """How long each of the first few steps takes: at least one, at most `most`. Writes no file.

    No step begins after so many seconds. The training has many more steps than are timed.
    """
    prepared = Prepared(training, data=data, split=split, seed=0, device=choose_device(device))
    state = prepared.start()
    state.step = _STEP_WITHOUT_VITALS
    times = [time.perf_counter()]

    def is_over() -> bool:
        wait_for(prepared.device)
        times.append(time.perf_counter())
        return times[-1] - times[0] >= seconds or len(times) > most

    prepared.train(state, callbacks=[StopWhen(is_over)])
    return [end - begin for begin, end in pairwise(times)]
