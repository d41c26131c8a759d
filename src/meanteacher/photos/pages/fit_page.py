"""One offline HTML page about a fit: the answer first, then what it is based on."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from meanteacher.formats import BASELINE, count, display_name, percent, points
from meanteacher.photos.pages import fit_tables
from meanteacher.photos.pages.fit_tables import OURS
from meanteacher.records import Calibration, Estimate, Fit, Picture
from meanteacher.report.figures import fit_curves, reliability_diagram
from meanteacher.report.page import render


def fit_page(fit: Fit) -> str:
    """The page as text, a pure function of fit.json."""
    return render(
        "fit.html.jinja",
        **shown(fit),
        curves=fit_curves(fit.curves),
        matrix=fit_tables.matrix(fit),
        groups=gallery(fit),
        safe_thumb=safe_thumb,
        reliability=reliability_diagram(fit.calibration.bins),
        readings=fit_tables.readings(fit),
        plan=fit_tables.plan(fit),
        spans=fit_tables.spans(fit),
        placeholders=placeholders(fit.folder, fit.data.photos, where="page"),
        commands=commands(fit.folder, fit.data.photos, source=fit.data.source),
        python=python_code(fit.folder),
    )


def shown(fit: Fit) -> dict[str, Any]:
    """The values that the page and the model card have in common."""
    return {
        "fit": fit,
        "data": fit.data,
        "lead": lead(fit),
        "difference": difference_sentence(fit.estimate),
        "shipped": shipped_sentence(fit),
        "tested": tested_sentence(fit),
        "confidence": confidence(fit.estimate),
        "foundation": foundation_sentence(fit),
        "intervals": fit_tables.intervals(fit),
        "tried": fit_tables.tried(fit),
        "pairs": fit_tables.confused_pairs(fit),
        "classes": fit_tables.class_rows(fit),
        "calibrated": calibration_sentence(fit.calibration),
        "alarms": fit_tables.alarms(fit),
        "findings": fit_tables.findings(fit),
        "made_with": fit_tables.made_with(fit),
    }


def lead(fit: Fit) -> str:
    """The answer in a sentence: the fit's own, unless it claims more than the interval of the difference supports."""
    if supported(fit):
        return fit.answer.sentence
    names = {OURS: display_name(OURS), BASELINE: f"{display_name(BASELINE).lower()} training"}
    errors = [
        f"{percent(fit.estimate.errors[method].error, fit.estimate.n)} with {name}" for method, name in names.items()
    ]
    return (
        f"There are too few labels to tell whether the unlabelled images helped: the error is {' and '.join(errors)}."
    )


def supported(fit: Fit) -> bool:
    """Whether the interval of the difference excludes zero on the side that the answer claims, if it claims one."""
    helped, difference = fit.answer.helped, fit.estimate.difference
    if helped == "yes":
        return difference.low > 0
    return helped != "no" or difference.high < 0


def difference_sentence(estimate: Estimate) -> str:
    """How far the two errors lie apart, and how sure that is."""
    seen, low, high = estimate.difference.points, estimate.difference.low, estimate.difference.high
    interval = f"{confidence(estimate)} interval"
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
    estimate = fit.estimate
    if estimate.how == "held-out":
        were = "was" if estimate.n == 1 else "were"
        tested = (
            f"{estimate.n:,} of the {count(fit.data.n_labelled, 'labelled image')} {were} kept apart as test "
            "images: no model learned from them."
        )
    else:
        tested = (
            f"Each of the {count(estimate.n, 'labelled image')} was a test image once, for models that learned from "
            "the others only (cross-validation). The model in this folder learned from all of them and is probably "
            "slightly better."
        )
    return (
        f"{tested} A {confidence(estimate)} interval contains the true error for images like these in "
        f"{confidence(estimate)} of all cases. The model to keep was chosen by these errors, which makes its own look "
        "slightly too low. Photos from another camera or another season may be harder."
    )


def shipped_sentence(fit: Fit) -> str:
    """Which of the two models is in the folder."""
    shipped = fit.answer.shipped
    if shipped == OURS:
        return f"The model in this folder is the one trained with {display_name(OURS)}, on all images."
    return f"The model in this folder is the {display_name(shipped).lower()} one, trained on the labelled images alone."


def foundation_sentence(fit: Fit) -> str:
    """What the network had learned before, and what that means for its errors."""
    if fit.backbone is None:
        return "Its network had learned from no other images before."
    title, learned_from = fit.backbone.title, fit.backbone.trained_on
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


def calibration_sentence(calibration: Calibration) -> str:
    """How reliable a confidence is."""
    before, after = (points(100 * error) for error in (calibration.before, calibration.after))
    n = sum(each.n for each in calibration.bins)
    better = "" if calibration.after < calibration.before else "no better than "
    rough = f" Measured on {count(n)} only, this is a rough figure." if 0 < n < 1000 else ""
    return (
        f"The model's confidence and how often it is right differ by {after} percentage points on average ({better}"
        f"{before} before the confidence was adjusted, with temperature {calibration.temperature:.2f}).{rough}"
    )


def confidence(estimate: Estimate) -> str:
    """The coverage of the intervals, such as 95 %."""
    return f"{100 * estimate.confidence:g} %"


_MODEL, _PHOTOS = "DIR", "PHOTOS"
"""They stand for the paths on a model card, which leaves the computer."""


def commands(folder: str = "", photos: str = "", *, source: str) -> list[tuple[str, str]]:
    """The purpose of each command, and the command, with the real paths if they are given."""
    model, images = _quoted(folder) or _MODEL, _quoted(photos) or _PHOTOS
    labels = _quoted(f"{folder}/labels.csv") if folder else f"{_MODEL}/labels.csv"
    again = "Train again with more labels"
    use = [
        ("Classify other photos", f"meanteacher predict {model} OTHER"),
        ("Test the model on other photos with labels", f"meanteacher evaluate {model} OTHER"),
    ]
    if source == "npz":
        # Its labels are in the file itself, where the labelling page cannot add any.
        use += [(again, f"meanteacher fit {images} --start {model} --out NEW")]
    else:
        use += [
            ("Label the images that would help most", f"meanteacher label {images} --run {model}"),
            (again, f"meanteacher fit {images} --labels {labels} --start {model} --out NEW"),
        ]
    return [*use, ("Export it for use without Python", f"meanteacher export {model} --onnx")]


def placeholders(folder: str = "", photos: str = "", *, where: str) -> str:
    """What the words in capitals stand for."""
    unknown = [] if folder else [f"{_MODEL} is the folder of this {where}"]
    unknown += [] if photos else [f"{_PHOTOS} is the folder of your photos"]
    return ", ".join([*unknown, "OTHER is a folder with other photos", "NEW is a new folder"]) + "."


def python_code(folder: str = "") -> str:
    """The same in Python."""
    return f'import meanteacher as mt\n\nmodel = mt.load({folder or _MODEL!r})\nprint(model.predict("photo.jpg"))\n'


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


def gallery(fit: Fit) -> list[tuple[str, str, Sequence[Picture]]]:
    """The groups that hold a picture: heading, sentence, pictures."""
    return [
        (heading, sentence, pictures[:N_PICTURES])
        for key, (heading, sentence) in GROUPS.items()
        if (pictures := fit.gallery.get(key))
    ]


def safe_thumb(thumb: str) -> str:
    """The picture if it is one, else nothing.

    >>> safe_thumb("data:image/png;base64,iVBORw0KGgo="), safe_thumb("https://example.org/a.png")
    ('data:image/png;base64,iVBORw0KGgo=', '')
    """
    return thumb if len(thumb) <= LONGEST_THUMB and THUMB.fullmatch(thumb) else ""
