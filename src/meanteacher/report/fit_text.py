"""A fit in sentences and commands, the same on the page and in the model card."""

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from meanteacher.formats import count, percent, points
from meanteacher.report.compare import display_name, name_in_sentence

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


_MODEL, _PHOTOS = "DIR", "PHOTOS"
"""Stand for the paths where they are not known or not to be told."""

_PYTHON = """\
import torch
from pathlib import Path
from meanteacher.classifier.bundle import load_bundle
from meanteacher.photos.decode import decode

bundle = load_bundle(Path(FOLDER))
image = torch.tensor(decode(Path("photo.jpg"), bundle.size)).permute(2, 0, 1)
probabilities = bundle.probabilities(image[None])[0]
print(bundle.class_names[probabilities.argmax()], f"{100 * probabilities.max():.1f} %")
"""


def commands(fit: Fit) -> list[tuple[str, str]]:
    """What each is for, and the command, with the real paths as far as fit.json has them."""
    folder, photos = _folder(fit), _photos(fit)
    model, images = _quoted(folder) or _MODEL, _quoted(photos) or _PHOTOS
    labels = _quoted(f"{folder}/labels.csv") if folder else f"{_MODEL}/labels.csv"
    use = [
        ("Classify other photographs", f"meanteacher predict {model} OTHER"),
        ("Judge the model with labels it has not seen", f"meanteacher evaluate {model} OTHER"),
    ]
    if (fit.get("data") or {}).get("source") == "npz":
        # Its labels are in the file itself, where the labelling page cannot add any.
        use += [("Learn again from more labels", f"meanteacher fit {images} --from {model} --out NEW")]
    else:
        use += [
            ("Label the images that teach it most", f"meanteacher label {images} --run {model}"),
            (
                "Learn again from more labels",
                f"meanteacher fit {images} --labels {labels} --from {model} --out NEW",
            ),
        ]
    return [*use, ("Take it elsewhere, without Python", f"meanteacher export {model} --onnx")]


def placeholders(fit: Fit, where: str) -> str:
    """What the words in capitals stand for."""
    unknown = [] if _folder(fit) else [f"{_MODEL} is the folder of this {where}"]
    unknown += [] if _photos(fit) else [f"{_PHOTOS} the photographs it was made from"]
    return ", ".join([*unknown, "OTHER is a folder of other photographs", "NEW a folder that is not there yet"]) + "."


def python_code(fit: Fit) -> str:
    """The same in Python."""
    return _PYTHON.replace("FOLDER", repr(_folder(fit) or _MODEL))


def _folder(fit: Fit) -> str:
    return str(fit.get("folder") or "")


def _photos(fit: Fit) -> str:
    return str((fit.get("data") or {}).get("photos") or "")


def _quoted(path: str) -> str:
    r"""As a shell takes it for one word. Bytes that are no text are written as bash and zsh read them.

    >>> print(_quoted("/home/ann/my photos"), _quoted("/photos"), _quoted("caf\udce9"))
    '/home/ann/my photos' /photos $'caf\xe9'
    """
    if not path or path.isprintable():
        return path and shlex.quote(path)
    escaped = [
        chr(byte) if chr(byte).isprintable() and byte < 128 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in path.encode("utf-8", "surrogateescape")
    ]
    return f"$'{''.join(escaped)}'"
