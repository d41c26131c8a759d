"""Records keep their meaning: the fingerprints of recipes are those of committed records."""

import json
from pathlib import Path

import pytest

from meanteacher.core import InputError
from meanteacher.experiment import Claim
from meanteacher.experiment.describe import describe, fingerprint
from meanteacher.recipes import RECIPES

FINGERPRINTS = json.loads((Path(__file__).parent / "fingerprints.json").read_text(encoding="utf-8"))
"""recipe -> its fingerprint, which committed records name."""


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_a_recipe_has_the_fingerprint_that_its_records_have(name: str):
    assert fingerprint(RECIPES[name]) == FINGERPRINTS[name]


def test_a_description_has_the_fingerprint_of_what_it_describes():
    recipe = RECIPES["digits/mean-teacher"]
    assert fingerprint(describe(recipe)) == fingerprint(recipe)


def test_a_claim_names_a_known_metric():
    assert describe(Claim(error=4.35, spread=0.5, where="Table 1"))["metric"] == "error"
    with pytest.raises(InputError, match=r"metric has to be error.* or top-5 error"):
        Claim(error=9.11, spread=0.12, where="Table 4", metric="top5")
