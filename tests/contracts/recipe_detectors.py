"""What must hold of the recipes of the paper: every number of theirs, and what the numbers come to in the costs."""

import torch
import torch.nn.functional as F

from meanteacher.core import UNLABELLED, Batch
from meanteacher.data import make_split
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.paper.recipes import quoted
from meanteacher.recipes import RECIPES
from paper_numbers import CELLS, problems
from resnet_numbers import RESNETS


def recipes_have_the_numbers_of_the_paper() -> None:
    found = [problem for name, cell in (CELLS | RESNETS).items() for problem in problems(RECIPES[name], cell)]
    assert not found, found[0]


def every_cell_of_the_tables_has_its_recipe() -> None:
    held = {*CELLS, *RESNETS, *(recipe.name for recipe in quoted.recipes())}
    assert {name for name in RECIPES if name.startswith("table")} == held, "a cell has no recipe, or another"


def costs_of_table_2_relate_as_the_authors() -> None:
    """Over the batches of one pass, as drawn: theirs are sums divided by the 100 rows of a batch, whatever it shows."""
    cell = CELLS["table2/cifar10-1000/mean-teacher"]
    recipe = RECIPES[cell.name]
    assert isinstance(recipe.training.method, ConsistencyMethod)
    split = make_split(torch.arange(50_000) % 10, n_classes=10, n_labelled=1000, seed=0)
    sampler = recipe.training.batch.sampler(split, 0)
    draws = torch.Generator().manual_seed(0)
    factors = []
    for step in range(20):
        index, shows = sampler.draw(step)
        logits, target = torch.randn(2, len(index), 10, generator=draws, dtype=torch.float64)
        labels = (index % 10).where(shows, UNLABELLED)
        ours = recipe.training.method.step_output(logits, logits, target, Batch({}, labels, index), 40_000).costs
        theirs = {
            "classification": F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum") / 100,
            "consistency": 2.0 * (logits.softmax(1) - target.softmax(1)).square().mean(1).sum() / 100,
        }
        factors += [float(ours[name].value / theirs[name]) for name in theirs if theirs[name] != 0]
    assert max(factors) - min(factors) < 1e-6 * max(factors), (
        "costs weigh otherwise against each other than the authors'"
    )


DETECTORS = (
    recipes_have_the_numbers_of_the_paper,
    every_cell_of_the_tables_has_its_recipe,
    costs_of_table_2_relate_as_the_authors,
)
