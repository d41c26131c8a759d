"""Simulated folders are what their names say, and the truth is that of their mix."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage import FOLDERS, draw, estimated, page
from clusters import clusters
from meanteacher.core import UNLABELLED


@pytest.mark.parametrize("name", FOLDERS)
def test_a_simulated_folder_shares_no_photo_with_the_new_ones_that_tell_the_truth(name: str) -> None:
    features, truth = clusters(4, 800)
    photos = draw(features[0], truth, 0, **FOLDERS[name])
    assert not {tuple(row) for row in photos.features} & {tuple(row) for row in photos.new}
    assert set(photos.new_labels) == set(range(4))
    assert photos.mix.max() / photos.mix.min() == pytest.approx(20 if "long tail" in name else 1)
    labelled = photos.groups[photos.labels != UNLABELLED]
    assert len(labelled) == len(set(labelled)) * (6 if name == "bursts" else 1)


def test_the_estimate_of_a_folder_is_near_the_truth() -> None:
    features, truth = clusters(3, 900)
    kind = FOLDERS["labels follow a long tail"]  # the labels teach alone, which is fast
    found = [estimated(draw(features[0], truth, seed, **kind), seed) for seed in range(6)]
    assert sum(each["low"] <= each["truth"] <= each["high"] for each in found) >= 4
    assert np.mean([each["truth"] for each in found]) == pytest.approx(
        np.mean([each["error"] for each in found]), abs=0.1
    )


def test_the_page_counts_folders_whose_interval_contains_the_truth() -> None:
    folder = {"truth": 0.2, "error": 0.1, "low": 0.05, "high": 0.25}
    found = [folder, folder | {"truth": 0.3}, folder | {"truth": 0.01}, folder]
    text = page({"cats": {"some": found, "other": found[:1]}})
    assert text.endswith(
        "| cats | some | 4 | 50 % | 1 | 17.8 | 10.0 | 20 |\n| cats | other | 1 | 100 % | 0 | 20.0 | 10.0 | 20 |\n"
    )


def test_hundreds_of_folders_of_each_photos_are_covered_alike() -> None:
    record = json.loads((Path(__file__).parents[2] / "docs/records/coverage.json").read_text(encoding="utf-8"))
    for kinds in record.values():
        assert kinds.keys() == FOLDERS.keys()
        assert {len(found) for found in kinds.values()} == {100}
        for found in kinds.values():
            assert sum(each["low"] <= each["truth"] <= each["high"] for each in found) >= 90


def test_the_page_in_the_documentation_is_that_of_the_record() -> None:
    docs = Path(__file__).parents[2] / "docs"
    record = json.loads((docs / "records/coverage.json").read_text(encoding="utf-8"))
    assert (docs / "experiments/coverage.md").read_text(encoding="utf-8") == page(record)
