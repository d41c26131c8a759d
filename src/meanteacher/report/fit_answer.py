"""What a fit found, in sentences that claim no more than the interval allows."""

from collections.abc import Mapping
from typing import Any, Literal

from meanteacher.formats import count, percent, points
from meanteacher.report.names import display_name, name_in_sentence

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
        f"of the judged images and {_baseline()} on {theirs}."
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
    seen, low, high = (difference[key] for key in ("points", "low", "high"))
    interval = f"{confidence(fit)} interval"
    if low > 0:
        return f"That is {_fewer(seen)}; the {interval} goes from {points(low)} to {points(high)} points."
    if high < 0:
        return f"That is {_fewer(seen)}; the {interval} goes from {points(-high)} to {points(-low)} points."
    return (
        f"The difference, {points(abs(seen))} points here, could be anything from {_fewer(high)} to {_fewer(low)} "
        f"({interval}), so these labels do not suffice to tell."
    )


def judged_sentence(fit: Fit) -> str:
    """Which images judged the models, and what that is worth."""
    estimate = fit["estimate"]
    if estimate["how"] == "held-out":
        of = count(fit["data"]["n_labelled"], "labelled image")
        was = "was" if estimate["n"] == 1 else "were"
        judged = f"{estimate['n']:,} of the {of} {was} held out: neither model learned from them."
    else:
        each = count(estimate["n"], "labelled image")
        judged = (
            f"Each of {each} was judged by models that learned from the others only (cross-validation). The model in "
            "this folder learned from all of them, and is likely a little better."
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
    before, after = (points(100 * calibration[key]) for key in ("before", "after"))
    n = sum(each["n"] for each in calibration.get("bins") or ())
    then = (
        f"{before} before calibration"
        if calibration["after"] < calibration["before"]
        else f"no closer than the {before} before calibration"
    )
    rough = f" Measured on {count(n, 'image')}, this is itself rough." if 0 < n < 1000 else ""
    return (
        f"How sure the model says it is and how often it is right lie {after} points apart on average, {then} "
        f"(temperature {calibration['temperature']:.2f}).{rough}"
    )


def error_of(fit: Fit, method: str) -> str | None:
    """The error of a method, None where it was not judged."""
    estimate = fit.get("estimate") or {}
    return percent(estimate[method]["error"], estimate["n"]) if estimate.get(method) else None


def confidence(fit: Fit) -> str:
    """The coverage of the intervals, such as 95 %."""
    return f"{100 * fit['estimate'].get('confidence', 0.95):g} %"


def _baseline() -> str:
    return name_in_sentence(display_name(BASELINE))


def _fewer(difference: float) -> str:
    return f"{points(abs(difference))} points {'fewer' if difference > 0 else 'more'} errors"
