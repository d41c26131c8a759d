import re
from typing import Any

import numpy as np
import pytest

from meanteacher.photos.fitting import label_next as module
from meanteacher.photos.fitting.label_next import Suggestion, label_next, most_diverse

NAMES = ("ant", "bee", "cat")


def rows(*p: tuple[float, float, float]) -> np.ndarray:
    return np.array(p)


def suggested(
    p: np.ndarray, *, candidates: list[int] | None = None, groups: list[int] | None = None, **options: Any
) -> list[Suggestion]:
    everyone = np.arange(len(p))
    return label_next(
        p,
        everyone if candidates is None else np.array(candidates, dtype=int),
        everyone if groups is None else np.array(groups),
        NAMES,
        **options,
    )


def chosen(p: np.ndarray, **options: Any) -> list[int]:
    return [suggestion.index for suggestion in suggested(p, **options)]


def around(*angles: float) -> np.ndarray:
    """A feature vector at each of these angles in degrees, none of unit length."""
    turns = np.radians(angles)
    return np.stack([np.cos(turns), np.sin(turns)], axis=1) * np.linspace(2, 9, len(angles))[:, None]


def mentioned(reason: str) -> set[str]:
    """The classes and their probabilities."""
    return set(re.findall(r"\w+ \(\S+ %\)", reason))


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
    assert {"bee (50.0 %)", "cat (40.0 %)"} <= mentioned(suggestion.reason)
    (torn,) = label_next(np.array([[0.48, 0.52]]), np.array([0]), np.array([0]), NAMES[:2], n=1)
    assert {"bee (52.0 %)", "ant (48.0 %)"} <= mentioned(torn.reason)
    (sure,) = label_next(rows((0.04, 0.9, 0.06)), np.array([0]), np.array([0]), NAMES, n=1)
    assert {"bee (90.0 %)", "cat (6.0 %)"} <= mentioned(sure.reason)
    (lost,) = label_next(rows((0.34, 0.33, 0.33)), np.array([0]), np.array([0]), NAMES, n=1)
    assert "34.0 %" in lost.reason
    assert not mentioned(lost.reason)
    assert len({reason.split()[0] for reason in (suggestion.reason, sure.reason, lost.reason)}) == 3


def test_without_candidates_nothing_is_suggested() -> None:
    assert chosen(rows((0.5, 0.5, 0.0)), candidates=[], n=3) == []
    assert chosen(rows((0.5, 0.5, 0.0)), candidates=[], n=3, features=around(0), labelled=[0]) == []


UNSURE = (0.5, 0.45, 0.05)
KINDS = around(0, 1, 2, 3, 4, 120, 121, 122, 240)
"""Five images of one kind, three of another, one of a third. The first has a label."""
UNLABELLED = list(range(1, 9))
KIND = np.array([0] * 5 + [1] * 3 + [2])


def test_with_features_each_kind_is_asked_about_before_any_is_twice_and_the_largest_unlabelled_first() -> None:
    p = rows(*[UNSURE] * 9)
    picked = chosen(p, candidates=UNLABELLED, n=3, features=KINDS, labelled=[0])
    assert KIND[picked].tolist() == [1, 2, 0]
    # With a label in the second kind, too, only the third is left unknown.
    assert chosen(p, candidates=[1, 2, 3, 4, 5, 7, 8], n=1, features=KINDS, labelled=[0, 6]) == [8]


def test_with_features_a_kind_that_the_model_is_sure_of_is_not_asked_about_first() -> None:
    p = rows(*[UNSURE] * 5, *[(0.98, 0.01, 0.01)] * 3, UNSURE)
    assert chosen(p, candidates=UNLABELLED, n=1, features=KINDS, labelled=[0]) == [8]


def test_with_features_copies_are_asked_about_once_and_no_image_twice() -> None:
    p = rows(*[UNSURE] * 9)
    picked = chosen(p, groups=[0, 1, 2, 3, 4, 5, 5, 5, 8], n=20, features=KINDS, labelled=[])
    assert sorted(picked) == [0, 1, 2, 3, 4, 5, 8]
    assert sorted(chosen(p, n=20, features=np.zeros((9, 2)), labelled=[0])) == list(range(9))


def test_with_features_only_the_least_sure_are_suggested_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = rows(*[(0.5 + 0.01 * k, 0.3, 0.2 - 0.01 * k) for k in range(9)])
    monkeypatch.setattr(module, "_N_SUGGESTIBLE", 4)
    assert sorted(chosen(p, n=20, features=KINDS, labelled=[5, 6, 7, 8, 0])) == [0, 1, 2, 3]


def test_with_features_the_reason_says_what_the_image_resembles() -> None:
    p = rows(*[UNSURE] * 5, *[(0.9, 0.06, 0.04)] * 3, UNSURE)
    picked = suggested(p, candidates=[1, 2, 3, 4, 5, 6, 7], n=2, features=KINDS, labelled=[0])
    unknown, known = sorted((s for s in picked), key=lambda s: -KIND[s.index])
    assert KIND[unknown.index] == 1
    assert mentioned(unknown.reason) == {"ant (90.0 %)"}
    assert "unlike any labelled photo" in unknown.reason
    assert "like 2 other unlabelled photos" in unknown.reason
    assert KIND[known.index] == 0
    assert mentioned(known.reason) == {"ant (50.0 %)", "bee (45.0 %)"}
    assert "unlike" not in known.reason


def test_an_image_is_called_unlike_if_it_is_of_the_quarter_farthest_from_any_labelled_one() -> None:
    angles = around(0, 10, 25, 45, 70, 110, 160, 220, 300)
    picked = most_diverse(angles, np.arange(1, 9), labelled=[0], n=8)
    points = angles / np.linalg.norm(angles, axis=1, keepdims=True)
    centred = points - points[1:].mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    farthest = 1 + np.argsort(centred[1:] @ centred[0])[:2]
    assert sorted(each.index for each in picked) == list(range(1, 9))
    assert {each.index for each in picked if "unlike" in each.reason} == set(farthest.tolist())


def test_each_choice_adds_most_to_the_similarity_of_all_images_to_the_nearest_chosen_one() -> None:
    draws = np.random.default_rng(3)
    features = draws.normal(size=(14, 3)) * draws.uniform(1, 5, (14, 1))
    candidates, labelled = np.array([13, 2, 5, 7, 1, 0, 9, 11, 4]), [3, 6]
    picked = [each.index for each in most_diverse(features, candidates, labelled=labelled, n=4)]
    points = features / np.linalg.norm(features, axis=1, keepdims=True)
    points -= points[candidates].mean(0)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    chosen: list[int] = []

    def covered(among: list[int]) -> float:
        return float((points[candidates] @ points[[*labelled, *among]].T).max(1).sum())

    for one in picked:
        rest = [k for k in candidates.tolist() if k not in chosen]
        best = max(rest, key=lambda k: covered([*chosen, k]))
        assert covered([*chosen, one]) >= covered([*chosen, best]) - 1e-5
        chosen.append(one)
    assert len(set(picked)) == 4
    assert most_diverse(features, np.array([], dtype=int)) == []


def test_labelled_images_are_compared_in_parts_and_of_many_candidates_the_first_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = np.random.default_rng(5).normal(size=(20, 4))
    candidates, labelled = np.arange(12), np.arange(12, 20)
    whole = most_diverse(features, candidates, labelled=labelled, n=3)
    monkeypatch.setattr(module, "_N_SUGGESTIBLE", 12)
    assert most_diverse(features, candidates, labelled=labelled, n=3) == whole
    monkeypatch.setattr(module, "_N_SUGGESTIBLE", 3)
    few = most_diverse(features, candidates, labelled=labelled, n=5)
    assert {each.index for each in few} == {0, 1, 2}
    monkeypatch.setattr(module, "_N_COVERED", 2)
    assert {each.index for each in most_diverse(features, candidates, labelled=labelled, n=5)} == {0, 1}


def test_a_doubtful_image_counts_more_than_two_that_are_nearly_sure() -> None:
    p = rows(*[(0.97, 0.02, 0.01)] * 2, *[(0.4, 0.36, 0.24)] * 2, (0.9, 0.05, 0.05), (0.95, 0.03, 0.02))
    picked = chosen(p, n=1, features=around(0, 2, 120, 122, 240, 200), labelled=[4])
    assert picked in ([2], [3])


def test_the_boundaries_of_the_reasons() -> None:
    def reason(*p: float) -> str:
        return suggested(np.array([p]), n=1)[0].reason.replace("\N{NO-BREAK SPACE}", " ")

    assert reason(0.5, 0.25, 0.25).startswith("hesitates"), "the third has half of the first"
    assert reason(0.5, 0.24, 0.26).startswith("no class fits well") is False
    assert reason(0.44, 0.3, 0.26).startswith("no class fits well")
    assert reason(0.8, 0.15, 0.05).startswith("less sure here than elsewhere: ant (80.0 %) or bee (15.0 %)")
    assert reason(0.79, 0.16, 0.05).startswith("hesitates between ant (79.0 %) and bee (16.0 %)")
