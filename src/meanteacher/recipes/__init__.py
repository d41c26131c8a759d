"""All recipes by name: those of our own, which are in this package, and the paper's."""

from difflib import get_close_matches

from meanteacher.core import InputError
from meanteacher.experiment import Recipe
from meanteacher.paper import recipes as paper_recipes
from meanteacher.recipes import compare, fast, toy

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for package in (toy, fast, compare, paper_recipes) for recipe in package.RECIPES
}


def find(name: str) -> Recipe:
    """The recipe of that name; if there is none, the error names the nearest."""
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"There is no recipe {name!r}.{hint} See all with: meanteacher list")
    return RECIPES[name]


__all__ = ["RECIPES", "find"]
