"""One offline HTML page about a fit: the answer first, then what it is based on."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meanteacher.formats import BASELINE, certainty, count, display_name, percent, points
from meanteacher.photos.pages import fit_tables
from meanteacher.photos.pages.fit_tables import OURS, Fit
from meanteacher.report.figures import fit_curves, reliability_diagram
from meanteacher.report.page import render

MAY_BE_ABSENT = ("estimate", "plan", "timing", "created", "backbone", "trial")
"""Of what the template reads itself."""


def fit_page(fit: Fit) -> str:
    """The page as text, a pure function of fit.json. What is missing there is left out."""
    estimate, calibration = fit.get("estimate"), fit.get("calibration")
    bins = (calibration or {}).get("bins") or ()
    return render(
        "fit.html.jinja",
        fit={**dict.fromkeys(MAY_BE_ABSENT), **fit},
        data=fit["data"],
        lead=lead(fit),
        difference=difference_sentence(fit),
        apart=(estimate or {}).get("difference"),
        shipped=shipped_sentence(fit),
        tested=tested_sentence(fit) if estimate else "",
        confidence=confidence(fit) if estimate else "",
        foundation=foundation_sentence(fit),
        intervals=fit_tables.intervals(fit),
        tried=fit_tables.tried(fit),
        curves=fit_curves(fit.get("curves") or {}),
        matrix=fit_tables.matrix(fit),
        pairs=fit_tables.confused_pairs(fit),
        classes=fit_tables.class_rows(fit),
        groups=gallery(fit),
        calibration=calibration,
        calibrated=calibration_sentence(fit),
        reliability=reliability_diagram(bins),
        whiskers=any("accuracy_low" in each for each in bins),
        health=fit_tables.health(fit),
        findings=fit_tables.findings(fit),
        plan=fit_tables.plan(fit),
        spans=fit_tables.spans(fit),
        made_with=fit_tables.made_with(fit),
        placeholders=placeholders(fit, where="page"),
        commands=commands(fit),
        python=python_code(fit),
    )


def lead(fit: Fit) -> str:
    """The answer in a sentence: the fit's own, unless it claims more than the interval of the difference supports."""
    if supported(fit):
        return str(fit["answer"]["sentence"])
    estimate = fit.get("estimate") or {}
    names = {OURS: display_name(OURS), BASELINE: f"{display_name(BASELINE).lower()} training"}
    errors = [
        f"{percent(estimate[method]['error'], estimate['n'])} with {name}"
        for method, name in names.items()
        if estimate.get(method)
    ]
    told = f": the error is {' and '.join(errors)}" if errors else ""
    return f"There are too few labels to tell whether the unlabelled images helped{told}."


def supported(fit: Fit) -> bool:
    """Whether the interval of the difference excludes zero on the side that the answer claims, if it claims one."""
    helped, difference = fit["answer"]["helped"], (fit.get("estimate") or {}).get("difference")
    if helped == "yes":
        return bool(difference and difference["low"] > 0)
    return helped != "no" or bool(difference and difference["high"] < 0)


def difference_sentence(fit: Fit) -> str:
    """How far the two errors lie apart and how sure that is; empty where only one model was tested.

    >>> difference = {"points": 14.0, "low": 4.0, "high": 24.0}
    >>> difference_sentence({"estimate": {"n": 100, "confidence": 0.95, "difference": difference}})
    'That is 14.0 percentage points fewer errors (95 % interval: 4.0 to 24.0).'
    """
    difference = (fit.get("estimate") or {}).get("difference")
    if not difference:
        return ""
    seen, low, high = (difference[key] for key in ("points", "low", "high"))
    interval = f"{confidence(fit)} interval"
    if low > 0 or high < 0:
        ends = sorted((abs(low), abs(high)))
        return f"That is {_fewer(seen)} ({interval}: {points(ends[0])} to {points(ends[1])})."
    return (
        f"The difference of {points(abs(seen))} percentage points may be chance: the {interval} reaches from "
        f"{_fewer(high)} to {_fewer(low)}."
    )


def _fewer(difference: float) -> str:
    return f"{points(abs(difference))} percentage points {'fewer' if difference > 0 else 'more'} errors"


def tested_sentence(fit: Fit) -> str:
    """Which images the models were tested on, and what that is worth."""
    estimate = fit["estimate"]
    if estimate["how"] == "held-out":
        were = "was" if estimate["n"] == 1 else "were"
        tested = (
            f"{estimate['n']:,} of the {count(fit['data']['n_labelled'], 'labelled image')} {were} kept apart as test "
            "images: no model learned from them."
        )
    else:
        tested = (
            f"Each of the {count(estimate['n'], 'labelled image')} was a test image once, for models that learned from "
            "the others only (cross-validation). The model in this folder learned from all of them and is probably "
            "slightly better."
        )
    return (
        f"{tested} A {confidence(fit)} interval contains the true error for images like these in {confidence(fit)} of "
        "all cases. The model to keep was chosen by these errors, which makes its own look slightly too low. Photos "
        "from another camera or another season may be harder."
    )


def shipped_sentence(fit: Fit) -> str:
    """Which of the two models is in the folder."""
    shipped = fit["answer"]["shipped"]
    if shipped == OURS:
        return f"The model in this folder is the one trained with {display_name(OURS)}, on all images."
    return f"The model in this folder is the {display_name(shipped).lower()} one, trained on the labelled images alone."


def foundation_sentence(fit: Fit) -> str:
    """What the network had learned before, and what that means for its errors; empty where fit.json does not say."""
    backbone = fit.get("backbone")
    if not backbone:
        return "Its network had learned from no other images before." if "backbone" in fit else ""
    title, learned_from = backbone["title"], str(backbone.get("trained_on") or "unknown")
    if "imagenet" not in learned_from.lower():
        which = "images of which nothing is recorded" if learned_from == "unknown" else learned_from
        return (
            f"It builds on {title}, a network that had learned from {which} before. Expect better results for things "
            "that those images showed than for others."
        )
    how_many = "1.2 million photos of ImageNet" if learned_from.lower() == "imagenet-1k" else f"photos ({learned_from})"
    return (
        f"It builds on {title}, a network that had learned from {how_many} before. ImageNet shows mostly animals, "
        "vehicles, food and household things: expect better results for classes like these than for, say, medical "
        "images or letters."
    )


def calibration_sentence(fit: Fit) -> str:
    """How reliable a confidence is; empty where that was not measured."""
    calibration = fit.get("calibration")
    if not calibration:
        return ""
    before, after = (points(100 * calibration[key]) for key in ("before", "after"))
    n = sum(each["n"] for each in calibration.get("bins") or ())
    better = "" if calibration["after"] < calibration["before"] else "no better than "
    rough = f" Measured on {count(n)} only, this is a rough figure." if 0 < n < 1000 else ""
    return (
        f"The model's confidence and how often it is right differ by {after} percentage points on average ({better}"
        f"{before} before the confidence was adjusted, with temperature {calibration['temperature']:.2f}).{rough}"
    )


def confidence(fit: Fit) -> str:
    """The coverage of the intervals, such as 95 %."""
    return f"{100 * fit['estimate'].get('confidence', 0.95):g} %"


_MODEL, _PHOTOS = "DIR", "PHOTOS"
"""Stand for the paths where they are not known or not to be told."""

_PYTHON = """\
import meanteacher as mt

model = mt.load(FOLDER)
print(model.predict("photo.jpg"))
"""


def commands(fit: Fit) -> list[tuple[str, str]]:
    """What each is for, and the command, with the real paths as far as fit.json has them."""
    folder, photos = _folder(fit), _photos(fit)
    model, images = _quoted(folder) or _MODEL, _quoted(photos) or _PHOTOS
    labels = _quoted(f"{folder}/labels.csv") if folder else f"{_MODEL}/labels.csv"
    again = "Train again with more labels"
    use = [
        ("Classify other photos", f"meanteacher predict {model} OTHER"),
        ("Test the model on other photos with labels", f"meanteacher evaluate {model} OTHER"),
    ]
    if (fit.get("data") or {}).get("source") == "npz":
        # Its labels are in the file itself, where the labelling page cannot add any.
        use += [(again, f"meanteacher fit {images} --start {model} --out NEW")]
    else:
        use += [
            ("Label the images that would help most", f"meanteacher label {images} --run {model}"),
            (again, f"meanteacher fit {images} --labels {labels} --start {model} --out NEW"),
        ]
    return [*use, ("Export it for use without Python", f"meanteacher export {model} --onnx")]


def placeholders(fit: Fit, where: str) -> str:
    """What the words in capitals stand for."""
    unknown = [] if _folder(fit) else [f"{_MODEL} is the folder of this {where}"]
    unknown += [] if _photos(fit) else [f"{_PHOTOS} is the folder of your photos"]
    return ", ".join([*unknown, "OTHER is a folder with other photos", "NEW is a new folder"]) + "."


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


THUMB = re.compile(r"data:image/(?:jpeg|png);base64,[A-Za-z0-9+/]+={0,2}")
"""What a picture may be. Anything else that a file held could be a request or a script."""

LONGEST_THUMB = 200_000
N_PICTURES = 24
"""As many of a kind as a reader looks at."""

GROUPS = {
    "most_confident": ("Most certain", "The model is most certain of these. If one is wrong, look at others like it."),
    "least_confident": ("Least certain", "The model can hardly decide what these are."),
    "label_next": ("To label next", "Labels for these would help the model most. They are listed in label-next.csv."),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of the gallery; without `thumb` only its words are shown."""

    name: str
    file: str
    label: str
    confidence: str
    reason: str
    thumb: str


def gallery(fit: Fit) -> list[tuple[str, str, list[Picture]]]:
    """The groups that hold a picture: heading, sentence, pictures."""
    groups = fit.get("gallery") or {}
    return [
        (heading, sentence, [_picture(each) for each in groups[key][:N_PICTURES]])
        for key, (heading, sentence) in GROUPS.items()
        if groups.get(key)
    ]


def safe_thumb(thumb: object) -> str:
    """The picture if it is one, else nothing.

    >>> safe_thumb("data:image/png;base64,iVBORw0KGgo="), safe_thumb("https://example.org/a.png")
    ('data:image/png;base64,iVBORw0KGgo=', '')
    """
    known = isinstance(thumb, str) and len(thumb) <= LONGEST_THUMB and THUMB.fullmatch(thumb)
    return known.group() if known else ""


def _picture(each: Mapping[str, Any]) -> Picture:
    confidence = each.get("confidence")
    return Picture(
        name=each["name"],
        file=each["name"].rsplit("/", 1)[-1],
        label=each["label"],
        confidence="" if confidence is None else certainty(confidence),
        reason=each.get("reason") or "",
        thumb=safe_thumb(each.get("thumb")),
    )
