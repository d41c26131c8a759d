"""The honest answer, in one sentence: did the unlabelled images help, and by how much?"""

from typing import Any

import numpy as np

from meanteacher.fitting.crossval import MOST_JUDGES
from meanteacher.formats import count, percent, points
from meanteacher.stats import CONFIDENCE, Gain, Interval, error_interval, paired_gain


def estimate(how: str, mean_teacher_wrong: np.ndarray, supervised_wrong: np.ndarray) -> tuple[dict[str, Any], Gain]:
    """Both errors with their intervals and the difference, as the page shows them."""
    n = len(mean_teacher_wrong)
    gain = paired_gain(mean_teacher_wrong, supervised_wrong)
    return {
        "how": how,
        "n": n,
        "confidence": CONFIDENCE,
        "n_needed": gain.n_needed,
        "mean-teacher": _said(error_interval(int(mean_teacher_wrong.sum()), n), int(mean_teacher_wrong.sum())),
        "supervised": _said(error_interval(int(supervised_wrong.sum()), n), int(supervised_wrong.sum())),
        "difference": {
            "points": 100 * gain.difference.value,
            "low": 100 * gain.difference.low,
            "high": 100 * gain.difference.high,
        },
    }, gain


def answer(judged: dict[str, Any], gain: Gain, *, n_unlabelled: int) -> dict[str, str]:
    """Which model ships, and the sentence. Claims no more than the interval allows."""
    ours, baseline = judged["mean-teacher"]["error"], judged["supervised"]["error"]
    shipped = "mean-teacher" if ours <= baseline else "supervised"
    difference, n = judged["difference"], judged["n"]
    errors = f"{percent(ours)} wrong with them, {percent(baseline)} without, on {count(n)} kept apart"
    interval = f"{points(difference['low'])} to {points(difference['high'])} points"
    if n_unlabelled == 0:
        sentence = (
            f"There are no unlabelled images to learn from; the model is wrong on {percent(min(ours, baseline))}."
        )
    elif gain.verdict == "yes":
        sentence = f"Yes, the {n_unlabelled:,} unlabelled images helped: {errors}; a gain of {interval}."
    elif gain.verdict == "no":
        sentence = (
            f"No, the {n_unlabelled:,} unlabelled images did not help: {errors}. "
            "The model trained without them is the one that is kept."
        )
    elif gain.n_needed is None:
        sentence = f"No difference between the two can be seen: {errors}."
    else:
        sentence = (
            f"It cannot be told yet whether the {n_unlabelled:,} unlabelled images helped: {errors}, which may be "
            f"chance. {_needed(n, gain.n_needed)}"
        )
    return {"helped": gain.verdict, "sentence": sentence, "shipped": shipped}


def _needed(n: int, n_needed: int) -> str:
    """How many images it would take: those that judge, and not those that teach."""
    if n_needed > MOST_JUDGES:
        return (
            f"If the difference is real, it takes about {n_needed:,} labelled images to judge by to show it, more than "
            f"the {MOST_JUDGES:,} that are ever kept apart."
        )
    return f"If the difference is real, about {n_needed:,} labelled images to judge by would show it, instead of {n:,}."


def _said(interval: Interval, wrong: int) -> dict[str, float]:
    return {"error": interval.value, "low": interval.low, "high": interval.high, "wrong": wrong}
