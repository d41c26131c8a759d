"""A recipe run into a folder: what it is, how it is described and varied, and what the run writes."""

from meanteacher.experiment.override import override
from meanteacher.experiment.prepared import Prepared, step_seconds
from meanteacher.experiment.recipe import DataSpec, Recipe, TrainingSpec
from meanteacher.experiment.run import Outcome, run, run_training
from meanteacher.records import Claim

__all__ = [
    "Claim",
    "DataSpec",
    "Outcome",
    "Prepared",
    "Recipe",
    "TrainingSpec",
    "override",
    "run",
    "run_training",
    "step_seconds",
]
