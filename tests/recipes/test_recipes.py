"""Recipes are data: complete, fingerprinted, and the paper's own where they say so."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from meanteacher.recipes import RECIPES, find, override
from meanteacher.recipes.describe import describe, differences, fingerprint
from support import recipe

TABLE_1 = {
    "supervised": {"250": 27.77, "500": 16.88, "1000": 12.32, "all": 2.75},
    "pi-model": {"250": 9.69, "500": 6.83, "1000": 4.95, "all": 2.50},
    "mean-teacher": {"250": 4.35, "500": 4.18, "1000": 3.95, "all": 2.50},
}
TABLE_2 = {
    "supervised": {"1000": 46.43, "2000": 33.94, "4000": 20.66, "all": 5.82},
    "pi-model": {"1000": 27.36, "2000": 18.02, "4000": 13.20, "all": 6.06},
    "mean-teacher": {"1000": 21.55, "2000": 15.73, "4000": 12.31, "all": 5.94},
}


@pytest.mark.parametrize(("prefix", "table"), [("table1/svhn", TABLE_1), ("table2/cifar10", TABLE_2)])
def test_every_cell_of_the_table_has_a_recipe_with_its_claim(prefix: str, table: dict[str, dict[str, float]]):
    for method, row in table.items():
        for labels, error in row.items():
            found = RECIPES[f"{prefix}-{labels}/{method}"]
            assert found.claim is not None
            assert found.claim.error == error
            assert found.data.n_labelled == (None if labels == "all" else int(labels))
            assert found.data.validation == 0
            assert len(found.seeds) == (4 if labels == "all" else 10)


def test_svhn_batches_and_schedules_are_those_of_the_appendix():
    found = find("table1/svhn-250/mean-teacher")
    assert (found.batch.size, found.batch.labelled) == (100, 1)
    assert [found.method.decay(step) for step in (0, 39_999, 40_000)] == [0.99, 0.99, 0.999]
    assert [found.optim.beta2(step) for step in (0, 40_000)] == [0.99, 0.999]
    assert found.optim.learning_rate(179_999) == 0.003
    assert found.steps == 180_000


def test_cifar10_schedules_are_those_of_the_appendix():
    found = find("table2/cifar10-4000/mean-teacher")
    assert found.optim.learning_rate(100_000) == 0.003
    assert found.optim.learning_rate(150_000) == pytest.approx(0.003 * 3.727e-6, rel=1e-3)
    assert found.optim.beta1(150_000) == pytest.approx(0.5, abs=1e-4)
    assert found.method.weight(40_000) == 100
    assert found.steps == 150_000


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_a_stable_description_and_a_fingerprint_of_its_own(name: str):
    described = json.dumps(describe(RECIPES[name]))
    assert " at 0x" not in described
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(RECIPES[name]))
    same = [other for other in RECIPES if fingerprint(RECIPES[other]) == fingerprint(RECIPES[name])]
    assert same == [name]


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
