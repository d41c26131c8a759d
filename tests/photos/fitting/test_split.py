from pathlib import Path

import numpy as np
import pytest

from meanteacher.core import InputError
from meanteacher.photos.fitting.split import EvaluationSplit, FitData, draw_split, labelled_photos, prepare
from meanteacher.photos.folder.cache import Decoded
from meanteacher.photos.folder.duplicates import Duplicates
from meanteacher.photos.folder.find import Photos


def labels_of(*counts: int, unlabelled: int = 50) -> np.ndarray:
    known = np.repeat(np.arange(len(counts)), counts)
    return np.concatenate([known, np.full(unlabelled, -1)])


def drawn(labels: np.ndarray, groups: np.ndarray | None = None, seed: int = 0) -> EvaluationSplit:
    return draw_split(labels, np.arange(len(labels)) if groups is None else groups, seed=seed)


def test_a_quarter_of_many_labels_is_held_out_in_every_class_alike() -> None:
    labels = labels_of(*[40] * 10)
    chosen = drawn(labels)
    assert chosen.how == "held-out"
    assert np.bincount(labels[chosen.positions]).tolist() == [10] * 10


def test_of_thousands_of_labels_no_more_than_about_a_thousand_are_held_out() -> None:
    assert 950 <= len(drawn(labels_of(10_000, 10_000)).positions) <= 1000


@pytest.mark.parametrize(("counts", "n_parts"), [((5, 5), 3), ((2, 9), 2), ((60, 3), 3), ((1, 1), 2)])
def test_with_few_labels_each_image_evaluates_once(counts: tuple[int, ...], n_parts: int) -> None:
    labels = labels_of(*counts)
    chosen = drawn(labels)
    assert chosen.how == "folds"
    assert len(chosen.parts) == n_parts
    assert sorted(chosen.positions) == list(range(sum(counts)))


@pytest.mark.parametrize(
    ("counts", "groups"), [((1, 1), [0, 1]), ((3, 3), [0, 0, 1, 2, 2, 3]), ((3, 3, 3), [0, 0, 1, 2, 2, 3, 4, 4, 5])]
)
def test_no_fold_is_empty_where_there_are_enough_different_pictures(counts: tuple[int, ...], groups: list[int]) -> None:
    labels = labels_of(*counts, unlabelled=0)
    for seed in range(20):
        chosen = drawn(labels, np.array(groups), seed)
        assert all(len(part) for part in chosen.parts)
        assert sorted(chosen.positions) == list(range(len(labels)))


def test_an_unlabelled_image_never_evaluates() -> None:
    labels = labels_of(30, 30, 60)
    assert (labels[drawn(labels).positions] >= 0).all()


def test_images_that_look_the_same_stay_on_the_same_side() -> None:
    labels = labels_of(40, 40, 40)
    groups = np.arange(len(labels)) // 2
    for chosen in (drawn(labels, groups), drawn(labels_of(6, 6), np.arange(62) // 2)):
        sides = [set(groups[part]) for part in chosen.parts]
        others = [set(groups[np.setdiff1d(chosen.positions, part)]) for part in chosen.parts]
        assert all(not side & other for side, other in zip(sides, others, strict=True))
    held = set(drawn(labels, groups).positions.tolist())
    assert all((i ^ 1) in held for i in held)


def test_another_seed_draws_another_part_and_the_same_seed_the_same() -> None:
    labels = labels_of(40, 40, 40)
    assert drawn(labels).positions.tolist() == drawn(labels).positions.tolist()
    assert drawn(labels).positions.tolist() != drawn(labels, seed=1).positions.tolist()


@pytest.mark.parametrize(("counts", "how"), [((5, 5), "held-out"), ((3, 60), "held-out"), ((2, 60), "folds")])
def test_a_held_out_part_can_be_preferred_where_every_class_has_three_labels(counts: tuple[int, ...], how: str) -> None:
    labels = labels_of(*counts)
    chosen = draw_split(labels, np.arange(len(labels)), seed=0, prefer="held-out")
    assert chosen.how == how
    trained = np.setdiff1d(np.arange(sum(counts)), chosen.parts[0])
    assert set(labels[trained]) == set(range(len(counts)))
    assert set(labels[chosen.positions]) == set(range(len(counts)))


IMAGES = np.arange(10, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(16, 2).repeat(16, 3)
LABELS = np.array([0, 1, 0, 1, -1, -1, -1, 0, 1, -1])
UNREADABLE = {5: "empty", 9: "empty"}


def prepared(labels: np.ndarray = LABELS, groups: list[int] | None = None) -> FitData:
    names = tuple(f"{k}.png" for k in range(10))
    duplicates = Duplicates((b"",) * 10, np.arange(10), np.arange(10) if groups is None else np.array(groups))
    return prepare(Photos(Path(), names, labels, ("a", "b"), None), Decoded(IMAGES, UNREADABLE), duplicates)


@pytest.mark.parametrize("part", [[2, 3], []], ids=["held out", "none held out"])
def test_a_part_held_out_is_neither_labelled_nor_unlabelled(part: list[int]) -> None:
    data, split = prepared().train_test(np.array(part, np.int64))
    assert set(split.labelled.tolist()) == {0, 1, 2, 3, 7, 8} - set(part)
    assert split.unlabelled.tolist() == [4, 6]
    assert split.validation.tolist() == part
    assert data.test.images[:, 0, 0, 0].tolist() == (part or [0, 1, 2, 3, 7, 8])
    assert data.test.labels.tolist() == LABELS[part or [0, 1, 2, 3, 7, 8]].tolist()


def test_the_images_are_those_of_the_cache_not_a_copy_and_are_read_ahead() -> None:
    data, _ = prepared().train_test(np.array([2, 3]))
    assert data.train.images.data_ptr() == IMAGES.ctypes.data
    assert data.train.on_disk


def test_an_unlabelled_copy_of_a_held_out_image_is_not_trained_on() -> None:
    groups = [0, 1, 2, 3, 2, 5, 0, 7, 8, 9]
    _, split = prepared(groups=groups).train_test(np.array([2, 3]))
    assert split.unlabelled.tolist() == [6]
    _, split = prepared(groups=groups).train_test(np.array([], np.int64))
    assert split.unlabelled.tolist() == [4, 6]


def test_all_runs_share_one_data_set_whose_pixels_are_hashed_once() -> None:
    data = prepared()
    assert data.train_test(np.array([2]))[0].train is data.train_test(np.array([3]))[0].train


def test_a_class_without_a_readable_label_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="No labelled image of b can be read"):
        prepared(labels=np.array([0, 0, 0, 0, -1, 1, -1, 0, 0, -1]))


def test_the_labelled_images_alone_are_data_with_their_copies_found() -> None:
    """Image 1 cannot be read, and image 8 is a copy of image 7."""
    images = np.random.default_rng(0).integers(0, 256, IMAGES.shape).astype(np.uint8)
    images[8] = images[7]
    photos = Photos(Path("photos"), tuple("abcdefghij"), LABELS, ("a", "b"), None)
    data = labelled_photos(photos, Decoded(images, {1: "empty", 5: "empty"}), most=100)
    assert "".join(data.photos.names) == "acdhi"
    assert data.labels.tolist() == LABELS[[0, 2, 3, 7, 8]].tolist()
    assert (data.dataset.images.numpy() == images[[0, 2, 3, 7, 8]]).all()
    assert data.groups.tolist() == [0, 1, 2, 3, 3]
    assert data.photos.class_names == photos.class_names


def test_of_many_labelled_images_some_are_drawn_from_each_class() -> None:
    labels = labels_of(60, 30, 2)
    arrays = np.arange(len(labels), dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    photos = Photos(Path("photos.npz"), tuple(map(str, range(len(labels)))), labels, ("a", "b", "c"), arrays)
    data = labelled_photos(photos, Decoded(arrays.transpose(0, 3, 1, 2), {}), most=31)
    assert np.bincount(data.labels).tolist() == [20, 10, 1]
    assert data.photos.arrays is not None
    assert data.photos.arrays[:, 0, 0, 0].tolist() == [int(name) for name in data.photos.names]
