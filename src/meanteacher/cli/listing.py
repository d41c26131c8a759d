"""`meanteacher list`."""

from rich.console import Console
from rich.table import Table

from meanteacher.core import InputError
from meanteacher.recipes import RECIPES


def print_recipes(pattern: str) -> None:
    """One line a recipe."""
    chosen = [recipe for name, recipe in RECIPES.items() if pattern in name]
    if not chosen:
        raise InputError(f"No recipe has {pattern!r} in its name. See all with: meanteacher list")
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for heading in ("labels", "steps", "paper's error %"):
        table.add_column(heading, justify="right")
    for recipe in chosen:
        claim = recipe.claim
        error = f"{claim.error:.2f} ± {claim.spread:.2f}" if claim and claim.spread is not None else ""
        labels = "all" if recipe.data.n_labelled is None else str(recipe.data.n_labelled)
        table.add_row(recipe.name, labels, str(recipe.steps), error)
    Console().print(table)
