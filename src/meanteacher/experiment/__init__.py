"""A recipe run into a folder: what it is, how it is described and varied, and what the run leaves."""

from meanteacher.experiment.override import override
from meanteacher.experiment.recipe import Claim, DataSpec, Recipe
from meanteacher.experiment.run import Outcome, restored, run, step_seconds

__all__ = ["Claim", "DataSpec", "Outcome", "Recipe", "override", "restored", "run", "step_seconds"]
