"""The rows that the paper quotes have the settings of their own authors, read from their papers and published code."""

import dataclasses

import pytest

from meanteacher.data import Fixed, Mixed
from meanteacher.experiment import Recipe
from meanteacher.methods import ImprovedGan, PiModel, TemporalEnsembling, VatEntMin
from meanteacher.methods.consistency import ConsistencyMethod
from meanteacher.paper.recipes import quoted
from meanteacher.paper.recipes import shared as paper
from meanteacher.recipes import find
from meanteacher.train import AdamSpec
from meanteacher.views import Chain, Flip, Noise, PerImage, Scaled, Translate, Zca

NAMES = [recipe.name for recipe in quoted.recipes()]
ROWS = ("pi-model-laine", "temporal-ensembling", "gan", "vat-entmin")


def _of(method: str) -> list[Recipe]:
    return [recipe for recipe in quoted.recipes() if recipe.name.endswith(f"/{method}")]


def _adam(recipe: Recipe) -> AdamSpec:
    assert isinstance(recipe.training.optim, AdamSpec)
    return recipe.training.optim


def _augments(recipe: Recipe) -> list[object]:
    view = recipe.training.views["student"]
    assert isinstance(view, Chain)
    return list(view.augments)


def _is_svhn(recipe: Recipe) -> bool:
    return "svhn" in recipe.name


def test_there_are_the_fifteen_cells_of_tables_1_and_2_and_those_that_complete_their_columns():
    assert len([name for name in NAMES if find(name).claim]) == 15
    claimed = {name: len([recipe for recipe in _of(name) if recipe.claim]) for name in ROWS}
    assert claimed == {"pi-model-laine": 5, "temporal-ensembling": 5, "gan": 3, "vat-entmin": 2}
    assert {name: len(_of(name)) - n for name, n in claimed.items()} == {
        "pi-model-laine": 0,
        "temporal-ensembling": 3,
        "gan": 0,
        "vat-entmin": 4,
    }


@pytest.mark.parametrize("name", NAMES)
def test_all_use_the_papers_network_ten_runs_and_both_data_sets_whole(name: str):
    recipe = find(name)
    assert recipe.training.model == paper.MODEL
    assert recipe.seeds == tuple(range(10))
    assert recipe.data.validation == 0
    assert recipe.deviations
    assert recipe.claim is None or recipe.claim.where == ("Table 1" if _is_svhn(recipe) else "Table 2")
    assert type(recipe.data.source).__name__ == ("Svhn" if _is_svhn(recipe) else "Cifar10")
    assert (_adam(recipe).beta2(0), _adam(recipe).beta2(10**6), _adam(recipe).epsilon) == (0.999, 0.999, 1e-8)


@pytest.mark.parametrize("name", [recipe.name for recipe in (*_of("pi-model-laine"), *_of("temporal-ensembling"))])
def test_laine_and_aila(name: str):
    """300 epochs of batches of 100; learning rate and weight ramp up over 80 epochs, learning rate and beta1 down over
    the last 50, all by whole epochs; no weight in the first epoch."""
    recipe, method, adam = find(name), find(name).training.method, _adam(find(name))
    epoch = 732 if _is_svhn(recipe) else 500
    assert recipe.training.batch == Mixed(size=100)
    assert recipe.training.steps == 300 * epoch
    assert isinstance(method, ConsistencyMethod)
    weight = {PiModel: 100.0, TemporalEnsembling: 30.0}[type(method)]
    assert [method.weight(step) for step in (0, epoch - 1)] == [0.0, 0.0]
    assert method.weight(40 * epoch) == method.weight(41 * epoch - 1) == pytest.approx(weight * 0.2865, rel=1e-3)
    assert method.weight(80 * epoch) == method.weight(recipe.training.steps) == weight
    rate = 0.001 if _is_svhn(recipe) and isinstance(method, TemporalEnsembling) else 0.003
    assert adam.learning_rate(0) == pytest.approx(rate * 0.006738, rel=1e-3)
    assert adam.learning_rate(80 * epoch) == adam.learning_rate(250 * epoch) == rate
    assert (
        adam.learning_rate(275 * epoch)
        == adam.learning_rate(276 * epoch - 1)
        == pytest.approx(rate * 0.04394, rel=1e-3)
    )
    assert (adam.beta1(250 * epoch), adam.beta1(recipe.training.steps)) == pytest.approx((0.9, 0.5), abs=1e-5)
    n_images = 73_257 if _is_svhn(recipe) else 50_000
    n_labelled = recipe.data.n_labelled
    assert method.labelled_share == (None if n_labelled is None else n_labelled / n_images)
    assert (method.decay(10**6), method.buffers, method.consistency_on) == (0.0, "copy", "all"), "the last network"
    if isinstance(method, TemporalEnsembling):
        assert (method.momentum, method.epoch_steps) == (0.6, epoch)
    flip = [] if _is_svhn(recipe) else [Flip()]
    assert _augments(recipe) == [*flip, Translate(2), Noise(0.15)]
    assert recipe.training.normalise == (PerImage() if _is_svhn(recipe) else Zca(contrast=False, epsilon=1e-5))


@pytest.mark.parametrize("recipe", _of("vat-entmin"), ids=lambda recipe: recipe.name)
def test_miyato_et_al(recipe: Recipe):
    """32 labelled and 128 other rows; 48000 and 200000 updates, the last 16000 with a falling learning rate."""
    method, adam = recipe.training.method, _adam(recipe)
    assert isinstance(method, VatEntMin)
    assert recipe.training.batch == Fixed(size=160, labelled=32, unlabelled_pool="all")
    steps = 48_000 if _is_svhn(recipe) else 200_000
    assert recipe.training.steps == steps
    assert adam.learning_rate(0) == adam.learning_rate(steps - 16_000) == 0.001
    assert adam.learning_rate(steps - 8000) == adam.learning_rate(steps - 7601) == pytest.approx(0.0005)
    assert adam.learning_rate(steps - 1) == pytest.approx(0.001 / 40)
    assert (adam.beta1(steps - 16_001), adam.beta1(steps - 16_000)) == (0.9, 0.5)
    assert (method.epsilon, method.iterations) == (3.5 if _is_svhn(recipe) else 8.0, 1)
    assert (method.weight(0), method.weight(steps), method.entropy_weight) == (1.0, 1.0, 1.0)
    assert (method.decay(10**6), method.buffers) == (0.0, "copy")
    assert _augments(recipe) == ([] if _is_svhn(recipe) else [Flip()]) + [Translate(2)]
    assert recipe.training.normalise == (Scaled(limit=0.5) if _is_svhn(recipe) else Zca(contrast=False, epsilon=0.0))


@pytest.mark.parametrize("recipe", _of("gan"), ids=lambda recipe: recipe.name)
def test_salimans_et_al(recipe: Recipe):
    """900 and 1200 epochs, of which the last third with a falling learning rate; no augmentation."""
    method, adam = recipe.training.method, _adam(recipe)
    assert isinstance(method, ImprovedGan)
    assert recipe.training.batch == Fixed(size=200, labelled=100, unlabelled_pool="all")
    epoch, epochs = (732, 900) if _is_svhn(recipe) else (500, 1200)
    assert recipe.training.steps == epochs * epoch
    assert adam.learning_rate(0) == adam.learning_rate(epochs * epoch * 2 // 3) == 0.0003
    assert adam.learning_rate(epochs * epoch * 5 // 6) == pytest.approx(0.00015)
    assert adam.learning_rate(epochs * epoch - 1) == pytest.approx(0.0003 * 3 / epochs)
    assert {adam.beta1(step) for step in (0, recipe.training.steps)} == {0.5}
    assert {method.weight(step) for step in (0, recipe.training.steps)} == {1.0}
    assert (method.decay(10**6), method.buffers) == (0.9999, "average")
    assert dataclasses.asdict(method.generator) == {"n_noise": 100, "width": 1.0}  # type: ignore[call-overload]
    assert _augments(recipe) == []
    assert recipe.training.normalise == Scaled(limit=1.0)
