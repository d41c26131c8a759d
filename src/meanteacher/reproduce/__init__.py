"""The paper's tables and figures: run what is missing, and render what there is."""

from meanteacher.reproduce.place import Reproduced, figure, table

__all__ = ["Reproduced", "figure", "table"]
