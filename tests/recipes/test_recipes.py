"""Recipes are data: complete, fingerprinted, and the paper's own where they say so."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

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


def test_difference_of_two_recipes_reads_as_a_list():
    old, new = describe(recipe()), describe(recipe("supervised", steps=9))
    lines = differences(old, new)
    assert 'name: "made-up/mean-teacher" -> "made-up/supervised"' in lines
    assert "training.steps: 20 -> 9" in lines


def test_what_has_no_stable_description_cannot_stand_in_a_recipe():
    with pytest.raises(TypeError, match="Make it a frozen dataclass"):
        describe(torch.zeros(2))


def test_digits_train_from_the_recipe_alone(tmp_path: Path):
    data = find("digits/supervised").data.source.load(tmp_path)
    assert len(data.train) + len(data.test) == 1797
