import numpy as np

from meanteacher.fitting.label_next import label_next

NAMES = ("ant", "bee", "cat")


def rows(*p: tuple[float, float, float]) -> np.ndarray:
    return np.array(p)


def chosen(p: np.ndarray, *, candidates: list[int] | None = None, groups: list[int] | None = None, n: int) -> list[int]:
    everyone = np.arange(len(p))
    picked = label_next(
        p,
        everyone if candidates is None else np.array(candidates),
        everyone if groups is None else np.array(groups),
        NAMES,
        n=n,
    )
    return [suggestion.index for suggestion in picked]


def test_the_most_hesitant_image_comes_first() -> None:
    p = rows((0.9, 0.05, 0.05), (0.5, 0.45, 0.05), (0.7, 0.25, 0.05))
    assert chosen(p, n=2) == [1, 2]


def test_every_pair_of_classes_has_its_turn_before_any_has_a_second() -> None:
    p = rows((0.5, 0.49, 0.01), (0.49, 0.5, 0.01), (0.5, 0.48, 0.02), (0.3, 0.1, 0.6), (0.05, 0.55, 0.4))
    assert chosen(p, n=4) == [0, 4, 3, 1]


def test_images_that_look_the_same_are_asked_about_once() -> None:
    p = rows((0.5, 0.5, 0.0), (0.5, 0.5, 0.0), (0.6, 0.4, 0.0))
    assert chosen(p, groups=[7, 7, 8], n=3) == [0, 2]


def test_labelled_images_are_never_suggested() -> None:
    p = rows((0.5, 0.5, 0.0), (0.9, 0.1, 0.0))
    assert chosen(p, candidates=[1], n=5) == [1]


def test_the_reason_names_the_classes_it_hesitates_between() -> None:
    (suggestion,) = label_next(rows((0.1, 0.5, 0.4)), np.array([0]), np.array([0]), NAMES, n=1)
    assert suggestion.reason == "hesitates between bee (50.0 %) and cat (40.0 %)"
    (torn,) = label_next(np.array([[0.48, 0.52]]), np.array([0]), np.array([0]), NAMES[:2], n=1)
    assert torn.reason == f"hesitates between {NAMES[1]} (52.0 %) and {NAMES[0]} (48.0 %)"
    (sure,) = label_next(rows((0.04, 0.9, 0.06)), np.array([0]), np.array([0]), NAMES, n=1)
    assert sure.reason == "less sure here than elsewhere: bee (90.0 %) or cat (6.0 %)"
    (lost,) = label_next(rows((0.34, 0.33, 0.33)), np.array([0]), np.array([0]), NAMES, n=1)
    assert lost.reason == "unlike what it has learnt: no class is more probable than 34.0 %"
