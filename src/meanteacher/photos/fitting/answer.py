"""What a fit says to the owner of the photos, in sentences that claim no more than the tests allow."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from meanteacher.formats import count, percent, points, whole_percent
from meanteacher.photos.fitting.estimate import Estimate
from meanteacher.records import ErrorEstimate, Helped, Trial
from meanteacher.stats import difference_on_images, error_interval

_TRIAL_RATIO = 1.2
"""Times as many errors as the pretrained network that one from scratch may make in a trial and be chosen
(docs/experiments/backbones.md)."""
_FEW_TESTS = 20
"""Fewer tested photos give no percentage."""
_DENOMINATORS = (2, 3, 4, 5, 10, 20, 50, 100)


def headline(estimate: Estimate, class_names: Sequence[str], *, n_next: int) -> str:
    """How often the model is right, its weakest class, and what to do next."""
    weak = [k for k, error in enumerate(estimate.per_class) if error]
    weakest = max(weak, key=lambda k: estimate.per_class[k] or 0.0, default=None)
    parts = [how_good(estimate)]
    if weakest is not None:
        parts.append(f"Weakest: {class_names[weakest]}.")
    if n_next:
        parts.append(f"Next: label {'this one' if n_next == 1 else f'these {n_next}'}.")
    return " ".join(parts)


def how_good(estimate: Estimate) -> str:
    """How often the model is right on new photos; a count instead of a percentage if few photos were tested."""
    if estimate.error is None:
        return "How often it is right cannot be estimated from one label per class."
    if estimate.n < _FEW_TESTS:
        were = "was" if estimate.wrong == 1 else "were"
        return (
            f"{estimate.wrong} of {count(estimate.n, 'test photo')} {were} wrong; it may be up to "
            f"{percent(estimate.high)} of new ones."
        )
    interval = whole_percent(1 - estimate.high, 1 - estimate.low)
    return f"Right on about {about(1 - estimate.error)} new photos ({interval})."


def about(share: float) -> str:
    """A share as a small fraction, in words of a person.

    >>> about(0.75), about(0.97), about(0.34), about(0.999), about(0.03)
    ('3 of 4', '97 of 100', '1 of 3', '100 of 100', '3 of 100')
    """
    near = min(0.02, 0.2 * min(share, 1 - share))
    n = next((n for n in _DENOMINATORS if abs(round(share * n) / n - share) <= near), _DENOMINATORS[-1])
    return f"{round(share * n)} of {n}"


def helped(wrong: np.ndarray, baseline_wrong: np.ndarray, *, n_unlabelled: int) -> Helped:
    """Whether the unlabelled photos helped: the errors with and without them on the same tested photos."""
    n, found = len(wrong), difference_on_images(wrong, baseline_wrong)
    low, high = 100 * found.difference.low, 100 * found.difference.high
    errors = (
        f"of {count(n, 'tested photo')}, {int(wrong.sum()):,} were wrong with them and {int(baseline_wrong.sum()):,} "
        "with the labels alone"
    )
    photos = count(n_unlabelled, "unlabelled photo")
    sentence = {
        "yes": f"The {photos} helped: {errors}. The gain is most likely between {points(low)} and {points(high)} "
        "percentage points.",
        "no": f"The {photos} did not help: {errors}.",
        "unclear": f"Whether the {photos} helped is not clear: {errors}, and this difference may be chance.",
    }[found.verdict]
    if np.array_equal(wrong, baseline_wrong):
        sentence = f"The {photos} made no difference: {errors}."
    return Helped(verdict=found.verdict, sentence=sentence, points=100 * found.difference.value, low=low, high=high)


def error_of(wrong: np.ndarray) -> ErrorEstimate:
    """The error and its interval."""
    n_wrong = int(wrong.sum())
    interval = error_interval(n_wrong, len(wrong))
    return ErrorEstimate(error=interval.value, low=interval.low, high=interval.high, wrong=n_wrong)


def loses_to_guessing(wrong: np.ndarray, n_classes: int) -> bool:
    """Whether even a network from scratch that guesses would be chosen instead of the pretrained one."""
    return _TRIAL_RATIO * int(wrong.sum()) >= (1 - 1 / n_classes) * len(wrong)


def trial_result(wrong: dict[str, np.ndarray], title: str) -> Trial:
    """The outcome of a trial, from network -> [n] of bool; without "scratch" if the pretrained one loses to guessing.

    The linear head has nearly the error that the pretrained network ends with, while a network from scratch improves
    much in the time that it gets. So it is chosen unless it makes `_TRIAL_RATIO` times as many errors.
    """
    n = len(wrong["pretrained"])
    if n == 0:
        sentence = f"One label per class is too few for a trial, so the pretrained network {title} is used."
        return Trial(chosen="pretrained", n=0, pretrained=None, scratch=None, sentence=sentence)
    if "scratch" not in wrong:
        error = error_of(wrong["pretrained"])
        sentence = (
            f"A short trial on {count(n, 'labelled image')} chose a small network from scratch: the pretrained network "
            f"{title} was wrong on {percent(error.error)} of them, hardly better than a guess."
        )
        return Trial(chosen="scratch", n=n, pretrained=error, scratch=None, sentence=sentence)
    n_wrong = {network: int(its.sum()) for network, its in wrong.items()}
    is_better = n_wrong["scratch"] > _TRIAL_RATIO * n_wrong["pretrained"]
    chosen: Literal["pretrained", "scratch"] = "pretrained" if is_better else "scratch"
    other = "scratch" if is_better else "pretrained"
    errors = {network: error_of(its) for network, its in wrong.items()}
    names = {"pretrained": f"the pretrained network {title}", "scratch": "a small network from scratch"}
    more = "" if n_wrong[chosen] < n_wrong[other] else ", but training improves a network from scratch more"
    sentence = (
        f"A short trial on {count(n, 'labelled image')} chose {names[chosen]}: it was wrong on "
        f"{percent(errors[chosen].error)}, {names[other]} on {percent(errors[other].error)}{more}."
    )
    return Trial(chosen=chosen, n=n, pretrained=errors["pretrained"], scratch=errors["scratch"], sentence=sentence)
