import re

import numpy as np
import pytest

from meanteacher.formats import points
from meanteacher.photos.fitting.answer import answer, estimate, loses_to_guessing, trial_result
from meanteacher.photos.fitting.crossval import EvaluationResult, better_method
from meanteacher.records import Answer
from meanteacher.stats import difference_on_images


def answered(
    mean_teacher: list[int], supervised: list[int], n: int, n_unlabelled: int = 1000, *, on_backbone: bool = False
) -> Answer:
    """The answer when each model is wrong on these of n images."""
    wrong = {
        method: np.isin(np.arange(n), rows)
        for method, rows in (("mean-teacher", mean_teacher), ("supervised", supervised))
    }
    # Neither outputs nor models matter here.
    results = {method: EvaluationResult(np.empty(0), its, None) for method, its in wrong.items()}  # type: ignore[arg-type]
    errors, gain = estimate("held-out", wrong["mean-teacher"], wrong["supervised"])
    return answer(errors, gain, shipped=better_method(results), n_unlabelled=n_unlabelled, on_backbone=on_backbone)


def numbers(sentence: str) -> set[str]:
    return set(re.findall(r"\d[\d,.]*\d|\d", sentence))


def test_a_clear_gain_is_a_yes_with_both_errors_and_the_interval() -> None:
    result = answered(list(range(20)), list(range(50)), 100)
    assert (result.helped, result.shipped) == ("yes", "mean-teacher")
    assert result.sentence.startswith("Yes")
    gain = difference_on_images(np.arange(100) < 20, np.arange(100) < 50).difference
    interval = {points(100 * gain.low), points(100 * gain.high)}
    assert {"1,000", "20.0", "50.0", "100", *interval} == numbers(result.sentence)


def test_a_clear_loss_is_a_no_and_the_baseline_ships() -> None:
    result = answered(list(range(50)), list(range(20)), 100)
    assert (result.helped, result.shipped) == ("no", "supervised")
    assert result.sentence.startswith("No")
    assert {"1,000", "50.0", "20.0", "100"} <= numbers(result.sentence)


def test_a_difference_that_may_be_chance_is_unclear_and_says_how_many_images_would_show_it() -> None:
    result = answered([0, 1, 2], [0, 1, 2, 3], 20)
    assert (result.helped, result.shipped) == ("unclear", "mean-teacher")
    assert {"15.0", "20.0", "20"} <= numbers(result.sentence)
    assert "chance" in result.sentence


def test_more_images_than_are_ever_used_for_testing_are_said_to_be() -> None:
    sentence = answered(list(range(231)), list(range(60, 300)), 1200).sentence
    assert {"7,400", "1,000"} <= numbers(sentence)


def test_numbers_are_written_in_one_way() -> None:
    for sentence in (
        answered(list(range(200)), list(range(500)), 1200, 20_000).sentence,
        answered(list(range(500)), list(range(200)), 1200, 20_000).sentence,
        answered(list(range(231)), list(range(60, 300)), 1200, 20_000).sentence,
        answered(list(range(200)), list(range(200)), 1200, 20_000).sentence,
        answered(list(range(200)), list(range(200)), 1200, 0).sentence,
    ):
        shares = re.findall(r"(\S+) ?%", sentence)
        assert shares
        assert all(re.fullmatch(r"\d+\.\d", share) for share in shares), sentence
        assert not re.search(r"\d{4}", sentence), sentence


def test_equal_models_show_no_difference_and_mean_teacher_ships() -> None:
    result = answered([1], [1], 20)
    assert (result.helped, result.shipped) == ("unclear", "mean-teacher")
    assert "no visible difference" in result.sentence
    assert "chance" not in result.sentence


def test_without_unlabelled_images_nothing_is_claimed_about_them() -> None:
    result = answered([0], [0, 1], 20, n_unlabelled=0)
    assert "no unlabelled images" in result.sentence
    assert numbers(result.sentence) == {"5.0", "20"}


@pytest.mark.parametrize(
    ("mean_teacher", "supervised"),
    [(range(20), range(50)), (range(50), range(20)), (range(30), range(32)), (range(30), range(30))],
    ids=["yes", "no", "unclear", "equal"],
)
def test_on_a_pretrained_network_the_comparison_is_with_the_best_that_learned_from_the_labels_alone(
    mean_teacher: range, supervised: range
) -> None:
    plain = answered(list(mean_teacher), list(supervised), 100)
    pretrained = answered(list(mean_teacher), list(supervised), 100, on_backbone=True)
    assert (plain.helped, plain.shipped) == (pretrained.helped, pretrained.shipped)
    # The same numbers, in the same order.
    assert re.findall(r"[\d,.]*\d", plain.sentence) == re.findall(r"[\d,.]*\d", pretrained.sentence)
    assert plain.sentence.split()[0] == pretrained.sentence.split()[0]
    assert "pretrained network" in pretrained.sentence
    assert "labels alone" in pretrained.sentence
    assert "pretrained" not in plain.sentence


def test_without_unlabelled_images_a_pretrained_network_changes_nothing() -> None:
    assert answered([0], [0, 1], 20, 0) == answered([0], [0, 1], 20, 0, on_backbone=True)


def test_the_estimate_counts_pairs() -> None:
    errors, _ = estimate("folds", np.array([True, False, False, False]), np.array([True, True, True, False]))
    assert errors.difference.points == pytest.approx(50)
    assert errors.errors["mean-teacher"].wrong == 1
    assert errors.errors["supervised"].error == 0.75


@pytest.mark.parametrize(
    ("pretrained", "scratch", "chosen"),
    [(51, 69, "pretrained"), (50, 61, "pretrained"), (50, 60, "scratch"), (83, 74, "scratch"), (0, 0, "scratch")],
)
def test_from_scratch_is_chosen_unless_it_makes_many_more_errors(pretrained: int, scratch: int, chosen: str) -> None:
    wrong = {"pretrained": np.arange(100) < pretrained, "scratch": np.arange(100) < scratch}
    trial = trial_result(wrong, "BigNet")
    assert trial.chosen == chosen
    assert (trial.n, trial.pretrained.wrong, trial.scratch and trial.scratch.wrong) == (100, pretrained, scratch)
    assert trial.pretrained.low <= trial.pretrained.error <= trial.pretrained.high
    first, second = ("BigNet", "from scratch") if chosen == "pretrained" else ("from scratch", "BigNet")
    assert trial.sentence.index(first) < trial.sentence.index(second)
    for share in (f"{pretrained}.0 %", f"{scratch}.0 %"):
        assert share in trial.sentence
    assert ("improves" in trial.sentence) == (chosen == "scratch" and scratch >= pretrained)


@pytest.mark.parametrize(
    ("n_wrong", "n_classes", "loses"), [(75, 10, True), (74, 10, False), (42, 2, True), (41, 2, False)]
)
def test_a_network_that_guesses_is_chosen_only_where_it_would_be_chosen_after_a_trial(
    n_wrong: int, n_classes: int, loses: bool
) -> None:
    wrong = np.arange(100) < n_wrong
    assert loses_to_guessing(wrong, n_classes) == loses
    guessing = np.arange(100) < round(100 * (1 - 1 / n_classes))
    assert (trial_result({"pretrained": wrong, "scratch": guessing}, "BigNet").chosen == "scratch") == loses
    assert "BigNet was wrong on" in trial_result({"pretrained": wrong}, "BigNet").sentence
