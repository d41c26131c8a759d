"""What the ConvNet experiments of the paper share (App. B.1)."""

from meanteacher.core import Schedule
from meanteacher.models import Conv13
from meanteacher.schedules import SigmoidRampUp

RAMP_UP = 40_000
LEARNING_RATE = 0.003
BATCH = 100
MODEL = Conv13()
SEEDS = tuple(range(10))
SEEDS_ALL_LABELS = tuple(range(4))

DEVIATIONS = (
    "The classification cost is the mean over a batch's labelled rows and weights are converted to that; the "
    "authors' code divides by the whole batch and multiplies the sum of all costs by a constant, which Adam "
    "does not see.",
    "The teacher's average starts as the plain mean of the students so far; the authors' TensorFlow code "
    "starts it at the random first weights and averages the weights before the step, one step late.",
    "Running means for evaluation start as a plain mean instead of at zero; the same after some thousand steps.",
)
AVERAGED_STATISTICS = (
    "The evaluated average runs on averaged running means; the authors run it once a step to collect its own.",
)


def ramped_weight(value: float) -> Schedule:
    return SigmoidRampUp(value=value, steps=RAMP_UP)
