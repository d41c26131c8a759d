import re

import numpy as np
import pytest

from meanteacher.fitting.answer import answer, estimate


def said(mean_teacher: list[int], supervised: list[int], n: int, n_unlabelled: int = 1000) -> dict[str, str]:
    """The answer when each model is wrong on these of n images."""
    ours, baseline = np.isin(np.arange(n), mean_teacher), np.isin(np.arange(n), supervised)
    judged, gain = estimate("held-out", ours, baseline)
    return answer(judged, gain, n_unlabelled=n_unlabelled)


def test_a_clear_gain_is_a_yes_with_both_errors_and_the_interval() -> None:
    result = said(list(range(20)), list(range(50)), 100)
    assert result["helped"] == "yes"
    assert result["shipped"] == "mean-teacher"
    assert result["sentence"].startswith(
        "Yes, the 1,000 unlabelled images helped: 20.0 % wrong with them, 50.0 % without"
    )
    assert "on 100 images kept apart" in result["sentence"]


def test_a_clear_loss_is_a_no_and_the_baseline_ships() -> None:
    result = said(list(range(50)), list(range(20)), 100)
    assert result["helped"] == "no"
    assert result["shipped"] == "supervised"
    assert "The model trained without them is the one that is kept." in result["sentence"]


def test_what_may_be_chance_is_said_to_be() -> None:
    result = said([0, 1, 2], [0, 1, 2, 3], 20)
    assert result["helped"] == "unclear"
    assert "cannot be told yet" in result["sentence"]
    assert "labelled images to judge by would show it, instead of 20." in result["sentence"]


def test_numbers_are_written_in_one_way() -> None:
    sentences = [
        said(list(range(200)), list(range(500)), 1200, 20_000)["sentence"],
        said(list(range(500)), list(range(200)), 1200, 20_000)["sentence"],
        said(list(range(231)), list(range(60, 300)), 1200, 20_000)["sentence"],
        said(list(range(200)), list(range(200)), 1200, 0)["sentence"],
    ]
    assert "it takes about 7,400 labelled images to judge by to show it, more than the 1,000" in sentences[2]
    for sentence in sentences:
        assert re.findall(r"\S*%", sentence.replace(" %", "%"))
        assert all(re.fullmatch(r"\d+\.\d", n) for n in re.findall(r"(\S+) ?%", sentence)), sentence
        assert not re.search(r"\d{4}", sentence), sentence


def test_equal_models_show_no_difference() -> None:
    assert said([1], [1], 20)["sentence"].startswith("No difference between the two can be seen")


def test_without_unlabelled_images_nothing_is_claimed_about_them() -> None:
    assert "no unlabelled images" in said([0], [0, 1], 20, n_unlabelled=0)["sentence"]


def test_the_estimate_counts_pairs() -> None:
    judged, _ = estimate("folds", np.array([True, False, False, False]), np.array([True, True, True, False]))
    assert judged["difference"]["points"] == pytest.approx(50)
    assert judged["mean-teacher"]["wrong"] == 1
    assert judged["supervised"]["error"] == 0.75
