"""Slips in the recipes of the paper: each trains, and its numbers would be compared with the paper's all the same."""

import dataclasses
from collections.abc import Callable
from types import ModuleType

from catalogue import Catalogue, Patch, wrap

from meanteacher import costs
from meanteacher.costs import Kl
from meanteacher.data import Fixed
from meanteacher.experiment import Recipe
from meanteacher.models import Conv13Spec
from meanteacher.paper.recipes import shared as paper
from meanteacher.paper.recipes import table1, table2, table3, table5
from meanteacher.recipes import RECIPES
from meanteacher.schedules import Constant, SigmoidRampDown, SigmoidRampUp, StepChange
from meanteacher.views import Chain, Flip, Noise, PerChannel, Translate, Zca

MUTANTS = Catalogue()
mutant = MUTANTS.of("recipes")


def _constant(patch: Patch, module: ModuleType, name: str, value: object) -> None:
    """Change one constant of a module of recipes and make them anew, as importing them would."""
    patch.setattr(module, name, value)
    _made_anew(patch)


def _made_anew(patch: Patch) -> None:
    for recipe in (*table1.recipes(), *table2.recipes(), *table3.recipes(), *table5.recipes()):
        patch.setitem(RECIPES, recipe.name, recipe)


def _each(patch: Patch, table: str, change: Callable[[Recipe], Recipe]) -> None:
    for name, recipe in list(RECIPES.items()):
        if name.startswith(table):
            patch.setitem(RECIPES, name, change(recipe))


def _with_method(recipe: Recipe, **changes: object) -> Recipe:
    fields = {field.name for field in dataclasses.fields(recipe.training.method)}  # type: ignore[arg-type]
    known = {name: value for name, value in changes.items() if name in fields}
    return recipe.varied(method=dataclasses.replace(recipe.training.method, **known))  # type: ignore[type-var]


# --- what the network sees --------------------------------------------------------------------------------------------


@mutant
def noise_on_svhn_is_twice_as_strong(patch: Patch) -> None:
    _constant(patch, table1, "_VIEW", Chain((Translate(2), Noise(0.3))))


@mutant
def house_numbers_are_mirrored(patch: Patch) -> None:
    _constant(patch, table1, "_VIEW", Chain((Flip(), Translate(2), Noise(0.15))))


@mutant
def cifar10_is_shifted_by_four_pixels(patch: Patch) -> None:
    """As in the residual network's recipe."""
    _constant(patch, table2, "_VIEW", Chain((Flip(), Translate(4), Noise(0.15))))


@mutant
def zca_is_dropped(patch: Patch) -> None:
    _each(patch, "table2", lambda recipe: recipe.varied(normalise=PerChannel()))


@mutant
def zca_is_that_of_temporal_ensembling(patch: Patch) -> None:
    _each(patch, "table2", lambda recipe: recipe.varied(normalise=Zca(contrast=False, epsilon=1e-5)))


@mutant
def house_numbers_are_standardised_by_channel(patch: Patch) -> None:
    _each(patch, "table1", lambda recipe: recipe.varied(normalise=PerChannel()))


@mutant
def teacher_sees_images_without_noise(patch: Patch) -> None:
    clean = Chain((Translate(2),))
    _each(patch, "table1", lambda recipe: recipe.varied(views={**recipe.training.views, "teacher": clean}))


# --- batches ----------------------------------------------------------------------------------------------------------


@mutant
def half_of_each_svhn_batch_is_labelled(patch: Patch) -> None:
    def half(recipe):
        batch = recipe.training.batch
        is_one = isinstance(batch, Fixed) and batch.labelled == 1
        return recipe.varied(batch=dataclasses.replace(batch, labelled=50)) if is_one else recipe

    _each(patch, "table1", half)


@mutant
def batches_are_of_128(patch: Patch) -> None:
    _constant(patch, paper, "BATCH", 128)


@mutant
def cifar10_has_as_many_labels_in_every_batch(patch: Patch) -> None:
    fixed = Fixed(size=100, labelled=2, unlabelled_pool="all")
    patch.setitem(
        RECIPES,
        "table2/cifar10-1000/mean-teacher",
        RECIPES["table2/cifar10-1000/mean-teacher"].varied(batch=fixed),
    )


@mutant
def validation_images_are_kept_apart_in_the_final_runs(patch: Patch) -> None:
    _each(
        patch,
        "table1",
        lambda recipe: dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, validation=0.1)),
    )


# --- costs ------------------------------------------------------------------------------------------------------------


@mutant
def consistency_weighs_as_the_authors_code_says_without_their_divisor(patch: Patch) -> None:
    """A weight of 1, which in their normalisation is 99 of ours."""
    wrap(patch, paper.ramped_weight, lambda real, value: real(1.0 if value == 99 else value))
    _made_anew(patch)


@mutant
def consistency_weight_of_the_residual_network_is_taken_over(patch: Patch) -> None:
    """413 is what its 100 comes to with 124 of 512 rows labelled."""
    _each(patch, "table2", lambda recipe: _with_method(recipe, weight=paper.ramped_weight(413.0)))


@mutant
def consistency_weight_is_not_ramped_up(patch: Patch) -> None:
    _each(patch, "table1", lambda recipe: _with_method(recipe, weight=Constant(99.0)))


@mutant
def consistency_weight_ramps_up_over_80_steps(patch: Patch) -> None:
    """The paper's text counts 80 epochs."""
    _each(patch, "table2", lambda recipe: _with_method(recipe, weight=SigmoidRampUp(value=100.0, steps=80)))


@mutant
def consistency_is_the_kl_divergence(patch: Patch) -> None:
    _each(patch, "table1", lambda recipe: _with_method(recipe, cost=Kl()))


@mutant
def labelled_rows_of_svhn_are_drawn_to_the_teacher_too(patch: Patch) -> None:
    _each(patch, "table1", lambda recipe: _with_method(recipe, consistency_on="all"))


@mutant
def expected_count_is_counted_in_other_images(patch: Patch) -> None:
    """As if there were as many images as SVHN has."""
    _constant(patch, table2, "_N_IMAGES", 73_257)


@mutant
def expected_count_is_left_out_of_table_2(patch: Patch) -> None:
    """13 % of the batches then have no classification cost, and consistency weighs 1.153 times as much."""
    _each(patch, "table2", lambda recipe: _with_method(recipe, labelled_share=None))


@mutant
def expected_count_is_that_of_the_rows_there_are(patch: Patch) -> None:
    def wrong(real, logits, labels, labelled_share=None, **options):
        return real(logits, labels, **options)

    wrap(patch, costs.classification_cost, wrong)


# --- the average and the optimiser ------------------------------------------------------------------------------------


@mutant
def decays_of_svhn_are_swapped(patch: Patch) -> None:
    _constant(patch, table1, "_SHORT_THEN_LONG", StepChange(first=0.999, then=0.99, at=40_000))


@mutant
def decay_of_cifar10_is_that_of_the_residual_network(patch: Patch) -> None:
    _constant(patch, table2, "_DECAY", Constant(0.97))


@mutant
def average_of_mean_teacher_takes_the_students_statistics(patch: Patch) -> None:
    _each(patch, "table1", lambda recipe: _with_method(recipe, buffers="copy"))


@mutant
def learning_rate_is_ten_times_as_high(patch: Patch) -> None:
    _constant(patch, paper, "LEARNING_RATE", 0.03)


@mutant
def ramp_up_takes_80_epochs_of_svhn(patch: Patch) -> None:
    """58,606 steps, not the 40,000 of the appendix."""
    _constant(patch, paper, "RAMP_UP", 80 * 73_257 // 100)


@mutant
def beta1_is_ramped_down_to_nothing(patch: Patch) -> None:
    def wrong(real, **options):
        made = real(**options)
        is_ramp = isinstance(made.beta1, SigmoidRampDown)
        return dataclasses.replace(made, beta1=dataclasses.replace(made.beta1, final=0.0)) if is_ramp else made

    wrap(patch, paper.adam, wrong)
    _made_anew(patch)


@mutant
def ramp_down_of_the_scripts_enters_the_recipes_of_the_paper(patch: Patch) -> None:
    def wrong(real, name, n_labelled, *, extra=0, as_coded=False):
        made = real(name, n_labelled, extra=extra, as_coded=as_coded)
        _, ramp_down = table1._as_coded(name, n_labelled, extra)
        optim = paper.adam(beta2=made.training.optim.beta2, ramp_down=ramp_down, end=made.training.steps)
        return made.varied(optim=optim)

    wrap(patch, table1.recipe, wrong)
    _made_anew(patch)


@mutant
def ramp_down_is_missing_where_the_scripts_have_it(patch: Patch) -> None:
    wrap(patch, table1._as_coded, lambda real, *cell: (real(*cell)[0], 0))
    _made_anew(patch)


# --- network, length and claim ----------------------------------------------------------------------------------------


@mutant
def network_is_half_as_wide(patch: Patch) -> None:
    _constant(patch, paper, "MODEL", Conv13Spec(width=0.5))


@mutant
def supervised_svhn_trains_as_long_as_mean_teacher(patch: Patch) -> None:
    """It then overfits, and Mean Teacher looks the better."""
    wrap(patch, table1._as_coded, lambda real, name, *cell: real("mean-teacher", *cell))
    _made_anew(patch)


@mutant
def claim_is_that_of_the_next_column(patch: Patch) -> None:
    claims = table1._CLAIMS["mean-teacher"]
    swapped = {**claims, 250: claims[500], 500: claims[250]}
    _constant(patch, table1, "_CLAIMS", {**table1._CLAIMS, "mean-teacher": swapped})


@mutant
def as_coded_keeps_the_name_of_the_papers_recipe(patch: Patch) -> None:
    """The later one replaces the earlier under one name."""

    def wrong(real, *cell, **options):
        made = real(*cell, **options)
        return dataclasses.replace(made, name=made.name.removesuffix(f"/{paper.AS_CODED}"))

    wrap(patch, table1.recipe, wrong)
    _made_anew(patch)


@mutant
def deviation_is_no_longer_named(patch: Patch) -> None:
    _constant(patch, paper, "DEVIATIONS", paper.DEVIATIONS[:1])
