"""Recipes are data: complete, fingerprinted, and the paper's own where they say so."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from meanteacher.core import InputError
from meanteacher.experiment import override
from meanteacher.experiment.describe import describe, differences, fingerprint
from meanteacher.recipes import RECIPES, find
from support import recipe

FINGERPRINTS = {name: fingerprint(recipe) for name, recipe in RECIPES.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_a_stable_description_and_a_fingerprint_of_its_own(name: str):
    described = json.dumps(describe(RECIPES[name]))
    assert " at 0x" not in described
    assert re.fullmatch("[0-9a-f]{16}", FINGERPRINTS[name])
    assert [other for other in RECIPES if FINGERPRINTS[other] == FINGERPRINTS[name]] == [name]


def test_fingerprint_changes_with_what_is_computed_and_not_with_what_is_said():
    whole = recipe()
    assert fingerprint(dataclasses.replace(whole, deviations=("other words",), seeds=(5,))) == fingerprint(whole)
    changed = [
        override(whole, setting)
        for setting in ("steps=21", "method.weight=3", "optim.epsilon=1e-7", "views.student.deviation=0.2")
    ]
    assert len({fingerprint(other) for other in (whole, *changed)}) == 5


def test_field_that_was_added_later_is_described_only_where_it_is_used():
    """Records and runs from before there was the field keep their fingerprint."""
    before = recipe()
    after = dataclasses.replace(before, method=dataclasses.replace(before.method, labelled_share=0.25))
    assert "labelled_share" not in describe(before)["method"]
    assert describe(after)["method"]["labelled_share"] == 0.25
    assert fingerprint(after) != fingerprint(before)
    assert differences(describe(before), describe(after)) == ["method.labelled_share: null -> 0.25"]


def test_the_teachers_dropout_is_described_as_in_records_from_before_it_was_a_rate():
    method = recipe().method
    rates = {None: True, 0.0: False, 0.25: 0.25}
    for rate, recorded in rates.items():
        described = describe(dataclasses.replace(method, teacher_dropout=rate))["teacher_dropout"]
        assert described == recorded
        assert type(described) is type(recorded)


def test_view_of_the_labelled_rows_is_described_where_records_have_it():
    without, view = recipe(), recipe().views["teacher"]
    having = dataclasses.replace(without, labelled_view=view)
    assert describe(having)["views"] == {**describe(without)["views"], "labelled": describe(view)}
    assert "labelled_view" not in describe(having) | describe(without)
    assert "labelled" not in describe(without)["views"]
    assert fingerprint(having) != fingerprint(without)
    with pytest.raises(InputError, match="Give it as labelled_view"):
        dataclasses.replace(without, views={**without.views, "labelled": view})


def test_difference_of_two_recipes_reads_as_a_list():
    old, new = describe(recipe()), describe(recipe("supervised", steps=9))
    lines = differences(old, new)
    assert 'name: "made-up/mean-teacher" -> "made-up/supervised"' in lines
    assert "steps: 20 -> 9" in lines


def test_what_has_no_stable_description_cannot_stand_in_a_recipe():
    with pytest.raises(TypeError, match="Make it a frozen dataclass"):
        describe(torch.zeros(2))


def test_digits_train_from_the_recipe_alone(tmp_path: Path):
    data = find("digits/supervised").data.source.load(tmp_path)
    assert len(data.train) + len(data.test) == 1797
