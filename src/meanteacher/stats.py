"""Error rates and means with intervals, the difference of two models on the same images, and calibration.

scipy is imported inside the functions that use it, because its import takes longer than everything else here.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_N_BINS = 10
_SMALLEST_SHOWN = 5e-4
"""Smallest difference that is not shown as 0.0 points."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A share or a mean, and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def error_interval(wrong: float, n: float) -> Interval:
    """The error on n images with Wilson's interval, which stays within 0 and 1 and also holds for few images.

    Both numbers may be fractions, if images weigh differently and n is the number of equal ones that tell as much.

    >>> interval = error_interval(31, 100)
    >>> interval.value, round(interval.low, 3), round(interval.high, 3)
    (0.31, 0.228, 0.406)
    >>> error_interval(0, 10).low, round(error_interval(0, 10).high, 2)
    (0.0, 0.28)
    """
    share, square = wrong / n, _Z**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n**2))
    # Without errors, or without anything else, the interval ends there, but for rounding.
    low, high = 0.0 if wrong == 0 else middle - half, 1.0 if wrong == n else middle + half
    return Interval(share, low, high)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of at least two values with the interval of Student's t distribution, which is wide for few values.

    >>> interval = mean_interval([1.0, 2.0, 3.0])
    >>> interval.value, round(interval.low, 2), round(interval.high, 2)
    (2.0, -0.48, 4.48)
    """
    from scipy.special import stdtrit

    mean = fmean(values)
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """Difference of the errors of two models on the same images: the second model's minus the first one's."""

    difference: Interval
    n_needed: int | None
    """Total number of evaluation images that would make a difference of this size clear, to two digits; None if the
    difference is too small to show."""

    @property
    def verdict(self) -> str:
        """Whether the first model is better: yes, no or unclear."""
        if self.difference.low > 0:
            return "yes"
        return "no" if self.difference.high < 0 else "unclear"


def difference_on_images(wrong: np.ndarray, baseline_wrong: np.ndarray) -> ImageDifference:
    """The baseline's error minus the model's, with the interval of Agresti and Min (2005) for paired shares.

    Both arguments are bool [N]: whether a model is wrong on each of the same images. (`report.compare` has the
    difference of recipes, whose pairs are runs.) Only images that one model gets right and the other wrong contribute,
    so this interval is much narrower than that of two independent errors.
    """
    n = len(wrong)
    better, worse = int((baseline_wrong & ~wrong).sum()), int((wrong & ~baseline_wrong).sum())
    low, high = _paired_interval(better, worse, n)
    return ImageDifference(
        Interval((better - worse) / n, max(-1.0, low), min(1.0, high)), _images_needed(better, worse, n)
    )


def _paired_interval(better: float, worse: float, n: float) -> tuple[float, float]:
    b, c, m = better + 0.5, worse + 0.5, n + 2
    middle = (b - c) / m
    half = _Z / m * math.sqrt(b + c - (b - c) ** 2 / m)
    return middle - half, middle + half


def _images_needed(better: int, worse: int, n: int) -> int | None:
    """The smallest number of images whose interval excludes zero, if the two models differ on the same share of them.

    It uses the interval of the verdict, so that an unclear difference always needs more images than there are.
    """
    if abs(better - worse) < _SMALLEST_SHOWN * n:
        return None

    def is_clear(n_images: int) -> bool:
        low, high = _paired_interval(better * n_images / n, worse * n_images / n, n_images)
        return low > 0 or high < 0

    enough = 1
    while not is_clear(enough):
        enough *= 2
    needed = bisect_left(range(enough + 1), True, lo=enough // 2, key=is_clear)
    unit = int(10 ** max(math.floor(math.log10(needed)) - 1, 0))
    return math.ceil(needed / unit) * unit


def fitted_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The divisor of the logits that makes the labels most probable (temperature scaling, Guo et al. 2017).

    Labels are smoothed by 1 / (n + 2), shared among the classes (after Platt 1999), because n images without an error
    do not prove that the next ones have none: four correct predictions out of four do not make the model certain.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    smoothing = 1 / (len(labels) + 2)

    def cross_entropy(log_temperature: float) -> float:
        log_p = log_softmax(logits / math.exp(log_temperature), axis=1)
        known, any_class = log_p[np.arange(len(labels)), labels], log_p.mean(1)
        return float(-((1 - smoothing) * known + smoothing * any_class).mean())

    bound = math.log(100.0)
    return math.exp(float(minimize_scalar(cross_entropy, bounds=(-bound, bound), method="bounded").x))


def calibration(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The temperature, fitted to all images, and the calibration error before and after it.

    The error after it is measured by two-fold cross-fitting, because it would be too low on the images that the
    temperature was fitted to: each half of the images is evaluated with the temperature of the other half.
    """
    from scipy.special import softmax

    temperature = fitted_temperature(logits, labels)
    halves = np.arange(len(labels)) % 2
    after = np.empty((len(labels), logits.shape[1]))
    for half in (0, 1):
        evaluated, other = halves == half, halves != half
        fitted = fitted_temperature(logits[other], labels[other]) if other.any() else temperature
        after[evaluated] = softmax(logits[evaluated] / fitted, axis=1)
    return {
        "temperature": temperature,
        "before": calibration_error(softmax(logits, axis=1), labels),
        "after": calibration_error(after, labels),
        "bins": [each | _accuracy_interval(each) for each in reliability(after, labels)],
    }


def confusion(truth: np.ndarray, guess: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of images by true class (rows) and predicted class (columns).

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    table = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(table, (truth, guess), 1)
    return table


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    """Confidence and accuracy in ten bins of equal width by confidence; empty bins are left out."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    index = np.minimum((confidence * _N_BINS).astype(int), _N_BINS - 1)
    return [
        {
            "low": k / _N_BINS,
            "high": (k + 1) / _N_BINS,
            "n": int((index == k).sum()),
            "confidence": float(confidence[index == k].mean()),
            "accuracy": float(right[index == k].mean()),
        }
        for k in range(_N_BINS)
        if (index == k).any()
    ]


def _accuracy_interval(group: dict[str, float]) -> dict[str, float]:
    n = int(group["n"])
    interval = error_interval(round(group["accuracy"] * n), n)
    return {"accuracy_low": interval.low, "accuracy_high": interval.high}


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The expected calibration error: the mean difference of confidence and accuracy over bins, weighted by size."""
    bins = reliability(probabilities, labels)
    return sum(b["n"] * abs(b["confidence"] - b["accuracy"]) for b in bins) / len(labels)
