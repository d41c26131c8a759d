"""A recipe together with its data: split, identity, batches and evaluation, each made at most once."""

from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.data import ImageStream, Split, TrainTest, make_split
from meanteacher.devices import CPU
from meanteacher.distributed.ranks import ALONE, Ranks
from meanteacher.evaluate import classification_costs, error_rates
from meanteacher.experiment.describe import fingerprint
from meanteacher.experiment.recipe import Recipe
from meanteacher.records import Evaluation, FinalErrors, ModelErrors, Part
from meanteacher.seeding import generator, isolated_global_randomness, seed_global
from meanteacher.train import Checkpoints, Declared, TrainState, start

_COST_IMAGES = 1000
"""Labelled images at most on which the classification cost of the curve is measured."""
_MANY_CLASSES = 100
"""From this number on, the record also has the top-5 error. The paper reports it on ImageNet."""


class Prepared:
    """All that a run computes with, on one device.

    Runs that share their `data` also share its fingerprint, for which every pixel of images in memory is read.

    Args:
        recipe: what to do
        seed: of the labelled set, the batches, the noise and the weights
        data: what `recipe.data.source` loads
        split: which images are labelled; drawn by the seed if not given
        device: where to compute
        ranks: the processes that compute together

    Raises:
        InputError: the recipe does not fit the data, or its batches are too small for so many processes.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        seed: int,
        data: TrainTest,
        split: Split | None = None,
        device: torch.device = CPU,
        ranks: Ranks = ALONE,
    ) -> None:
        if recipe.batch.size < ranks.size:
            raise InputError(
                f"A batch of {recipe.batch.size} rows cannot be divided over {ranks.size} processes. Start at most "
                f"{recipe.batch.size}, or take larger batches with --set batch.size={ranks.size}."
            )
        self.recipe, self.seed, self.data, self.device, self.ranks = recipe, seed, data, device, ranks
        self.split = split or make_split(
            data.train.labels,
            n_classes=data.train.n_classes,
            n_labelled=recipe.data.n_labelled,
            seed=seed,
            validation=recipe.data.validation,
        )
        self.identity = {
            "recipe": fingerprint(recipe),
            "seed": str(seed),
            "data": data.train.fingerprint(),
            "split": self.split.fingerprint(),
        }
        self.sampler = recipe.batch.sampler(self.split, seed)
        recipe.check_labelled_share(self.sampler.labelled_share)

    def on(self, device: torch.device) -> "Prepared":
        """The same on that device."""
        if device == self.device:
            return self
        return Prepared(self.recipe, seed=self.seed, data=self.data, split=self.split, device=device, ranks=self.ranks)

    @cached_property
    def normalise(self) -> nn.Module:
        split = self.split
        kept = torch.cat([split.labelled, split.unlabelled]) if len(split.validation) else None
        train = self.data.train
        return self.recipe.normalise.fit(train.images, train.to_fit(kept)).to(self.device)

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
            views={role: view for role, view in self.recipe.views.items() if role in self.recipe.method.roles},
            labelled_view=self.recipe.labelled_view,
            normalise=self.normalise,
            seed=self.seed,
            device=self.device,
            rows=slice(None) if ranks.size == 1 else ranks.rows,
        )

    @property
    def declared(self) -> Declared:
        """What the live vitals hold the run to."""
        method, steps = self.recipe.method, self.recipe.steps
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
                student = self.recipe.model.build(problem)  # on the CPU: the same first weights on every device
            except InputError:
                raise
            except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise InputError(
                    f"The network {self.recipe.model} cannot be built ({reason}). Correct its fields (--set)."
                ) from error
        return start(
            student,
            self.recipe.method,
            self.recipe.optim,
            # First weights that depend on a batch depend on the whole of it.
            self.stream if self.ranks.size == 1 else self._stream(ALONE),
            normalise=self.normalise,
            problem=problem,
            seed=self.seed,
            device=self.device,
        )

    def _seen_shape(self) -> tuple[int, ...]:
        """Of one image as a network sees it: a view may crop it, or choose one of several that are stored."""
        draws = generator(self.seed, "shape", device=self.device)
        shape = (1, *self.data.train.images.shape[1:])
        image = torch.rand(shape, generator=draws, device=self.device)
        return tuple(self.recipe.views[self.recipe.method.roles[0]](self.normalise(image), draws).shape[1:])

    def checkpoints(self, out: Path) -> Checkpoints:
        return Checkpoints(out / "checkpoints", self.identity)

    def restored(self, out: Path, name: str = "last") -> TrainState:
        """The state of a checkpoint, "last" or "best", of the run in `out`.

        Raises:
            InputError: there is no such checkpoint, it is damaged, or it belongs to another run.
        """
        state = self.start()
        self.checkpoints(out).restore(state, name)
        return state

    def evaluate(self, state: TrainState) -> Evaluation:
        """On the validation part if there is one, otherwise on the test images: that curve may choose no model."""
        part: Part = "validation" if len(self.split.validation) else "test"
        errors = self._errors(state, part)
        costs: dict[str, float] = {}
        if self.recipe.evaluate_costs:
            costs = classification_costs(
                {"student_cost": state.student, "teacher_cost": state.predictor(self.recipe.method)},
                self.placed.train,
                self.split.labelled[:_COST_IMAGES],
                normalise=self.normalise,
                ranks=self.ranks,
            )
        return Evaluation(state.step, part, errors["student"], errors["teacher"], **costs)

    def final_errors(self, state: TrainState) -> FinalErrors:
        """The errors of both models on the test images and on the validation part.

        With at least a hundred classes the top-5 errors on the test images are included.
        """
        # What the curve has just measured need not be measured again.
        known = {point.part: asdict(point) for point in state.curve if point.step == state.step}
        test = known.get("test") or self._errors(state, "test")
        validation = known.get("validation")
        top5 = self._errors(state, "test", top=5) if self.data.train.n_classes >= _MANY_CLASSES else {}
        student, teacher = (
            ModelErrors(
                test=test[model], validation=validation[model] if validation else None, test_top5=top5.get(model)
            )
            for model in ("student", "teacher")
        )
        return FinalErrors(step=state.step, student=student, teacher=teacher)

    def _errors(self, state: TrainState, part: str, *, top: int = 1) -> dict[str, float]:
        index: Tensor | None = None if part == "test" else self.split.validation
        return error_rates(
            {"student": state.student, "teacher": state.predictor(self.recipe.method)},
            self.placed.test if part == "test" else self.placed.train,
            index,
            normalise=self.normalise,
            top=top,
            ranks=self.ranks,
        )
