"""Common settings of the paper's ConvNet experiments (App. B.1)."""

from typing import Any

from meanteacher.core import Augment, Method, Schedule
from meanteacher.data import Source
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.methods import METHODS
from meanteacher.models import Conv13Spec
from meanteacher.records import Claim
from meanteacher.schedules import Constant, Product, SigmoidRampDown, SigmoidRampUp
from meanteacher.train import AdamSpec

RAMP_UP = 40_000
LEARNING_RATE = 0.003
BATCH = 100
MODEL = Conv13Spec()
SEEDS = tuple(range(10))
SEEDS_ALL_LABELS = tuple(range(4))

AS_CODED = "as-coded"
"""Last part of a recipe's name, if its steps and ramp-downs are those of the authors' scripts and not the paper's."""

MEAN_OVER_LABELLED = (
    "The classification cost is the mean over a batch's labelled rows and weights are converted to that; the "
    "authors' code divides by the whole batch and multiplies the sum of all costs by a constant, which Adam "
    "does not see.",
)
DEVIATIONS = (
    "The teacher's average starts as the plain mean of the students so far; the authors' TensorFlow code "
    "starts it at the random first weights and averages the weights before the step, one step late.",
    "Running means for evaluation start as a plain mean instead of at zero; the same after some thousand steps.",
    "Adam adds epsilon after the correction of the second moment, TensorFlow's Adam before it, where it acts like one "
    "divided by sqrt(1 - beta2^t): 32 times as large in the first step with a beta2 of 0.999, and the same after some "
    "thousand steps.",
)
AVERAGED_STATISTICS = (
    "The evaluated average runs on averaged running means; the authors run it once a step to collect its own.",
)
RAMP_DOWN_FORMULA = (
    "A ramp-down multiplies by exp(-12.5 x²), as in the authors' code; the paper prints one minus that.",
)


def reading(steps: int, of: int, *, as_coded: bool) -> str:
    """The note on a number that the paper took from the middle of a run."""
    end = "compare it with this run's evaluation at that step" if as_coded else "this run ends there"
    return f"The paper's number is the reading after {steps} of the {of} steps of the authors' script; {end}."


def ramped_weight(value: float) -> Schedule:
    return SigmoidRampUp(value=value, steps=RAMP_UP)


def method(name: str, *, decay: Schedule, weight: float, **consistency: Any) -> Method:
    """A method that the authors ran themselves, with the weight and further fields of its consistency cost."""
    fields: Any = {"decay": decay, "buffers": "own" if name == "mean-teacher" else "average"}
    if name != "supervised":
        fields |= {"weight": ramped_weight(weight), **consistency}
    return METHODS[name](**fields)


def convnet(
    column: str,
    source: Source,
    name: str,
    n_labelled: int | None,
    claim: tuple[float, float | None] | None,
    *,
    deviations: tuple[str, ...],
    view: Augment,
    seeds: tuple[int, ...] = SEEDS,
    **training: Any,
) -> Recipe:
    """A recipe on the ConvNet, whose student and teacher have the same view, with further fields of its training.

    The column is a table and a data set, as in "table1/svhn"; the claim is the paper's error and its spread.
    """
    return Recipe(
        name=f"{column}-{n_labelled or 'all'}/{name}",
        data=DataSpec(source=source, n_labelled=n_labelled),
        training=TrainingSpec(model=MODEL, views={"student": view, "teacher": view}, **training),
        seeds=seeds,
        claim=claim and Claim(error=claim[0], spread=claim[1], where=f"Table {column[5]}"),
        deviations=deviations,
    )


def adam(*, beta2: Schedule, ramp_down: int = 0, end: int = 0) -> AdamSpec:
    """Adam with a ramp-up of the learning rate, and a ramp-down of it and beta1 over `ramp_down` steps until `end`."""
    ramp_up = SigmoidRampUp(value=LEARNING_RATE, steps=RAMP_UP)
    if not ramp_down:
        return AdamSpec(learning_rate=ramp_up, beta1=Constant(0.9), beta2=beta2)
    return AdamSpec(
        learning_rate=Product((ramp_up, SigmoidRampDown(value=1.0, steps=ramp_down, total=end))),
        beta1=SigmoidRampDown(value=0.9, final=0.5, steps=ramp_down, total=end),
        beta2=beta2,
    )
