import numpy as np
import pytest

from meanteacher.fitting.crossval import choose_judging


def labels_of(*counts: int, unlabelled: int = 50) -> np.ndarray:
    known = np.repeat(np.arange(len(counts)), counts)
    return np.concatenate([known, np.full(unlabelled, -1)])


def judging(labels: np.ndarray, groups: np.ndarray | None = None, seed: int = 0):
    return choose_judging(labels, np.arange(len(labels)) if groups is None else groups, seed=seed)


def test_a_quarter_of_many_labels_is_held_out_in_every_class_alike() -> None:
    labels = labels_of(*[40] * 10)
    chosen = judging(labels)
    assert chosen.how == "held-out"
    assert np.bincount(labels[chosen.judged]).tolist() == [10] * 10


def test_of_thousands_of_labels_no_more_than_about_a_thousand_are_held_out() -> None:
    assert 950 <= len(judging(labels_of(10_000, 10_000)).judged) <= 1000


@pytest.mark.parametrize(("counts", "n_parts"), [((5, 5), 3), ((2, 9), 2), ((60, 3), 3), ((1, 1), 2)])
def test_with_few_labels_each_judges_once(counts: tuple[int, ...], n_parts: int) -> None:
    labels = labels_of(*counts)
    chosen = judging(labels)
    assert chosen.how == "folds"
    assert len(chosen.parts) == n_parts
    assert sorted(chosen.judged) == list(range(sum(counts)))


def test_an_unlabelled_image_never_judges() -> None:
    labels = labels_of(30, 30, 60)
    assert (labels[judging(labels).judged] >= 0).all()


def test_images_that_look_the_same_stay_on_the_same_side() -> None:
    labels = labels_of(40, 40, 40)
    groups = np.arange(len(labels)) // 2
    for chosen in (judging(labels, groups), judging(labels_of(6, 6), np.arange(62) // 2)):
        sides = [set(groups[part]) for part in chosen.parts]
        others = [set(groups[np.setdiff1d(chosen.judged, part)]) for part in chosen.parts]
        assert all(not side & other for side, other in zip(sides, others, strict=True))
    held = set(judging(labels, groups).judged.tolist())
    assert all((i ^ 1) in held for i in held)


def test_another_seed_draws_another_part_and_the_same_seed_the_same() -> None:
    labels = labels_of(40, 40, 40)
    assert judging(labels).judged.tolist() == judging(labels).judged.tolist()
    assert judging(labels).judged.tolist() != judging(labels, seed=1).judged.tolist()


@pytest.mark.parametrize(("counts", "how"), [((5, 5), "held-out"), ((3, 60), "held-out"), ((2, 60), "folds")])
def test_in_a_hurry_a_part_is_held_out_where_every_class_has_labels_to_spare(counts: tuple[int, ...], how: str) -> None:
    labels = labels_of(*counts)
    chosen = choose_judging(labels, np.arange(len(labels)), seed=0, hurried=True)
    assert chosen.how == how
    taught = np.setdiff1d(np.arange(sum(counts)), chosen.parts[0])
    assert set(labels[taught]) == set(range(len(counts)))
    assert set(labels[chosen.judged]) == set(range(len(counts)))
