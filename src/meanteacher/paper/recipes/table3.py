"""Table 3: SVHN with 500 labels and 100000 or 500000 extra unlabelled images (Sec. 3.2), by the paper and as coded."""

from dataclasses import replace

from meanteacher.experiment.recipe import Recipe
from meanteacher.paper.recipes import shared, table1
from meanteacher.records import Claim

_N_LABELLED = 500
_CLAIMS = {
    "pi-model": {100_000: (4.49, 0.27), 500_000: (3.26, 0.14)},
    "mean-teacher": {100_000: (3.02, 0.16), 500_000: (2.46, 0.06)},
}


def _recipe(name: str, extra: int, *, as_coded: bool) -> Recipe:
    error, spread = _CLAIMS[name][extra]
    return replace(
        table1.recipe(name, _N_LABELLED, extra=extra, as_coded=as_coded),
        name=f"table3/svhn-{_N_LABELLED}-extra-{extra // 1000}k/{name}" + (f"/{shared.AS_CODED}" if as_coded else ""),
        claim=Claim(error=error, spread=spread, where="Table 3"),
    )


def recipes() -> tuple[Recipe, ...]:
    return tuple(
        _recipe(name, extra, as_coded=as_coded)
        for name, cells in _CLAIMS.items()
        for extra in cells
        for as_coded in (False, True)
    )


RECIPES = recipes()
