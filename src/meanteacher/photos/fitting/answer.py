"""Did the unlabelled images help, and by how much? Which network did a trial choose? Answers in a sentence or two."""

from typing import Literal

import numpy as np

from meanteacher.formats import count, percent, points
from meanteacher.photos.fitting.split import MAX_HELD_OUT, How
from meanteacher.records import Answer, ErrorEstimate, Estimate, PointsDifference, Trial
from meanteacher.stats import CONFIDENCE, ImageDifference, difference_on_images, error_interval

_TRIAL_RATIO = 1.2
"""Times as many errors as the pretrained network that one from scratch may make in a trial and be chosen
(docs/experiments/backbones.md)."""


def estimate(
    how: How, mean_teacher_wrong: np.ndarray, supervised_wrong: np.ndarray
) -> tuple[Estimate, ImageDifference]:
    """Both errors with their intervals, and the difference."""
    gain = difference_on_images(mean_teacher_wrong, supervised_wrong)
    return Estimate(
        how=how,
        n=len(mean_teacher_wrong),
        confidence=CONFIDENCE,
        n_needed=gain.n_needed,
        errors={"mean-teacher": error_of(mean_teacher_wrong), "supervised": error_of(supervised_wrong)},
        difference=PointsDifference(
            points=100 * gain.difference.value, low=100 * gain.difference.low, high=100 * gain.difference.high
        ),
    ), gain


def error_of(wrong: np.ndarray) -> ErrorEstimate:
    """The error and its interval."""
    n_wrong = int(wrong.sum())
    interval = error_interval(n_wrong, len(wrong))
    return ErrorEstimate(error=interval.value, low=interval.low, high=interval.high, wrong=n_wrong)


def answer(
    estimate: Estimate, gain: ImageDifference, *, shipped: str, n_unlabelled: int, on_backbone: bool = False
) -> Answer:
    """The verdict and its sentence, which claims no more than the interval allows.

    If both models stand on the same pretrained network (`on_backbone`), the gain is what the images added to it.
    """
    n, low, high = estimate.n, estimate.difference.low, estimate.difference.high
    tested = f"{count(n)} that the models had not learned from"
    unlabelled = count(n_unlabelled, "unlabelled image")
    beyond = " beyond what the pretrained network knew" if on_backbone else ""
    ours, theirs = (percent(estimate.errors[method].error) for method in ("mean-teacher", "supervised"))
    without = (
        f"the same network with the labels alone on {theirs} at best" if on_backbone else f"without them on {theirs}"
    )
    errors = f"with them the model was wrong on {ours} of {tested}, {without}"
    if n_unlabelled == 0:
        sentence = (
            "There were no unlabelled images to learn from. The model was wrong on "
            f"{percent(estimate.errors[shipped].error)} of {tested}."
        )
    elif gain.verdict == "yes":
        sentence = (
            f"Yes, the {unlabelled} helped{beyond}: {errors}. The gain is most likely between {points(low)} and "
            f"{points(high)} percentage points."
        )
    elif gain.verdict == "no":
        sentence = f"No, the {unlabelled} did not help{beyond}: {errors}. The model trained without them is kept."
    elif gain.n_needed is None:
        sentence = f"The {unlabelled} made no visible difference{beyond}: {errors}."
    else:
        there = (
            f"there were {n:,}" if gain.n_needed <= MAX_HELD_OUT else f"at most {MAX_HELD_OUT:,} are used for testing"
        )
        sentence = (
            f"It is not clear yet whether the {unlabelled} helped{beyond}: {errors}. This difference may be chance. "
            f"If it is real, showing it takes about {gain.n_needed:,} labelled test images; {there}."
        )
    return Answer(helped=gain.verdict, sentence=sentence, shipped=shipped)


def loses_to_guessing(wrong: np.ndarray, n_classes: int) -> bool:
    """Whether even a network from scratch that guesses would be chosen instead of the pretrained one."""
    return _TRIAL_RATIO * int(wrong.sum()) >= (1 - 1 / n_classes) * len(wrong)


def trial_result(wrong: dict[str, np.ndarray], title: str) -> Trial:
    """The outcome of a trial, from stand -> [n] of bool; without "scratch" if the pretrained one loses to guessing.

    The linear classifier has nearly the error that the pretrained network ends with, while a network from scratch
    improves much in the time that it gets. So it is chosen unless it makes `_TRIAL_RATIO` times as many errors.
    """
    if "scratch" not in wrong:
        error, n = error_of(wrong["pretrained"]), len(wrong["pretrained"])
        sentence = (
            f"A short trial on {count(n, 'labelled image')} chose a small network from scratch: the pretrained network "
            f"{title} was wrong on {percent(error.error)} of them, hardly better than a guess."
        )
        return Trial(chosen="scratch", n=n, pretrained=error, scratch=None, sentence=sentence)
    n_wrong = {stand: int(its.sum()) for stand, its in wrong.items()}
    is_better = n_wrong["scratch"] > _TRIAL_RATIO * n_wrong["pretrained"]
    chosen: Literal["pretrained", "scratch"] = "pretrained" if is_better else "scratch"
    other = "scratch" if is_better else "pretrained"
    errors, n = {stand: error_of(its) for stand, its in wrong.items()}, len(wrong["scratch"])
    names = {"pretrained": f"the pretrained network {title}", "scratch": "a small network from scratch"}
    more = "" if n_wrong[chosen] < n_wrong[other] else ", but training improves a network from scratch more"
    sentence = (
        f"A short trial on {count(n, 'labelled image')} chose {names[chosen]}: it was wrong on "
        f"{percent(errors[chosen].error)}, {names[other]} on {percent(errors[other].error)}{more}."
    )
    return Trial(chosen=chosen, n=n, pretrained=errors["pretrained"], scratch=errors["scratch"], sentence=sentence)
