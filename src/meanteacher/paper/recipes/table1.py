"""Table 1: SVHN with 250, 500, 1000 and all 73257 labels (Sec. 3.1, App. B.1.2), by the paper and as coded."""

from collections.abc import Iterator
from itertools import product

from meanteacher.core import Augment
from meanteacher.data import Fixed
from meanteacher.data.svhn import Svhn
from meanteacher.experiment.recipe import Recipe
from meanteacher.paper.recipes import shared
from meanteacher.schedules import StepChange
from meanteacher.views import Chain, Noise, PerImage, Translate

_VIEW: Augment = Chain((Translate(2), Noise(0.15)))
_SHORT_THEN_LONG = StepChange(first=0.99, then=0.999, at=shared.RAMP_UP)

_CLAIMS = {
    "supervised": {250: (27.77, 3.18), 500: (16.88, 1.30), 1000: (12.32, 0.95), None: (2.75, 0.10)},
    "pi-model": {250: (9.69, 0.92), 500: (6.83, 0.66), 1000: (4.95, 0.26), None: (2.50, 0.07)},
    "mean-teacher": {250: (4.35, 0.50), 500: (4.18, 0.27), 1000: (3.95, 0.19), None: (2.50, 0.05)},
}
_READ_EARLY: dict[tuple[str, int | None], int] = {("pi-model", 250): 100_000}
"""(method, labels) -> the step at which the paper reads the error, if it is not the last of the authors' script"""
_STEPS_WITH_EXTRA = {100_000: 400_000, 500_000: 600_000}
_SETTINGS = (
    "Images are standardised each by itself, as in the authors' code; the paper says zero mean and unit variance only.",
)
_SEMI_SUPERVISED = (
    "As in the authors' code, the 99 rows without label are drawn from all images, labelled ones included, and the "
    "consistency cost leaves the labelled row out; the paper says neither.",
)
_EXTRA = (
    "The extra images are a random part of the extra set, the same in every run; the authors' code draws another part "
    "in every run.",
)


def _as_coded(name: str, n_labelled: int | None, extra: int) -> tuple[int, int]:
    """The steps of the authors' script, and the steps of its ramp-down."""
    if extra:
        return _STEPS_WITH_EXTRA[extra], 25_000
    return (40_000, 10_000) if name == "supervised" and n_labelled is not None else (180_000, 25_000)


def deviations_of_setting(name: str, n_labelled: int | None, extra: int = 0) -> tuple[str, ...]:
    """All deviations but those of the run's length and ramp-down."""
    notes: tuple[str, ...] = shared.MEAN_OVER_LABELLED + shared.DEVIATIONS + _SETTINGS
    if name != "supervised" and n_labelled is not None:
        notes += _SEMI_SUPERVISED
    if name != "mean-teacher":
        notes += shared.AVERAGED_STATISTICS
    return notes + (_EXTRA if extra else ())


def _deviations(name: str, n_labelled: int | None, extra: int, *, as_coded: bool) -> tuple[str, ...]:
    coded, ramp_down = _as_coded(name, n_labelled, extra)
    stated = _READ_EARLY.get((name, n_labelled), coded)
    notes = deviations_of_setting(name, n_labelled, extra)
    if as_coded:
        notes += (
            f"Learning rate and beta1 ramp down over the last {ramp_down} of {coded} steps, as in the authors' script; "
            "the paper has no ramp-down on SVHN.",
            *shared.RAMP_DOWN_FORMULA,
        )
    else:
        before = "" if name == "supervised" else ", which an earlier version of it had switched off"
        notes += (
            "No ramp-down, as the paper says; the authors' script ramps learning rate and beta1 down over the last "
            f"{ramp_down} of its {coded} steps{before}. The preset {shared.AS_CODED} does as the script.",
        )
    if stated != coded:
        notes += (shared.reading(stated, of=coded, as_coded=as_coded),)
    return notes


def recipe(name: str, n_labelled: int | None, *, extra: int = 0, as_coded: bool = False) -> Recipe:
    """The run of one cell; table 3 is the same with `extra` unlabelled images and more steps."""
    semi_supervised = name != "supervised" and n_labelled is not None
    coded, ramp_down = _as_coded(name, n_labelled, extra)
    steps = coded if as_coded else _READ_EARLY.get((name, n_labelled), coded)
    return shared.convnet(
        "table1/svhn",
        Svhn(extra=extra),
        name + (f"/{shared.AS_CODED}" if as_coded else ""),
        n_labelled,
        _CLAIMS[name][n_labelled],
        deviations=_deviations(name, n_labelled, extra, as_coded=as_coded),
        seeds=shared.SEEDS if n_labelled else shared.SEEDS_ALL_LABELS,
        method=shared.method(
            name,
            decay=_SHORT_THEN_LONG,
            # Not 100, because the authors divide the cost of the 99 unlabelled rows by all 100 rows.
            weight=100.0 if n_labelled is None else 99.0,
            consistency_on="all" if n_labelled is None else "unlabelled",
        ),
        normalise=PerImage(),
        view=_VIEW,
        batch=Fixed(size=shared.BATCH, labelled=1 if semi_supervised else shared.BATCH, unlabelled_pool="all"),
        optim=shared.adam(beta2=_SHORT_THEN_LONG, ramp_down=ramp_down if as_coded else 0, end=steps),
        steps=steps,
        evaluate_every=5000,
    )


def recipes() -> Iterator[Recipe]:
    for name, cells in _CLAIMS.items():
        for n_labelled, as_coded in product(cells, (False, True)):
            yield recipe(name, n_labelled, as_coded=as_coded)
