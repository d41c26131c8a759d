"""The tables are the paper's in every number, and every number is held: none can be changed unnoticed."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from meanteacher.core import UNLABELLED, Batch, InputError
from meanteacher.costs import Kl, Mse
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.svhn import Svhn
from meanteacher.experiment import Recipe
from meanteacher.experiment.describe import describe
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.paper.recipes import quoted
from meanteacher.recipes import RECIPES
from meanteacher.views import PerChannel, PerImage
from paper_numbers import CELLS, AnyCell, Cell, problems
from resnet_numbers import RESNETS

EVERY: dict[str, AnyCell] = {**CELLS, **RESNETS}
every_cell = pytest.mark.parametrize("cell", EVERY.values(), ids=EVERY)
OF_CONSISTENCY = {name: cell for name, cell in CELLS.items() if not cell.supervised}


def test_every_cell_has_its_recipe_and_no_recipe_of_the_tables_is_without_a_cell():
    held_elsewhere = {recipe.name for recipe in quoted.recipes()}
    assert {name for name in RECIPES if name.startswith("table")} - held_elsewhere == {*CELLS, *RESNETS}


@every_cell
def test_every_hyperparameter_is_the_papers(cell: AnyCell):
    assert problems(RECIPES[cell.name], cell) == []


@every_cell
def test_every_number_says_where_it_was_read(cell: AnyCell):
    assert all(number.place for number in cell.numbers())
    assert len({number.what for number in cell.numbers()}) == len(list(cell.numbers()))


# --- no field is left unheld ------------------------------------------------------------------------------------------

Path = tuple[str, ...]
CHOICES = {
    "buffers": ("own", "average", "copy"),
    "consistency_on": ("all", "unlabelled"),
    "metric": ("error", "top-5 error"),
    "unlabelled_pool": ("all", "unlabelled"),
}


def _children(value: object) -> dict[str, Any] | None:
    """The parts of a value that has any kind of parts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return {str(i): item for i, item in enumerate(value)}
    return None


def _everything(value: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value of a recipe, those that hold others included."""
    yield path, value
    for name, child in (_children(value) or {}).items():
        yield from _everything(child, (*path, name))


def _replaced(value: Any, path: Path, new: object) -> Any:
    if not path:
        return new
    name, *rest = path
    children = _children(value)
    assert children is not None
    changed = _replaced(children[name], tuple(rest), new)
    if isinstance(value, Mapping):
        return {**value, name: changed}
    if isinstance(value, tuple):
        return tuple({**children, name: changed}.values())
    return dataclasses.replace(value, **{name: changed})


def _other(path: Path, leaf: object) -> Iterator[object]:
    """Values that a slip could put there: near ones, so that nothing is held by order of magnitude only."""
    if isinstance(leaf, bool):
        yield not leaf
    elif isinstance(leaf, int):
        yield from (leaf + 1, leaf - 1) if leaf > 1 else (leaf + 1,)
    elif isinstance(leaf, float):
        yield from (leaf * 1.001, leaf * 0.999) if leaf else (0.001,)
    elif leaf is None:
        yield from (1, 0.5)
    elif path[-1] in CHOICES:
        yield from (choice for choice in CHOICES[path[-1]] if choice != leaf)
    else:
        assert isinstance(leaf, str), (path, leaf)
        yield ""


def _described(value: object, path: Path = ()) -> Iterator[Path]:
    """The leaves of a description, without the names of classes."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _described(item, (*path, str(key)))
    elif path[-1] != "is":
        yield path


@every_cell
def test_no_single_field_can_be_changed_unnoticed(cell: AnyCell):
    recipe = RECIPES[cell.name]
    leaves = {path: value for path, value in _everything(recipe) if _children(value) is None}
    assert set(_described(describe(recipe))) <= set(leaves)
    unheld = []
    for path, leaf in leaves.items():
        changed = []
        for other in _other(path, leaf):
            try:
                changed.append((other, _replaced(recipe, path, other)))
            except InputError:
                continue  # the recipe itself refuses it, and another value of the field is tried
        assert changed, f"{'.'.join(path)}: no other value could be tried"
        unheld += [f"{'.'.join(path)}: {leaf} -> {other}" for other, wrong in changed if not problems(wrong, cell)]
    assert unheld == []


def _of_another_kind(value: Any) -> object:
    """The same fields, another class."""
    kind = dataclasses.make_dataclass("Another", [], bases=(type(value),), frozen=True)
    return kind(**(_children(value) or {}))


@every_cell
def test_no_part_can_be_of_another_kind_or_missing_unnoticed(cell: AnyCell):
    """Costs, normalisers and sources have few fields or none: what they are is held, too."""
    recipe = RECIPES[cell.name]
    wrong: list[Recipe] = [
        recipe.varied(normalise=PerImage() if isinstance(recipe.training.normalise, PerChannel) else PerChannel()),
        _replaced(recipe, ("data", "source"), Cifar10() if isinstance(recipe.data.source, Svhn) else Svhn()),
        dataclasses.replace(recipe, seeds=recipe.seeds[:-1]),
        dataclasses.replace(recipe, claim=None),
        dataclasses.replace(recipe, deviations=(*recipe.deviations, "One that is not so.")),
        recipe.varied(labelled_view=recipe.training.views["student"]),
    ]
    for role in recipe.training.views:
        augments = recipe.training.views[role].augments
        wrong += [
            _replaced(recipe, ("training", "views", role, "augments"), augments[:i] + augments[i + 1 :])
            for i in range(len(augments))
        ]
    wrong += [
        dataclasses.replace(recipe, deviations=recipe.deviations[:i] + recipe.deviations[i + 1 :])
        for i in range(len(recipe.deviations))
    ]
    if isinstance(recipe.training.method, ConsistencyMethod):
        wrong.append(
            _replaced(
                recipe, ("training", "method", "cost"), Mse() if isinstance(recipe.training.method.cost, Kl) else Kl()
            )
        )
    for part in ("data", "model", "method", "batch", "optim"):
        value = recipe.data.source if part == "data" else getattr(recipe.training, part)
        path = ("data", "source") if part == "data" else ("training", part)
        wrong.append(_replaced(recipe, path, _of_another_kind(value)))
    assert all(problems(changed, cell) for changed in wrong)


@every_cell
def test_no_recipe_passes_for_another_cell(cell: AnyCell):
    """Claims of neighbouring cells are easily swapped."""
    numbers = list(cell.numbers())
    renamed = [dataclasses.replace(other, name=cell.name) for other in RECIPES.values() if other.name != cell.name]
    assert not any(all(number.holds(other) for number in numbers) for other in renamed)


# --- what the numbers come to -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", OF_CONSISTENCY.values(), ids=OF_CONSISTENCY)
@pytest.mark.parametrize("step", [0, 20_000, 100_000])
def test_costs_relate_as_in_the_authors_code_at_every_step(cell: Cell, step: int):
    """Whatever batch is drawn: ours is theirs times a constant, which Adam does not see.

    Theirs: the sum of the cross-entropies, divided by all 100 rows, plus the nominal weight times the sum of the
    squared differences over the rows it applies to, also divided by all 100 rows.
    """
    method = RECIPES[cell.name].training.method
    assert isinstance(method, ConsistencyMethod)
    nominal = {True: 100.0, False: 1.0 if cell.svhn else 100 * (cell.n_labelled or 0) / 50_000}[cell.all_labels]
    factors = set()
    counts = (0, 1, 2, 7) if cell.mixed else ((1,) if cell.semi_supervised else (100,))
    for n_labelled in counts:
        draws = torch.Generator().manual_seed(n_labelled)
        logits, target = torch.randn(2, 100, 10, generator=draws, dtype=torch.float64)
        labels = torch.randint(10, (100,), generator=draws)
        labels[n_labelled:] = UNLABELLED
        ours = method.step_output(logits, logits, target, Batch({}, labels, torch.arange(100)), step).costs
        rows = labels == UNLABELLED if cell.svhn and cell.semi_supervised else torch.ones(100, dtype=torch.bool)
        squares = (logits.softmax(1) - target.softmax(1)).square().mean(1)[rows].sum()
        ramp = math.exp(-5 * (1 - min(step / 40_000, 1)) ** 2)
        theirs = {
            "classification": F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum") / 100,
            "consistency": nominal * ramp * squares / 100,
        }
        factors |= {round(float(ours[name].value / theirs[name]), 6) for name in theirs if theirs[name] != 0}
        assert set(ours) == set(theirs)
        assert (ours["classification"].value == 0) == (n_labelled == 0)
    (factor,) = factors
    assert factor == pytest.approx(100 / nominal if not cell.all_labels else 1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("n_labelled", "share", "factor"), [(1000, 0.132, 1.153), (2000, 0.017, 1.017), (4000, 0.0002, 1.0002)]
)
def test_effect_of_batches_without_a_label_is_as_the_recipes_say(n_labelled: int, share: float, factor: float):
    """100 of 50000 images without replacement: the share of draws without a labelled one, and what a mean over the
    labelled rows of each batch would then do to the consistency weight."""
    empty = math.comb(50_000 - n_labelled, 100) / math.comb(50_000, 100)
    digits = 4 if n_labelled == 4000 else 3
    assert round(empty, digits) == share
    assert round(1 / (1 - empty), digits) == factor
    said = RECIPES[f"table2/cifar10-{n_labelled}/mean-teacher"].deviations[0]
    assert f"{factor}" in said
