"""Records keep their meaning: a class that moves or is renamed does not change the fingerprint of a recipe."""

import json
from pathlib import Path

import pytest

from meanteacher.core import InputError
from meanteacher.experiment import Claim
from meanteacher.experiment.describe import _RECORDED_AS, describe, fingerprint
from meanteacher.photos.fitting.stands import OwnPhotos
from meanteacher.recipes import RECIPES

FINGERPRINTS = json.loads((Path(__file__).parent / "fingerprints.json").read_text(encoding="utf-8"))
"""Of all recipes of version 0.1.0, before its modules were grouped by subject, and of those added since."""


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_a_recipe_has_the_fingerprint_that_its_records_have(name: str):
    assert fingerprint(RECIPES[name]) == FINGERPRINTS[name]


def test_the_photos_of_a_fit_keep_their_name_in_records():
    assert describe(OwnPhotos("0f"))["is"] == "meanteacher.fit.plan.OwnPhotos"


def test_every_name_that_records_know_belongs_to_a_class_that_exists():
    for module, names in _RECORDED_AS.items():
        defined = vars(__import__(module, fromlist=["_"]))
        assert {name for name in names if defined[name].__module__ == module} == set(names)


def test_the_metric_of_a_claim_is_one_of_two():
    assert describe(Claim(error=9.11, spread=0.12, where="Table 4", metric="top-5 error"))["metric"] == "top-5 error"
    with pytest.raises(InputError, match="metric is one of error, top-5 error"):
        Claim(error=9.11, spread=0.12, where="Table 4", metric="top5")
