"""Recipes: data only, one file per table or figure of the paper, and those of our own."""

from difflib import get_close_matches

from meanteacher.core import InputError
from meanteacher.experiment import Recipe
from meanteacher.recipes import compare, fast, figures, moons, quoted, small, table1, table2, table3, table4, table5

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *small.RECIPES,
        *fast.RECIPES,
        *moons.RECIPES,
        *compare.RECIPES,
        *table1.RECIPES,
        *table2.RECIPES,
        *table3.RECIPES,
        *table4.RECIPES,
        *table5.RECIPES,
        *figures.RECIPES,
        *quoted.RECIPES,
    )
}


def find(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        InputError: there is none; names the nearest.
    """
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"There is no recipe {name!r}.{hint} See all with: meanteacher list")
    return RECIPES[name]


__all__ = ["RECIPES", "find"]
