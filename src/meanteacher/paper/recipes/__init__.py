"""The paper's recipes as data: one file per table, one for the figures, one for the systems that it quotes."""

from meanteacher.experiment import Recipe
from meanteacher.paper.recipes import figures, quoted, table1, table2, table3, table4, table5

RECIPES: tuple[Recipe, ...] = tuple(
    recipe for file in (table1, table2, table3, table4, table5, figures, quoted) for recipe in file.RECIPES
)
