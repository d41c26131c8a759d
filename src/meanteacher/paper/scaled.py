"""Scaled twins: the same experiment, small enough for minutes on a CPU.

A twin has a narrower network, fewer steps and fewer training images, all by one rule that depends on the minutes alone.
So the systems of a table stay comparable: every run has the same steps and images. A twin's error is no error of the
paper's.
"""

import math
from dataclasses import fields, replace
from typing import Any

from meanteacher.core import InputError, Schedule
from meanteacher.data import Fixed, Subset
from meanteacher.experiment.recipe import Recipe, Scale
from meanteacher.methods import TemporalEnsembling
from meanteacher.models import Conv13Spec
from meanteacher.schedules import (
    Constant,
    Cosine,
    LinearRampDown,
    LinearWarmUp,
    Product,
    SigmoidRampDown,
    SigmoidRampUp,
    Stairs,
    StepChange,
)
from meanteacher.views import Zca

_OPERATIONS = 1.463e9
"""Operations of the ConvNet's forward pass for one image at full width. They grow like the square of the width."""
_PASSES = 4
"""A step of Mean Teacher: forward twice, and a backward pass that takes as long as two."""
_OPERATIONS_PER_SECOND = 4e10
"""Speed of one core with narrow layers."""
_WIDTHS = (1.0, 0.5, 0.25, 0.125)
_ENOUGH_STEPS = 1000
"""The widest network that can take so many steps is used; the narrowest where none can."""
_RAMP_UPS = 4.5
"""The paper's runs on SVHN last for so many ramp-ups. Baselines that the paper stops earlier, some within the ramp-up,
get twins that last as long."""
_WEIGHT_RAMP_UP = 0.5
"""Share of a run. The paper's network has learned the labels by the end of the ramp-up (its supervised-only runs end
there), which takes about half of a twin."""
_RATE_RAMP_UP = 0.1
"""Share of a run."""
_LEARNING_RATE = 2.0
"""Times the recipe's own, so that a short run learns more."""
_BETA2 = 0.99
"""Adam's beta2 of the paper's first steps: 0.999 averages over more steps than a short run should."""
_DROPOUT = 0.2
"""Times the paper's rate: half of an eighth of the channels are too few to learn from in a short run."""
_BATCH, _LABELLED_ROWS = 50, 25
"""Rows of every system. Supervised-only has the labelled rows alone. With one labelled row of 100, as on SVHN, a
short run would hardly see its labels. Smaller batches allow more steps."""
_PAPER_BATCH = 100
_HORIZON = 0.05
"""Share of a run over which the average with the paper's decay of 0.999 reaches back."""
_EPOCHS = 2.5
"""How often a twin sees each unlabelled image, about. Temporal Ensembling has to see it twice; Mean Teacher has a lower
error on twice as many images (docs/experiments/scaled-twins.md)."""
_POINTS = 25
"""Number of points of a curve."""
_TEST = 0.2
"""The share of the test images: all of them would take as long as a quarter of the training."""
_IMAGES = 73_257
"""Number of images of SVHN. Other sets keep their size relative to it."""
_FEWEST_IMAGES = 50_000
"""Number of images of CIFAR-10, the smaller set."""
_WHITENED_IMAGES = 12_000
"""From fewer of them, ZCA would estimate its 3,072 directions badly."""


def has_twin(recipe: Recipe) -> bool:
    """Whether it can be scaled: a recipe of the paper's ConvNet at full width."""
    model = recipe.training.model
    return recipe.scale is None and isinstance(model, Conv13Spec) and model.width == 1


def scaled(recipe: Recipe, minutes: float) -> Recipe:
    """The twin of a recipe on the paper's ConvNet that takes about so many minutes, at least 1, on one core."""
    training, model = recipe.training, recipe.training.model
    if not has_twin(recipe) or not isinstance(model, Conv13Spec):
        kind = f"trains {type(model).__name__.removesuffix('Spec')}"
        if isinstance(model, Conv13Spec):
            kind = "is scaled already" if recipe.scale else f"trains {model.width:g} of its width"
        raise InputError(
            f"{recipe.name} {kind}: only the paper's recipes on the 13-layer ConvNet can be scaled. Change single "
            "fields of others with --set."
        )
    if not 1 <= minutes < math.inf:
        raise InputError(f"A scaled run takes a number of minutes of at least 1, got {minutes:g}.")
    width, steps = _size(minutes)
    images = (_BATCH - _LABELLED_ROWS) * steps / _EPOCHS / _IMAGES
    # Every class has enough of them for its labels.
    images = max(images, 3 * (recipe.data.n_labelled or 0) / _FEWEST_IMAGES)
    if isinstance(training.normalise, Zca):
        images = max(images, _WHITENED_IMAGES / _FEWEST_IMAGES)
    images = min(1.0, images)
    of_steps = max(training.steps, round(_RAMP_UPS * _ramp_up(getattr(training.optim, "learning_rate", None))))
    supervised = isinstance(training.batch, Fixed) and training.batch.labelled == training.batch.size
    rows = _LABELLED_ROWS if supervised else _BATCH
    scale = Scale(minutes=minutes, width=width, steps=steps, of_steps=of_steps, images=round(images, 4), test=_TEST)
    narrow = replace(
        model,
        width=width,
        dropout=_DROPOUT * model.dropout,
        mean_decay=_shorter(model.mean_decay, steps),
    )
    return recipe.varied(
        name=f"scaled-{minutes:g}-minutes/{recipe.name}",
        data=replace(recipe.data, source=Subset(recipe.data.source, train=scale.images, test=_TEST)),
        model=narrow,
        method=_method(training.method, scale),
        batch=Fixed(size=rows, labelled=_LABELLED_ROWS, unlabelled_pool="all"),
        optim=_optim(training.optim, steps, of_steps),
        steps=steps,
        evaluate_every=steps // _POINTS if training.evaluate_costs else steps,
        scale=scale,
        claim=None,
        deviations=(
            *recipe.deviations,
            f"{scale.caption()} The ramp-up of the consistency weight takes {100 * _WEIGHT_RAMP_UP:g} % of the run, "
            f"that of the learning rate {100 * _RATE_RAMP_UP:g} %; other changes come at the same part of it. The "
            f"average of the paper's decay of 0.999 reaches back over {100 * _HORIZON:g} % of the run, other decays in "
            f"proportion. Batches have {_LABELLED_ROWS} labelled rows"
            + ("." if supervised else f" and {_BATCH - _LABELLED_ROWS} without label.")
            + f" The learning rate is {_LEARNING_RATE:g} times the recipe's, beta2 is {_BETA2:g}. Rates of dropout are "
            f"{_DROPOUT:g} times the recipe's.",
        ),
    )


def _size(minutes: float) -> tuple[float, int]:
    """Width and steps."""
    for width in _WIDTHS:
        per_step = _PASSES * _BATCH * _OPERATIONS * width**2 / _OPERATIONS_PER_SECOND
        steps = int(60 * minutes / per_step)
        if steps >= _ENOUGH_STEPS:
            break
    return width, round(steps, -1)


def _shorter(decay: float, steps: int) -> float:
    """The decay of an average over as large a part of the run as `decay` is for, relative to 0.999."""
    reach = _HORIZON * steps / 1000 / (1 - decay)
    return 0.0 if reach <= 1 else 1 - 1 / reach


def _method(method: Any, scale: Scale) -> Any:
    steps, of_steps = scale.steps, scale.of_steps
    changed: dict[str, Any] = {"decay": _decays(method.decay, steps, of_steps), "labelled_share": None}
    if hasattr(method, "weight"):
        changed["weight"] = _in_time(method.weight, steps, of_steps, ramp_up=_WEIGHT_RAMP_UP)
    if getattr(method, "teacher_dropout", None) is not None:
        changed["teacher_dropout"] = _DROPOUT * method.teacher_dropout
    if isinstance(method, TemporalEnsembling):
        # As many unlabelled images as an epoch of the recipe has, at the twin's share of them.
        n_images = method.epoch_steps * _PAPER_BATCH * scale.images
        changed["epoch_steps"] = max(1, round(n_images / (_BATCH - _LABELLED_ROWS)))
    return replace(method, **changed)


def _decays(schedule: Schedule, steps: int, of_steps: int) -> Schedule:
    match schedule:
        case Constant():
            return Constant(_shorter(schedule.value, steps))
        case StepChange():
            first, then = _shorter(schedule.first, steps), _shorter(schedule.then, steps)
            return StepChange(first=first, then=then, at=round(schedule.at * steps / of_steps))
    raise InputError(f"The decay {schedule} cannot be scaled: only a constant, or one that changes once.")


def _ramp_up(schedule: object) -> int:
    """The steps of its longest ramp-up."""
    match schedule:
        case SigmoidRampUp() | LinearWarmUp():
            return schedule.steps
        case Stairs():
            return _ramp_up(schedule.schedule)
        case Product():
            return max(map(_ramp_up, schedule.factors))
    return 0


def _in_time(schedule: Schedule, steps: int, of_steps: int, *, ramp_up: float) -> Schedule:
    """The same values, reached in `steps` instead of `of_steps`; a ramp-up takes the share `ramp_up` of them."""

    def short(length: int) -> int:
        return max(1, round(length * steps / of_steps))

    def in_time(schedule: Schedule) -> Schedule:
        return _in_time(schedule, steps, of_steps, ramp_up=ramp_up)

    match schedule:
        case Constant():
            changed: Schedule = schedule
        case StepChange():
            changed = replace(schedule, at=short(schedule.at))
        case SigmoidRampUp() | LinearWarmUp():
            changed = replace(schedule, steps=max(1, round(ramp_up * steps)))
        case Cosine():
            changed = replace(schedule, steps=short(schedule.steps))
        case SigmoidRampDown() | LinearRampDown():
            # It takes the same share of the run, and ends with it.
            changed = replace(schedule, steps=max(1, steps * schedule.steps // schedule.total), total=steps)
        case Product():
            changed = Product(tuple(map(in_time, schedule.factors)))
        case Stairs():
            changed = Stairs(schedule=in_time(schedule.schedule), every=short(schedule.every))
        case _:
            raise InputError(f"The schedule {schedule} cannot be scaled.")
    return changed


def _optim(optim: Any, steps: int, of_steps: int) -> Any:
    names = [field.name for field in fields(optim) if callable(getattr(optim, field.name))]
    changed = {name: _in_time(getattr(optim, name), steps, of_steps, ramp_up=_RATE_RAMP_UP) for name in names}
    changed["learning_rate"] = Product((Constant(_LEARNING_RATE), changed["learning_rate"]))
    return replace(optim, **changed | {"beta2": Constant(_BETA2)})
