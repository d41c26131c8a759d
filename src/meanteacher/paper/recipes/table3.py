"""Table 3: SVHN with 500 labels and 100000 or 500000 extra unlabelled images (Sec. 3.2), by the paper and as coded."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from meanteacher.experiment.recipe import Recipe
from meanteacher.paper.recipes import table1
from meanteacher.records import Claim

_CLAIMS = {
    ("pi-model", 100_000): (4.49, 0.27),
    ("pi-model", 500_000): (3.26, 0.14),
    ("mean-teacher", 100_000): (3.02, 0.16),
    ("mean-teacher", 500_000): (2.46, 0.06),
}


def recipes() -> Iterator[Recipe]:
    for ((name, extra), (error, spread)), as_coded in product(_CLAIMS.items(), (False, True)):
        made = table1.recipe(name, 500, extra=extra, as_coded=as_coded)
        named = made.name.replace("table1/svhn-500", f"table3/svhn-500-extra-{extra // 1000}k")
        yield replace(made, name=named, claim=Claim(error=error, spread=spread, where="Table 3"))
