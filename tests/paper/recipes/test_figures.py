"""The recipes of the figures vary what the figure varies, and nothing else."""

import pytest

from meanteacher.core import Schedule
from meanteacher.experiment import Recipe
from meanteacher.experiment.describe import computed, describe, differences
from meanteacher.methods import MeanTeacher
from meanteacher.models import Conv13Spec
from meanteacher.paper.layout import FIGURES
from meanteacher.recipes import RECIPES, find
from meanteacher.schedules import Constant
from meanteacher.views import Chain, Noise, Translate

EVALUATION = find("figure4/evaluation")
VARIED = {
    "figure4a": {"views", "model.dropout"},
    "figure4b": {"model.dropout", "method.teacher_dropout"},
    "figure4c": {"method.weight.value"},
    "figure4d": {"method.decay"},
    "figure4e": {"model.outputs", "method.logit_distance", "method.weight"},
    "figure4f": {"method.cost"},
}


def changed(old: Recipe, new: Recipe) -> set[str]:
    """Which fields differ, besides the name."""
    lines = differences(computed(describe(old)), computed(describe(new)))
    return {line.partition(":")[0].removeprefix("training.") for line in lines} - {"name"}


def _is_varied(path: str, panel: str) -> bool:
    return any(path == field or path.startswith(f"{field}.") for field in VARIED[panel])


def _of(panel: str, *, as_coded: bool = False) -> dict[str, Recipe]:
    return {
        name.partition("/")[2].removesuffix("/as-coded"): recipe
        for name, recipe in RECIPES.items()
        if name.startswith(f"{panel}/") and name.endswith("/as-coded") == as_coded
    }


def test_the_evaluation_setting_is_that_of_table_1_with_validation_images_kept_apart():
    assert changed(find("table1/svhn-250/mean-teacher"), EVALUATION) == {"data.validation"}
    assert EVALUATION.data.validation == 0.1
    assert (EVALUATION.data.n_labelled, EVALUATION.training.steps) == (250, 180_000)


@pytest.mark.parametrize("panel", VARIED)
def test_a_setting_varies_the_hyperparameter_of_its_panel_alone(panel: str):
    assert _of(panel)
    for recipe in _of(panel).values():
        paths = changed(EVALUATION, recipe)
        assert paths
        assert {path for path in paths if not _is_varied(path, panel)} == set()
        assert recipe.seeds == (0, 1, 2, 3)


@pytest.mark.parametrize("panel", ["figure4e", "figure4f"])
def test_as_coded_differs_in_labels_ramp_down_and_the_factor_of_the_cost(panel: str):
    settings = _of(panel, as_coded=True)
    assert set(settings) == {name for name in _of(panel) if not name.endswith("no-ramp-up")}
    for name, recipe in settings.items():
        expected = {"data.n_labelled"} | ({"method.weight.value"} if panel == "figure4f" else set())
        paths = changed(_of(panel)[name], recipe)
        assert {path for path in paths if not path.startswith("optim.")} == expected
        assert recipe.data.n_labelled == 500
        assert recipe.training.optim == find("table1/svhn-500/mean-teacher/as-coded").training.optim
    assert changed(find("figure4/evaluation-500/as-coded"), settings[min(settings)]) <= {
        *("method.cost.is", "method.cost.tau", "method.weight.value", "method.logit_distance", "model.outputs")
    }


# --- the grids, as the authors' scripts have them ---------------------------------------------------------------------


def _method(recipe: Recipe) -> MeanTeacher:
    assert isinstance(recipe.training.method, MeanTeacher)
    return recipe.training.method


def _at(schedule: Schedule) -> float:
    return schedule(150_000)


def _points(figure: str) -> list[tuple[str, str, str]]:
    """Panel, label and recipe of every setting."""
    panels = FIGURES[figure].panels
    return [(panel, label, name) for panel, settings in panels.items() for label, name in settings.items()]


def test_figure_4a_is_every_combination_of_augmentation_noise_and_dropout():
    seen = set()
    for panel, label, name in _points("4a"):
        recipe = find(name)
        view = recipe.training.views["student"]
        assert view == recipe.training.views["teacher"]
        assert isinstance(view, Chain)
        assert isinstance(recipe.training.model, Conv13Spec)
        has = (Translate(2) in view.augments, Noise(0.15) in view.augments, recipe.training.model.dropout == 0.5)
        assert recipe.training.model.dropout in (0.0, 0.5)
        assert sum(has[:2]) == len(view.augments)
        assert has == (panel == "with augmentation", "input noise" in label, "dropout" in label)
        seen.add(has)
    assert len(seen) == 8


def test_figure_4b_is_every_pair_of_rates():
    seen = {}
    for panel, label, name in _points("4b"):
        recipe = find(name)
        assert isinstance(recipe.training.model, Conv13Spec)
        student, teacher = recipe.training.model.dropout, _method(recipe).teacher_dropout
        seen[panel, label] = (student, student if teacher is None else teacher)
    rates = (0, 0.25, 0.5, 0.75)
    assert seen == {(f"student {s:g}", f"teacher {t:g}"): (s, t) for s in rates for t in rates}


def _settings(figure: str, panel: str) -> dict[str, Recipe]:
    return {label: find(name) for label, name in FIGURES[figure].panels[panel].items()}


def test_figure_4c_has_the_authors_weights():
    weights = {label: _at(_method(recipe).weight) for label, recipe in _settings("4c", "weight").items()}
    assert weights == pytest.approx({f"{w:g}": 99 * w for w in (0, 0.1, 0.3, 1, 3, 10, 30)})


def test_figure_4d_has_the_authors_decays():
    decays = {label: _method(recipe).decay for label, recipe in _settings("4d", "decay").items()}
    constant = (0, 0.9, 0.97, 0.99, 0.997, 0.999, 0.9997, 0.9999)
    assert decays == {f"{d:g}": Constant(d) for d in constant} | {"0.99, then 0.999": _method(EVALUATION).decay}


@pytest.mark.parametrize("panel", ["with ramp-up", "without ramp-up"])
def test_figure_4e_has_the_authors_distances_with_and_without_ramp_up(panel: str):
    settings = _settings("4e", panel)
    distances = {label: _method(recipe).logit_distance for label, recipe in settings.items()}
    expected = {f"{d:g}": 1000 * d for d in (0, 0.001, 0.01, 0.1, 1)} | {"one output": None}
    assert distances == pytest.approx(expected)
    for recipe in settings.values():
        assert isinstance(recipe.training.model, Conv13Spec)
        assert recipe.training.model.outputs == (1 if _method(recipe).logit_distance is None else 2)
        assert (_method(recipe).weight(0) == 99.0) == (panel == "without ramp-up")
        assert _at(_method(recipe).weight) == 99.0


def test_figure_4f_has_the_authors_taus():
    taus = {label: getattr(_method(recipe).cost, "tau", 0) for label, recipe in _settings("4f", "tau").items()}
    assert taus == {f"{t:g}": t for t in (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1)}


# --- figure 3 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pi-model", "mean-teacher"])
@pytest.mark.parametrize(
    ("task", "whole"),
    [("svhn-all", "table1"), ("svhn-500", "table1"), ("svhn-500-extra-500k", "table3")],
)
def test_figure_3_is_the_beginning_of_the_runs_of_the_tables(task: str, whole: str, method: str):
    recipe = find(f"figure3/{task}/{method}")
    assert changed(find(f"{whole}/{task}/{method}"), recipe) == {"steps", "evaluate_every", "evaluate_costs"}
    assert recipe.training.steps == 100_000
