"""Simulated folders are what their names say, and the truth is that of their mix."""

import pytest

from benchmarks.coverage import FOLDERS, draw, estimated, summary
from clusters import clusters
from meanteacher.core import UNLABELLED


@pytest.mark.parametrize("name", FOLDERS)
def test_a_simulated_folder_shares_no_photo_with_the_new_ones_that_tell_the_truth(name: str) -> None:
    features, truth = clusters(4, 800)
    photos = draw(features[0], truth, 0, **FOLDERS[name])
    assert not {tuple(row) for row in photos.features} & {tuple(row) for row in photos.new}
    assert set(photos.new_labels) == set(range(4))
    assert photos.mix.max() / photos.mix.min() == pytest.approx(20 if name == "long tail" else 1)
    labelled = photos.groups[photos.labels != UNLABELLED]
    assert len(labelled) == len(set(labelled)) * (6 if name == "bursts" else 1)


def test_the_estimate_of_a_folder_is_near_the_truth() -> None:
    features, truth = clusters(3, 600)
    found = [estimated(draw(features[0], truth, seed, **FOLDERS["long tail"]), seed) for seed in range(5)]
    assert summary(found)["coverage"] >= 0.8
    assert summary(found)["truth"] == pytest.approx(summary(found)["error"], abs=0.1)
