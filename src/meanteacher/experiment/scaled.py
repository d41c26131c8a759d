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

_OPERATIONS = 1.463e9
"""Of the ConvNet's forward pass for one image at full width; they grow like the square of the width."""
_PASSES = 4
"""A step of Mean Teacher: forward twice, and a backward pass that takes as long as two."""
_OPERATIONS_PER_SECOND = 4e10
"""Of one core, with narrow layers, evaluations included."""
_WIDTHS = (1.0, 0.5, 0.25, 0.125)
_ENOUGH_STEPS = 1000
"""The widest network that can take so many steps is used; the narrowest where none can."""
_RAMP_UPS = 4.5
"""The paper's runs on SVHN last for so many ramp-ups. Baselines that the paper stops earlier, some within the ramp-up,
get twins that last as long."""
_BATCH, _LABELLED_ROWS = 100, 25
"""With one labelled row, as on SVHN, a short run would hardly see its labels."""
_HORIZON = 0.05
"""Of a run: how far the average with the paper's decay of 0.999 reaches back."""
_EPOCHS = 5.0
"""How often a twin sees each unlabelled image, about: Temporal Ensembling needs several times."""
_POINTS = 25
"""Of a curve, each on a fifth of the test images: more would take longer than the training."""
_IMAGES = 73_257
"""Of SVHN. Other sets keep their size relative to it."""
_FEWEST_IMAGES = 50_000
"""Of CIFAR-10, the smaller set."""


def has_twin(recipe: Recipe) -> bool:
    """Whether it can be scaled: a recipe of the paper's ConvNet at full width."""
    return recipe.scale is None and isinstance(recipe.model, Conv13Spec) and recipe.model.width == 1


def scaled(recipe: Recipe, minutes: float) -> Recipe:
    """The twin of a recipe of the paper that takes about so many minutes per run on one core.

    Args:
        recipe: one on the paper's ConvNet
        minutes: at least 1

    Raises:
        InputError: the recipe has no twin.
    """
    if not has_twin(recipe) or not isinstance(recipe.model, Conv13Spec):
        kind = f"trains {type(recipe.model).__name__.removesuffix('Spec')}"
        if isinstance(recipe.model, Conv13Spec):
            kind = "is scaled already" if recipe.scale else f"trains {recipe.model.width:g} of its width"
        raise InputError(
            f"{recipe.name} {kind}: only the paper's recipes on the 13-layer ConvNet can be scaled. Change single "
            "fields of others with --set."
        )
    if not 1 <= minutes < math.inf:
        raise InputError(f"A scaled run takes a number of minutes of at least 1, got {minutes:g}.")
    width, steps = _size(minutes)
    images = (_BATCH - _LABELLED_ROWS) * steps / _EPOCHS / _IMAGES
    # Every class has enough of them for its labels.
    images = min(1.0, max(images, 3 * (recipe.data.n_labelled or 0) / _FEWEST_IMAGES))
    learning_rate = getattr(recipe.optim, "learning_rate", None)
    of_steps = max(recipe.steps, round(_RAMP_UPS * _ramp_up(learning_rate)))
    curves = recipe.evaluate_costs
    supervised = isinstance(recipe.batch, Fixed) and recipe.batch.labelled == recipe.batch.size
    scale = Scale(minutes=minutes, width=width, steps=steps, of_steps=of_steps, images=round(images, 4))
    return replace(
        recipe,
        name=f"scaled-{minutes:g}-minutes/{recipe.name}",
        data=replace(recipe.data, source=Subset(recipe.data.source, train=scale.images, test=0.2 if curves else 1.0)),
        model=replace(recipe.model, width=width, mean_decay=_shorter(recipe.model.mean_decay, steps)),
        method=_method(recipe.method, scale),
        batch=Fixed(size=_BATCH, labelled=_BATCH if supervised else _LABELLED_ROWS, unlabelled_pool="all"),
        optim=_optim(recipe.optim, steps, of_steps),
        steps=steps,
        evaluate_every=steps // _POINTS if curves else steps,
        scale=scale,
        claim=None,
        deviations=(
            *recipe.deviations,
            f"{scale.caption()} Ramps are shortened with the steps. The average of the paper's decay of 0.999 reaches "
            f"back over {100 * _HORIZON:g} % of the run, other decays in proportion. Batches of "
            f"{_BATCH} rows have {_BATCH if supervised else _LABELLED_ROWS} labelled ones.",
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
        changed["weight"] = _in_time(method.weight, steps, of_steps)
    if isinstance(method, TemporalEnsembling):
        # As many unlabelled images as an epoch of the recipe has, at the twin's share of them.
        n_images = method.epoch_steps * _BATCH * scale.images
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


def _in_time(schedule: Schedule, steps: int, of_steps: int) -> Schedule:
    """The same values, reached in `steps` instead of `of_steps`."""

    def short(length: int) -> int:
        return max(1, round(length * steps / of_steps))

    match schedule:
        case Constant():
            return schedule
        case StepChange():
            return replace(schedule, at=short(schedule.at))
        case SigmoidRampUp() | LinearWarmUp() | Cosine():
            return replace(schedule, steps=short(schedule.steps))
        case SigmoidRampDown() | LinearRampDown():
            # It takes the same share of the run, and ends with it.
            return replace(schedule, steps=max(1, steps * schedule.steps // schedule.total), total=steps)
        case Product():
            return Product(tuple(_in_time(factor, steps, of_steps) for factor in schedule.factors))
        case Stairs():
            return Stairs(schedule=_in_time(schedule.schedule, steps, of_steps), every=short(schedule.every))
    raise InputError(f"The schedule {schedule} cannot be scaled.")


def _optim(optim: Any, steps: int, of_steps: int) -> Any:
    names = [field.name for field in fields(optim) if callable(getattr(optim, field.name))]
    return replace(optim, **{name: _in_time(getattr(optim, name), steps, of_steps) for name in names})
