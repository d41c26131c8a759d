"""One offline HTML page about a fit: how good the model is, what to do next, then what that is based on."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meanteacher.formats import count, duration, percent, points, whole_percent
from meanteacher.photos.pages.sentences import FEW_TESTS
from meanteacher.records import SEVERITIES, Calibration, ClassResult, Finding, Fit, Picture
from meanteacher.report.figures import reliability_diagram
from meanteacher.report.page import render

MOST_CLASSES = 20
"""A larger matrix cannot be read: the pairs that are confused most often are listed instead."""
N_PAIRS = 20


def fit_page(fit: Fit) -> str:
    """The page as text, a pure function of fit.json."""
    return render(
        "fit.html.jinja",
        **shown(fit),
        matrix=matrix(fit),
        groups=gallery(fit),
        safe_thumb=safe_thumb,
        reliability=reliability_diagram(fit.calibration.bins),
        work=work(fit),
        spans=spans(fit),
        placeholders=placeholders(fit.folder, fit.data.photos, where="page"),
        commands=commands(fit, fit.folder, fit.data.photos),
        python=python_code(fit.folder),
    )


def shown(fit: Fit) -> dict[str, Any]:
    """The values that the page and the model card have in common."""
    return {
        "fit": fit,
        "data": fit.data,
        "since": since_sentence(fit),
        "tested": tested_sentence(fit),
        "confidence": whole_percent(fit.estimate.confidence),
        "few_tests": FEW_TESTS,
        "foundation": foundation_sentence(fit),
        "pairs": confused_pairs(fit),
        "classes": class_rows(fit),
        "calibrated": calibration_sentence(fit.calibration),
        "findings": findings(fit),
        "made_with": made_with(fit),
    }


def since_sentence(fit: Fit) -> str:
    """The errors of the fit before and of this one; empty if there was none."""
    if fit.since is None:
        return ""
    n, before, now = fit.since.n, fit.since.before, fit.since.now
    if n < FEW_TESTS:
        return f"Before, {before} of the same {count(n, 'photo')} were wrong; now {now}."
    return f"Before {percent(before / n)} wrong, now {percent(now / n)}, on the same {count(n, 'photo')}."


def tested_sentence(fit: Fit) -> str:
    """Which photos the model was tested on, and for which photos the estimate holds."""
    n = fit.estimate.n
    if not n:
        return "No class has two labels that do not belong together, so nothing could be tested. Label more photos."
    mix = (
        "It holds for photos in the mix of classes that the unlabelled photos seem to have (the column “Share”), not "
        "for the mix of the labels."
        if fit.data.n_unlabelled
        else "It holds for photos in the mix of classes of the labels."
    )
    return (
        f"Each of {count(n, 'labelled photo')} tested a model that had learned from the others only: "
        f"{fit.estimate.wrong:,} were wrong. The model in this folder learned from all of them. {mix} Photos from "
        "another camera or another season may be harder."
    )


def foundation_sentence(fit: Fit) -> str:
    """What the network had learned before, and what that means for its errors."""
    if not fit.backbones:
        return "Its network had learned from no other images before."
    title, learned_from = fit.network, fit.backbones[0].trained_on
    if "imagenet" not in learned_from.lower():
        which = "images of which nothing is recorded" if learned_from == "unknown" else learned_from
        return (
            f"It builds on {title}, which had learned from {which} before. Expect better results for things "
            "that those images showed than for others."
        )
    how_many = "1.2 million photos of ImageNet" if learned_from.lower() == "imagenet-1k" else f"photos ({learned_from})"
    return (
        f"It builds on {title}, which had learned from {how_many} before. ImageNet shows mostly animals, "
        "vehicles, food and household things: expect better results for classes like these than for, say, medical "
        "images or letters."
    )


def calibration_sentence(calibration: Calibration) -> str:
    """How reliable a confidence is."""
    if not calibration.bins:
        return "No photo was tested, so the confidence is not adjusted."
    before, after = (points(100 * error) for error in (calibration.before, calibration.after))
    n = sum(each.n for each in calibration.bins)
    better = "" if calibration.after < calibration.before else "no better than "
    rough = f" Measured on {count(n)} only, this is a rough figure." if 0 < n < 1000 else ""
    return (
        f"The model's confidence and how often it is right differ by {after} percentage points on average ({better}"
        f"{before} before the confidence was adjusted, with temperature {calibration.temperature:.2f}).{rough}"
    )


_MODEL, _PHOTOS, _LABELS = "DIR", "PHOTOS", "LABELS"
"""They stand for the paths on a model card, which leaves the computer."""


def commands(fit: Fit, folder: str = "", photos: str = "") -> list[tuple[str, str]]:
    """The purpose of each command, and the command, with the real paths if they are given."""
    model, images = _quoted(folder) or _MODEL, _quoted(photos) or _PHOTOS
    # Answers go to the labels file of the fit, or to a new one in its folder.
    used = _quoted(fit.data.labels_file) if folder and fit.data.labels_file else _LABELS
    labels = used if fit.data.labels_file else _quoted(f"{folder or _MODEL}/labels.csv")
    again, same = "Fit again with more labels", f"--minutes {fit.minutes:g} --out {model} --overwrite"
    use = [("Classify other photos", f"meanteacher predict {model} OTHER")]
    if fit.data.source == "npz":
        # Its labels are in the file itself, where the labelling page cannot add any.
        use += [(again, f"meanteacher fit {images} {same}")]
    else:
        use += [
            ("Label the photos that would help most", f"meanteacher label {images} --run {model}"),
            ("Look again at labels that may be wrong", f"meanteacher label {images} --run {model} --review"),
            (again, f"meanteacher fit {images} --labels {labels} {same}"),
        ]
    return [
        *use,
        ("Test the model on other photos with labels", f"meanteacher evaluate {model} OTHER"),
        ("Export it for use without Python", f"meanteacher export {model} --onnx"),
    ]


def placeholders(folder: str = "", photos: str = "", *, where: str, labels: bool = False) -> str:
    """What the words in capitals stand for; `labels` says whether a labels file is one of them."""
    unknown = [] if folder else [f"{_MODEL} is the folder of this {where}"]
    unknown += [] if photos else [f"{_PHOTOS} is the folder of your photos"]
    unknown += [f"{_LABELS} is the file of their labels"] if labels else []
    return ", ".join([*unknown, "OTHER is a folder with other photos"]) + "."


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
    "disagreements": (
        "Labels to look at",
        "A model that had not learned from these labels takes the photos for another class. The label may be wrong, or "
        "the photo hard.",
    ),
    "strangers": (
        "None of the classes?",
        "These photos are unlike any labelled one, and the model has to guess. Label those that are of none of the "
        "classes as such, and the next fit leaves them out.",
    ),
    "label_next": ("To label next", "Labels for these would help the model most. They are listed in label-next.csv."),
    "most_confident": ("Most certain", "The model is most certain of these. If one is wrong, look at others like it."),
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


# --- tables and lists -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Confused:
    """Images of one class that were mistaken for another."""

    true: str
    mistaken_for: str
    n: int
    of: int


def matrix(fit: Fit) -> list[tuple[str, tuple[int, ...]]]:
    """Rows of the confusion matrix with the name of their true class; empty if there are too many classes."""
    return list(zip(fit.data.class_names, fit.confusion, strict=True)) if len(fit.confusion) <= MOST_CLASSES else []


def confused_pairs(fit: Fit) -> list[Confused]:
    """The confusions in order of how often they happened, the most frequent only."""
    names, confusion = fit.data.class_names, fit.confusion
    wrong = [(n, i, j) for i, row in enumerate(confusion) for j, n in enumerate(row) if n and i != j]
    worst = sorted(wrong, key=lambda pair: (-pair[0], pair[1:]))[:N_PAIRS]
    return [Confused(names[i], names[j], n, sum(confusion[i])) for n, i, j in worst]


def class_rows(fit: Fit) -> list[ClassResult]:
    """The classes in their own order, or the highest errors first if there are too many to look through."""
    rows = list(fit.per_class)
    if len(rows) > MOST_CLASSES:
        rows.sort(key=lambda row: -1.0 if row.error is None else row.error, reverse=True)
    return rows


def findings(fit: Fit) -> list[Finding]:
    """The most serious first."""
    return sorted(fit.findings, key=lambda finding: SEVERITIES.index(finding.severity))


def work(fit: Fit) -> list[tuple[str, str]]:
    """What was computed, in words."""
    return [
        ("Minutes allowed", f"{fit.minutes:g}"),
        ("Network", fit.network),
        ("Parameters", f"{fit.n_parameters:,}"),
        ("Pixels per side", f"{fit.data.size:,}"),
        ("Views of each photo", f"{fit.n_views:,}"),
        ("Mirrored views", "yes" if fit.flip else "no"),
    ]


def made_with(fit: Fit) -> list[tuple[str, str]]:
    """The versions and the machine."""
    tools = {"meanteacher": fit.version, **fit.environment}
    return [(tool, "not recorded" if value is None else str(value)) for tool, value in tools.items()]


def spans(fit: Fit) -> list[tuple[str, str, str]]:
    """The pieces of work in the order in which they ran: what, how long, and its share in percent."""
    total = sum(fit.pieces.values()) or 1.0
    return [(piece, duration(time), f"{100 * time / total:.2f}") for piece, time in fit.pieces.items()]
