"""`--set`: what fits a field is taken, all else is explained, and a changed recipe says that it is one."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meanteacher.core import InputError, Schedule, Scheduled
from meanteacher.experiment import Recipe, override
from meanteacher.experiment.describe import fingerprint
from meanteacher.recipes import RECIPES, find
from meanteacher.schedules import Constant, SigmoidRampUp

SCHEDULES = (Schedule, Scheduled)
ABOUT = {"name", "claim", "deviations", "seeds"}
PAPER = "table1/svhn-500/mean-teacher"


@dataclass(frozen=True)
class Place:
    """A field of a recipe, an item of a mapping or of a tuple."""

    recipe: str
    path: str
    value: Any
    declared: Any

    @property
    def is_plain(self) -> bool:
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return all(value is None or isinstance(value, bool | int | float | str) for value in values)


def _inside(recipe: str, path: str, value: Any, declared: Any) -> Iterator[Place]:
    if is_dataclass(value):
        inner = [(field.name, getattr(value, field.name), field.type) for field in fields(value)]
        if isinstance(value, Recipe):  # the fields of its training are set like its own
            training = [
                (field.name, getattr(value.training, field.name), field.type) for field in fields(value.training)
            ]
            inner = [item for item in inner if item[0] != "training"] + training
    elif isinstance(value, Mapping):
        inner = [(role, item, get_args(declared)[1]) for role, item in value.items()]
    elif isinstance(value, tuple):
        inner = [(str(i), item, get_args(declared)[0]) for i, item in enumerate(value)]
    else:
        return
    for name, item, kind in inner:
        if path or name not in ABOUT:
            at = f"{path}.{name}" if path else name
            yield Place(recipe, at, item, kind)
            yield from _inside(recipe, at, item, kind)


PLACES = {name: list(_inside(name, "", recipe, Recipe)) for name, recipe in RECIPES.items()}
every_recipe = pytest.mark.parametrize("name", PLACES)


def _at(recipe: Any, path: str) -> Any:
    if not hasattr(recipe, path.partition(".")[0]):
        recipe = recipe.training
    for name in path.split("."):
        recipe = getattr(recipe, name, None) if is_dataclass(recipe) else recipe[int(name) if name.isdigit() else name]
    return recipe


def _refusal(recipe: str, setting: str) -> str:
    with pytest.raises(InputError) as caught:
        override(find(recipe), setting)
    return str(caught.value)


def test_there_is_enough_to_set():
    every = [place for places in PLACES.values() for place in places]
    assert len(every) > 1000
    assert {place.declared == Schedule for place in every} == {True, False}


@every_recipe
def test_number_fits_numbers_and_schedules_and_nothing_else(name: str):
    for place in PLACES[name]:
        setting = f"{place.path}=0.375"
        if place.declared in (Schedule, Scheduled):
            assert _at(override(find(place.recipe), setting), place.path) == Constant(0.375), place
        elif place.declared is float or float in get_args(place.declared):
            changed = override(find(place.recipe), setting)
            assert (_at(changed, place.path), type(_at(changed, place.path))) == (0.375, float), place
        elif place.declared == str | None:
            assert _at(override(find(place.recipe), setting), place.path) == "0.375", place  # the name of a file
        else:
            sentence = _refusal(place.recipe, setting)
            assert f"{place.path} is " in sentence or "has to be" in sentence, place
            assert ": ." not in sentence, place


@every_recipe
def test_whole_number_stays_whole_where_the_field_is(name: str):
    for place in PLACES[name]:
        if place.declared is int:
            assert type(_at(override(find(place.recipe), f"{place.path}={place.value}.0"), place.path)) is int, place
        if place.declared is float and not place.path.endswith(("threshold", "hue")):  # which are less than 1
            assert type(_at(override(find(place.recipe), f"{place.path}=1"), place.path)) is float, place


@every_recipe
def test_part_is_never_replaced_by_a_word_and_every_proposal_can_be_set(name: str):
    proposed = 0
    for place in PLACES[name]:
        if place.is_plain:
            continue
        sentence = _refusal(place.recipe, f"{place.path}=nonsense")
        settings = re.findall(rf"{re.escape(place.path)}[\w.]*=(?!nonsense)(?:\([^)]*\)|[^\s,]*[^\s,.])", sentence)
        assert settings or "meanteacher list" in sentence, place
        for setting in settings:
            assert override(find(place.recipe), setting) is find(place.recipe), setting
        proposed += len(settings)
    assert proposed > 5


@every_recipe
def test_what_is_there_already_changes_nothing(name: str):
    for place in PLACES[name]:
        if place.is_plain:
            assert override(find(place.recipe), f"{place.path}={place.value!r}") is find(place.recipe), place


@every_recipe
def test_none_fits_only_where_it_is_declared(name: str):
    for place in PLACES[name]:
        if type(None) in get_args(place.declared):
            assert _at(override(find(place.recipe), f"{place.path}=none"), place.path) is None, place
        else:
            _refusal(place.recipe, f"{place.path}=none")


def test_changed_recipe_has_a_name_of_its_own_and_no_claim():
    changed = override(find(PAPER), "steps=2", "model.width=0.1")
    assert (changed.training.steps, changed.training.model.width) == (2, 0.1)
    assert changed.name == f"{PAPER}+model.width=0.1,steps=2"
    assert changed.claim is None
    said = f"Changed with --set from {PAPER}: model.width=0.1, steps=2."
    assert changed.deviations[-1] == f"{said} The schedules are stretched from 180000 to 2 steps."
    assert override(find(PAPER), "model.width=0.1").deviations[-1] == said.replace(", steps=2", "")
    assert find(PAPER).claim is not None


@every_recipe
def test_schedules_follow_the_steps(name: str):
    recipe = find(name)
    steps = recipe.training.steps
    longer = override(recipe, f"steps={4 * steps}")
    assert longer.name == f"{name}+steps={4 * steps}"
    for step in (0, 1, steps // 7, steps // 2, steps - 1):
        for before, after in zip(_values(recipe, step), _values(longer, 4 * step), strict=True):
            assert after == pytest.approx(before)


def _values(recipe: Recipe, step: int) -> list[float]:
    """The values of all schedules of the method and of the optimiser at a step."""
    parts = (recipe.training.method, recipe.training.optim)
    found = [getattr(part, field.name) for part in parts for field in fields(part) if field.type in SCHEDULES]
    assert found
    return [schedule(step) for schedule in found]


def test_a_longer_run_still_ends_with_its_ramp_down():
    rate = override(find("digits/mean-teacher"), "steps=1000").training.optim.learning_rate
    assert rate(700) == pytest.approx(0.01, rel=1e-3)
    assert 0 < rate(999) < 1e-3 * rate(700)


def test_a_schedule_that_is_set_does_not_follow_the_steps():
    weight = "method.weight.steps=240"
    changed = override(find("digits/mean-teacher"), "steps=1000", weight)
    assert changed.training.method.weight.steps == 240
    assert changed.name == f"digits/mean-teacher+{weight},steps=1000"


def test_setting_that_changes_nothing_keeps_name_and_claim():
    same = override(find(PAPER), "steps=180000", "model.width=1", "method.buffers=own")
    assert same is find(PAPER)
    assert same.claim is not None
    assert same.claim.error == 4.18


def test_same_recipe_has_the_same_name_however_it_was_set():
    one = override(find(PAPER), "optim.beta1=0.5", "steps=2")
    other = override(find(PAPER), "steps=2", "optim.beta1.value=0.5")
    assert one == other
    assert fingerprint(one) == fingerprint(other)


def test_names_differ_as_the_recipes_do_and_can_be_folders():
    path = "views.student.augments.2.operations"
    settings = [
        ["method.weight=50"],
        ["method.weight.value=50"],
        [f"{path}=('hue',)"],
        [f"{path}=('rotate',)"],
        *([f"{path}=('hue',)", f"optim.weight_decay={n}", f"optim.matrix_decay={n}", "method.weight.steps=3"]
          for n in ("1e-3", "1e-4")),
    ]  # fmt: skip
    names = [override(find("fast/cifar10-250"), *these).name for these in settings]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.startswith("fast/cifar10-250+")
        assert re.fullmatch(r"[\w.=,()+-]{1,120}", name.split("/")[-1]), name


def test_view_of_the_labelled_rows_is_set_and_removed_like_any_other_field():
    cifar = find("fast/cifar10-4000")
    smaller = override(cifar, "labelled_view.augments.2.size=4")
    assert smaller.name == "fast/cifar10-4000+labelled_view.augments.2.size=4"
    assert (_at(smaller, "labelled_view.augments.2.size"), smaller.training.views) == (4, cifar.training.views)
    assert override(cifar, "labelled_view=none").training.labelled_view is None
    assert "labelled_view is a view, here Chain" in _refusal(cifar.name, "labelled_view=weak")
    assert len({fingerprint(recipe) for recipe in (cifar, smaller, override(cifar, "labelled_view=none"))}) == 3


def test_fields_that_depend_on_each_other_are_set_together_in_any_order():
    digits = find("digits/mean-teacher")
    with pytest.raises(InputError):
        override(digits, "batch.size=10")
    with pytest.raises(InputError, match="at most 1,048,576, got size=1000000000000"):
        override(digits, "batch.size=1000000000000")
    one, other = (
        override(digits, *both)
        for both in (["batch.size=10", "batch.labelled=5"], ["batch.labelled=5", "batch.size=10"])
    )
    assert one == other
    assert (one.training.batch.size, one.training.batch.labelled) == (10, 5)


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("steps=300", lambda r: r.training.steps == 300),
        ("steps=1e3", lambda r: r.training.steps == 1000),
        ("method.weight.value=50", lambda r: r.training.method.weight == SigmoidRampUp(value=50.0, steps=240)),
        ("method.weight=50", lambda r: r.training.method.weight == Constant(50.0)),
        ("method.consistency_on=unlabelled", lambda r: r.training.method.consistency_on == "unlabelled"),
        ("method.consistency_on='unlabelled'", lambda r: r.training.method.consistency_on == "unlabelled"),
        ("method.teacher_dropout=0", lambda r: r.training.method.teacher_dropout == 0.0),
        ("method.teacher_dropout=0.25", lambda r: r.training.method.teacher_dropout == 0.25),
        ("method.logit_distance=1", lambda r: r.training.method.logit_distance == 1.0),
        ("data.n_labelled=none", lambda r: r.data.n_labelled is None),
        ("optim.epsilon=1", lambda r: r.training.optim.epsilon == 1.0),
        ("optim.learning_rate.factors.1=0.5", lambda r: r.training.optim.learning_rate.factors[1] == Constant(0.5)),
        ("model.hidden=(32,)", lambda r: r.training.model.hidden == (32,)),
        ("model.hidden=[32, 16]", lambda r: r.training.model.hidden == (32, 16)),
        ("views.teacher.augments.1.deviation=0.5", lambda r: r.training.views["teacher"].augments[1].deviation == 0.5),
    ],
)
def test_one_field_however_deep_can_be_set(setting: str, read: Callable[[Any], bool]):
    original = find("digits/mean-teacher")
    changed = override(original, setting)
    assert read(changed)
    assert original == find("digits/mean-teacher")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["method=3"], "method is a method, here MeanTeacher"),
        (["method.cost=0.5"], "method.cost is a consistency cost, here Mse"),
        (["views.student=0"], "views.student is a view, here Chain"),
        (["data.source=svhn"], "data.source is a source of images, here Digits"),
        (["data.source=svhn"], "choose another recipe (meanteacher list)"),
        (["method.weight=high"], "method.weight is a schedule. Give a number"),
        (["steps.value=3"], "It is set as a whole"),
        (["steps=true"], "steps is a whole number, such as 600; got 'true'"),
        (["steps=none"], "steps is a whole number"),
        (["steps=1.5"], "steps is a whole number"),
        (["data.n_labelled=40.5"], "a whole number or none"),
        (["model.outputs=true"], "one of 1, 2"),
        (["model.dropout=1e999"], "a number"),
        (["optim.beta1=1e999"], "a schedule"),
        (["model.hidden=32"], "a list, (a whole number, …), such as (256,256)"),
        (["model.hidden=(32, 0.5)"], "a list"),
        (["views.teacher.augments.7.deviation=1"], "no field '7'"),
        (["method.buffers=new"], "own, average, copy"),
        (["method.consistency_on=labelled"], "all, unlabelled"),
        (["=3"], "--set takes field=value"),
        (["steps=0"], "steps is at least 1"),
        (["steps=2", "steps=3"], "--set steps=3: --set steps=2 is about the same field"),
        (
            ["method.weight=2", "method.weight.value=3"],
            "--set method.weight.value=3: --set method.weight=2 is about the same field",
        ),
        (
            ["method.weight.value=3", "method.weight=2"],
            "--set method.weight.value=3: --set method.weight=2 is about the same field",
        ),
        (["name=best"], "--out"),
        (["claim=none"], "what the paper reports"),
        (["claim.error=1"], "what the paper reports"),
        (["seeds=(3,)"], "--seed"),
        (["deviations=()"], "changes no run"),
        (["labelled_view=strong"], "labelled_view is a view or none, such as none; got 'strong'"),
        (["views.labelled.augments.2.size=4"], "Give labelled_view instead"),
    ],
)
def test_impossible_setting_is_explained(settings: list[str], words: str):
    with pytest.raises(InputError, match=re.escape(words)):
        override(find("digits/mean-teacher"), *settings)


def test_types_written_as_text_are_understood_and_unknown_ones_go_by_the_value():
    from support import recipe

    @dataclass(frozen=True)
    class Own:
        rate: "float"
        other: "Unknown"  # type: ignore[name-defined]  # noqa: F821
        roles = ("student",)

    made = recipe("supervised")
    object.__setattr__(made.training, "method", Own(0.5, 3))
    changed: Any = override(made, "method.rate=1", "method.other=4").training.method
    assert (changed.rate, changed.other) == (1.0, 4)
    with pytest.raises(InputError, match="such as 3; got 'x'"):
        override(made, "method.other=x")


PATHS = [place.path for place in _inside(PAPER, "", RECIPES[PAPER], Recipe)]
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=20),
    st.sampled_from(["none", "true", "()", "(1,)", "[]", "-" * 3000 + "1", "9" * 400, "1e999", "'x'", "{}", "a.b=c"]),
)


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.tuples(st.sampled_from([*PATHS, "", "x", "model.", ".", "seeds"]), VALUES), max_size=3), st.data())
def test_whatever_is_set_gives_a_recipe_or_one_sentence_whatever_the_order(
    settings_: list[tuple[str, str]], data: st.DataObject
) -> None:
    given_ = [f"{path}={value}" for path, value in settings_]
    try:
        changed = override(RECIPES[PAPER], *given_)
    except InputError:
        return
    assert isinstance(changed, Recipe)
    assert changed == override(RECIPES[PAPER], *data.draw(st.permutations(given_)))
    assert len(changed.name.encode()) < 255
    assert (changed.claim is None) == (changed != RECIPES[PAPER])
