import numpy as np
import pytest
import torch

from meanteacher.fitting.crossval import round_data

IMAGES = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16).contiguous()
LABELS = np.array([0, 1, 0, 1, -1, -1, -1, 0, 1, -1])
USABLE = np.array([0, 1, 2, 3, 4, 6, 7, 8])
GROUPS = np.arange(10)


@pytest.mark.parametrize("part", [[2, 3], []], ids=["held out", "none held out"])
def test_a_part_held_out_is_neither_labelled_nor_unlabelled(part: list[int]):
    data, split = round_data(IMAGES, LABELS, GROUPS, USABLE, ("a", "b"), np.array(part, np.int64))
    assert set(split.labelled.tolist()) == {0, 1, 2, 3, 7, 8} - set(part)
    assert split.unlabelled.tolist() == [4, 6]
    assert split.validation.tolist() == part
    assert data.test.images[:, 0, 0, 0].tolist() == (part or [0, 1, 2, 3, 7, 8])
    assert data.test.labels.tolist() == LABELS[part or [0, 1, 2, 3, 7, 8]].tolist()


def test_the_images_are_those_of_the_cache_not_a_copy_and_are_read_ahead():
    data, _ = round_data(IMAGES, LABELS, GROUPS, USABLE, ("a", "b"), np.array([2, 3]))
    assert data.train.images.data_ptr() == IMAGES.data_ptr()
    assert data.train.on_disk


def test_an_unlabelled_copy_of_a_judging_image_is_not_learnt_from():
    groups = np.array([0, 1, 2, 3, 2, 5, 0, 7, 8, 9])
    _, split = round_data(IMAGES, LABELS, groups, USABLE, ("a", "b"), np.array([2, 3]))
    assert split.unlabelled.tolist() == [6]
    _, split = round_data(IMAGES, LABELS, groups, USABLE, ("a", "b"), np.array([], np.int64))
    assert split.unlabelled.tolist() == [4, 6]
