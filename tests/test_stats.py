import numpy as np
import pytest
from scipy.special import softmax

from meanteacher.stats import (
    ImageDifference,
    Interval,
    calibration,
    calibration_error,
    difference_on_images,
    error_interval,
    fitted_temperature,
    reliability,
)


def judged(n: int, sharpness: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose softmax is exactly right about how often each class is true, times a sharpness."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(size=(n, 3)) * 2
    labels = np.array([draws.choice(3, p=p) for p in softmax(logits, axis=1)])
    return logits * sharpness, labels


@pytest.mark.parametrize("error", [0.02, 0.3, 0.5])
def test_the_interval_holds_the_true_error_about_95_times_in_100(error: float) -> None:
    wrong = np.random.default_rng(0).binomial(100, error, size=2000)
    intervals = [error_interval(int(w), 100) for w in wrong]
    held = [interval.low <= error <= interval.high for interval in intervals]
    assert 0.92 < np.mean(held) < 0.99


def test_the_paired_interval_holds_the_true_difference_about_95_times_in_100() -> None:
    draws = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        kind = draws.choice(4, size=60, p=[0.5, 0.2, 0.05, 0.25])  # both right, model better, worse, both wrong
        gain = difference_on_images(kind >= 2, (kind == 1) | (kind == 3))
        held.append(gain.difference.low <= 0.15 <= gain.difference.high)
    assert 0.92 < np.mean(held) < 0.99


def test_the_verdict_is_unclear_when_the_images_do_not_suffice() -> None:
    baseline = np.arange(20) < 8
    model = np.arange(20) < 6
    gain = difference_on_images(model, baseline)
    assert gain.verdict == "unclear"
    assert gain.difference.value == pytest.approx(0.1)
    assert gain.n_needed is not None
    assert gain.n_needed > 20
    many = difference_on_images(np.tile(model, 10), np.tile(baseline, 10))
    assert many.verdict == "yes"
    assert difference_on_images(np.tile(baseline, 10), np.tile(model, 10)).verdict == "no"


@pytest.mark.parametrize(("better", "worse"), [(6, 4), (4, 6), (3, 2), (1, 0), (0, 2), (7, 6)])
def test_as_many_images_as_are_said_to_be_needed_are_needed_and_enough(better: int, worse: int) -> None:
    kinds = np.arange(20)

    def of(n: float) -> ImageDifference:
        """Twenty images again and again, so that the models differ on the same share of any number of them."""
        wrong, baseline = kinds < worse, (kinds >= worse) & (kinds < worse + better)
        times = max(1, round(n / 20))
        return difference_on_images(np.tile(wrong, times), np.tile(baseline, times))

    needed = of(20).n_needed
    assert needed is not None
    assert of(500).n_needed == needed
    assert of(needed + 10).verdict == ("yes" if better > worse else "no")
    assert of(0.85 * needed - 10).verdict == "unclear"


def test_what_is_unclear_takes_more_images_than_there_are() -> None:
    unclear = 0
    for n in (10, 37, 100):
        for better in range(11):
            for worse in range(11 - better):
                gain = difference_on_images(
                    np.arange(n) < worse, (np.arange(n) >= worse) & (np.arange(n) < worse + better)
                )
                if gain.verdict == "unclear" and better != worse:
                    unclear += 1
                    assert gain.n_needed is not None
                    assert gain.n_needed > n
    assert unclear > 50


@pytest.mark.parametrize(("better", "worse", "n"), [(7, 2, 40), (2, 7, 40), (31, 12, 300), (3, 3, 9)])
def test_the_paired_interval_is_that_of_agresti_and_min(better: int, worse: int, n: int) -> None:
    """Wald's interval after half an image was added to each of the four cells of the table."""
    kinds = np.arange(n)
    found = difference_on_images(kinds < worse, (kinds >= worse) & (kinds < worse + better)).difference
    one, other = (better + 0.5) / (n + 2), (worse + 0.5) / (n + 2)
    half = 1.959963984540054 * np.sqrt((one + other - (one - other) ** 2) / (n + 2))
    assert (found.low, found.high) == pytest.approx((one - other - half, one - other + half), rel=1e-9)


def test_no_interval_of_shares_leaves_what_shares_can_be() -> None:
    right, wrong = np.zeros(4, bool), np.ones(4, bool)
    for better, worse, ends in ((right, wrong, (0.0, 1.0)), (wrong, right, (-1.0, 0.0))):
        difference = difference_on_images(better, worse).difference
        assert ends[0] <= difference.low <= difference.high <= ends[1]
        assert 1.0 in (-difference.low, difference.high)
    assert error_interval(7, 7).high == 1.0
    assert error_interval(0, 7).low == 0.0


def test_a_difference_that_may_be_nothing_is_unclear() -> None:
    assert ImageDifference(Interval(-0.1, -0.2, 0.0), None).verdict == "unclear"
    assert ImageDifference(Interval(0.1, 0.0, 0.2), None).verdict == "unclear"


@pytest.mark.parametrize(("better", "worse", "n"), [(6, 4, 20), (1, 0, 20), (9, 1, 12), (30, 25, 90), (3, 0, 3)])
def test_the_images_needed_are_the_fewest_that_suffice_to_two_digits(better: int, worse: int, n: int) -> None:
    kinds = np.arange(n)
    found = difference_on_images(kinds < worse, (kinds >= worse) & (kinds < worse + better)).n_needed
    images = np.arange(1, 20_000)
    b, c, m = better * images / n + 0.5, worse * images / n + 0.5, images + 2
    fewest = int(images[np.abs(b - c) > 1.959963984540054 * np.sqrt(b + c - (b - c) ** 2 / m)][0])
    digits = len(str(fewest)) - 2
    assert found == (fewest if digits <= 0 else -(-fewest // 10**digits) * 10**digits)


def test_models_that_never_differ_need_no_number_of_images() -> None:
    same = np.arange(10) < 3
    gain = difference_on_images(same, same)
    assert gain.verdict == "unclear"
    assert gain.n_needed is None


def test_the_temperature_undoes_a_sharpness() -> None:
    logits, labels = judged(4000, sharpness=3.0)
    assert fitted_temperature(logits, labels) == pytest.approx(3.0, rel=0.1)


def test_calibration_lowers_the_error_of_a_model_that_is_too_sure() -> None:
    logits, labels = judged(1000, sharpness=4.0)
    result = calibration(logits, labels)
    assert result["after"] < 0.5 * result["before"]
    assert sum(b["n"] for b in result["bins"]) == 1000
    for b in result["bins"]:
        interval = error_interval(round(b["accuracy"] * b["n"]), b["n"])
        assert (b["accuracy_low"], b["accuracy_high"]) == (interval.low, interval.high)


def test_the_error_after_is_not_judged_on_the_images_it_was_fitted_to() -> None:
    # Half of the images say that the model is always right, half that it never is.
    logits = np.tile([[2.0, 0.0]], (40, 1))
    labels = np.arange(40) % 2
    assert calibration(logits, labels)["after"] > 0.7  # judged on its own images it would be 0.5


def test_calibration_error_is_the_distance_of_confidence_from_accuracy() -> None:
    probabilities = np.array([[0.85, 0.15]] * 10)
    labels = np.array([0] * 5 + [1] * 5)
    assert calibration_error(probabilities, labels) == pytest.approx(0.35)
    assert reliability(probabilities, labels) == [
        {"low": 0.8, "high": 0.9, "n": 10, "confidence": pytest.approx(0.85), "accuracy": 0.5}
    ]


@pytest.mark.parametrize(("n", "low", "high"), [(4, 0.85, 0.95), (100, 0.985, 0.999)])
def test_a_model_that_is_never_wrong_is_made_as_sure_as_its_images_allow(n: int, low: float, high: float) -> None:
    for logits in ([1.0, 0.0], [30.0, 0.0]):
        margin = logits[0] / fitted_temperature(np.tile([logits], (n, 1)), np.zeros(n, dtype=int))
        assert low < 1 / (1 + np.exp(-margin)) < high
