"""What a fit found, in sentences that claim no more than the interval allows."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from meanteacher.report.names import display_name, name_in_sentence
from meanteacher.report.sentences import count
from meanteacher.report.tables import percent

Fit = Mapping[str, Any]
"""The content of fit.json. Only `title`, `answer` and `data` must be there."""

OURS, BASELINE = "mean-teacher", "supervised"

Verdict = Literal["yes", "no", "unclear"]


def lead(fit: Fit) -> str:
    """The answer in a sentence: the fit's own where the interval supports it, else one that does not overreach."""
    if verdict(fit) == fit["answer"]["helped"]:
        return str(fit["answer"]["sentence"])
    ours, theirs = (error_of(fit, method) for method in (OURS, BASELINE))
    if ours is None or theirs is None:
        return "The labels do not suffice to tell whether the unlabelled images helped."
    return (
        f"The labels do not suffice to tell whether the unlabelled images helped: {display_name(OURS)} errs on {ours} "
        f"% of the judged images and {_baseline()} on {theirs} %."
    )


def verdict(fit: Fit) -> Verdict:
    """Whether the unlabelled images helped, as far as the interval of the difference bears it out."""
    difference = (fit.get("estimate") or {}).get("difference")
    helped = fit["answer"]["helped"]
    if difference and helped == "yes" and difference["low"] > 0:
        return "yes"
    if difference and helped == "no" and difference["high"] < 0:
        return "no"
    return "unclear"


def difference_sentence(fit: Fit) -> str:
    """How far the two errors lie apart and how sure that is; empty where no two were judged.

    >>> difference = {"points": 14.0, "low": 4.0, "high": 24.0}
    >>> difference_sentence({"estimate": {"n": 100, "confidence": 0.95, "difference": difference}})
    'That is 14.0 points fewer errors; the 95 % interval goes from 4.0 to 24.0 points.'
    """
    estimate = fit.get("estimate") or {}
    difference = estimate.get("difference")
    if not difference:
        return ""
    points, low, high = (difference[key] for key in ("points", "low", "high"))
    interval = f"{confidence(fit)} interval"
    if low > 0:
        return f"That is {points:.1f} points fewer errors; the {interval} goes from {low:.1f} to {high:.1f} points."
    if high < 0:
        return f"That is {-points:.1f} points more errors; the {interval} goes from {-high:.1f} to {-low:.1f} points."
    return (
        f"The difference, {abs(points):.1f} points here, could be anything from {_fewer(high)} to {_fewer(low)} "
        f"({interval}), so these labels do not suffice to tell. {_how_many_more(fit)}"
    )


def labels_to_tell(fit: Fit) -> int | None:
    """How many more labels would show a difference of the size that was seen; None if no number is in reach.

    An interval narrows with the root of the number of judged images, and only a part of the labels is judged
    where images are held out.
    """
    estimate = fit["estimate"]
    points, low, high = (estimate["difference"][key] for key in ("points", "low", "high"))
    if not round(points, 1):
        return None
    reach = points - low if points > 0 else high - points
    growth = (reach / points) ** 2 - 1
    if not 0 <= growth <= 100:
        return None
    return _rounded_up(max(growth * estimate["n"] * _labels_a_judge(fit), 1))


def judged_sentence(fit: Fit) -> str:
    """Which images judged the models, and what that is worth."""
    estimate = fit["estimate"]
    n = count(estimate["n"], "labelled image")
    if estimate["how"] == "held-out":
        judged = f"{n} {'was' if estimate['n'] == 1 else 'were'} held out: neither model learned from them."
    else:
        judged = (
            f"Each of {n} was judged by models that learned from the others only (cross-validation). The model in this "
            "folder learned from all of them, and is likely a little better."
        )
    return (
        f"{judged} {confidence(fit)} of intervals made in this way contain the true error for images like these; "
        "keeping the better of two models flatters it a little. Photographs of another kind, from another camera or "
        "another season, may be harder."
    )


def shipped_sentence(fit: Fit) -> str:
    """Which of the two models is in the folder."""
    shipped = fit["answer"]["shipped"]
    if shipped == OURS:
        return f"The model in this folder is the teacher of {display_name(OURS)}."
    return f"The model in this folder is the {name_in_sentence(display_name(shipped))} one."


def calibration_sentence(fit: Fit) -> str:
    """How far a confidence can be believed; empty where that was not measured."""
    calibration = fit.get("calibration")
    if not calibration:
        return ""
    before, after = (100 * calibration[key] for key in ("before", "after"))
    n = sum(each["n"] for each in calibration.get("bins") or ())
    then = (
        f"{before:.1f} before calibration" if after < before else f"no closer than the {before:.1f} before calibration"
    )
    rough = f" Measured on {count(n, 'image')}, this is itself rough." if 0 < n < 1000 else ""
    return (
        f"How sure the model says it is and how often it is right lie {after:.1f} points apart on average, {then} "
        f"(temperature {calibration['temperature']:.2f}).{rough}"
    )


def error_of(fit: Fit, method: str) -> str | None:
    """The error of a method in percent, None where it was not judged."""
    estimate = fit.get("estimate") or {}
    return percent(estimate[method]["error"], estimate["n"]) if estimate.get(method) else None


def confidence(fit: Fit) -> str:
    """The coverage of the intervals, such as 95 %."""
    return f"{100 * fit['estimate'].get('confidence', 0.95):g} %"


def _baseline() -> str:
    return name_in_sentence(display_name(BASELINE))


def _fewer(points: float) -> str:
    return f"{abs(points):.1f} points {'fewer' if points > 0 else 'more'} errors"


def _how_many_more(fit: Fit) -> str:
    more = labels_to_tell(fit)
    if more is None:
        return "How many more would cannot be said, for the two err almost equally often on these images."
    share = _labels_a_judge(fit)
    judges = f", one in {share:.0f} of them to judge by" if round(share) > 1 else ""
    return f"If it is as large as it looks, about {more:,} more labels would{judges}; if it is smaller, it takes more."


def _labels_a_judge(fit: Fit) -> float:
    """How many labels there are for each image that judges: one where all take turns."""
    estimate = fit["estimate"]
    return float(max(fit["data"]["n_labelled"] / estimate["n"], 1.0)) if estimate["how"] == "held-out" else 1.0


def _rounded_up(number: float) -> int:
    """To two digits, for an estimate is no more exact than that.

    >>> _rounded_up(1834.2), _rounded_up(7.1), _rounded_up(99.5)
    (1900, 8, 100)
    """
    unit = int(10 ** max(math.floor(math.log10(number)) - 1, 0))
    return math.ceil(number / unit) * unit
