"""What a fit says to the owner of the photos, in sentences that claim no more than the tests allow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meanteacher.files.typed import checked
from meanteacher.formats import count, listed, percent, points, whole_percent
from meanteacher.records import ClassResult, FitEstimate, Helped
from meanteacher.stats import difference_on_images

FEW_TESTS = 20
"""Fewer tested photos give no percentage."""
_HARDLY, _FEWEST = 0.8, 3
"""Error from which a class counts as hardly ever recognised, and the fewest tested photos for that."""
_N_NAMED = 3
_DENOMINATORS = (2, 3, 4, 5, 10, 20, 50, 100)


def headline(estimate: FitEstimate, per_class: Sequence[ClassResult], *, n_next: int) -> str:
    """How often the model is right, the classes that it hardly ever recognises or the weakest, and what to do next."""
    wrong = [each for each in per_class if each.error]
    parts = [how_good(estimate)]
    if missed := [each.name for each in wrong if each.n_tested >= _FEWEST and (each.error or 0.0) >= _HARDLY]:
        parts.append(f"Hardly ever recognised: {listed(missed, _N_NAMED)}.")
    elif wrong:
        parts.append(f"Weakest: {max(wrong, key=lambda each: each.error or 0.0).name}.")
    if n_next:
        parts.append(f"Next: label {'this one' if n_next == 1 else f'these {n_next}'}.")
    return " ".join(parts)


def how_good(estimate: FitEstimate) -> str:
    """How often the model is right on new photos; a count instead of a percentage if few photos were tested."""
    if estimate.error is None:
        return "How often it is right cannot be estimated from one label per class."
    if estimate.n < FEW_TESTS:
        were = "was" if estimate.wrong == 1 else "were"
        return (
            f"{estimate.wrong} of {count(estimate.n, 'test photo')} {were} wrong; it may be up to "
            f"{percent(estimate.high)} of new ones."
        )
    interval = whole_percent(1 - estimate.high, 1 - estimate.low)
    return f"Right on about {about(1 - estimate.error)} new photos ({interval})."


def estimate_of(about: Mapping[str, Any]) -> str:
    """`how_good` the fit said that its model is, by the description in the model's file; empty if that says nothing."""
    try:
        return how_good(checked(about["estimate"], FitEstimate))
    except (KeyError, ValueError):
        return ""


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
