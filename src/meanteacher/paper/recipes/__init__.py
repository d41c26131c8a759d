"""The paper's recipes as data: one file per table, and one each for figures, quoted systems and laptop versions."""

from meanteacher.experiment import Recipe
from meanteacher.paper.recipes import figures, laptop, quoted, table1, table2, table3, table4, table5

RECIPES: tuple[Recipe, ...] = tuple(
    recipe for file in (table1, table2, table3, table4, table5, figures, quoted, laptop) for recipe in file.recipes()
)
