"""A made-up fit.json, realistic enough to look at: one call, one fit."""

import base64
import copy
import io
import math
import random
from functools import cache
from typing import Any

from PIL import Image, ImageDraw

from meanteacher.files.typed import checked
from meanteacher.records import Fit

CLASS_NAMES = ("acorn", "beech leaf", "chestnut", "fern", "maple leaf", "moss", "oak leaf", "pine cone")
_HUES = (28, 40, 12, 105, 8, 90, 60, 22)

CONFUSION = (
    (10, 0, 2, 0, 0, 0, 0, 1),
    (0, 8, 0, 0, 2, 0, 3, 0),
    (2, 0, 9, 0, 0, 0, 0, 1),
    (0, 0, 0, 11, 0, 2, 0, 0),
    (0, 2, 0, 0, 9, 0, 1, 0),
    (0, 0, 0, 1, 0, 11, 0, 0),
    (0, 4, 0, 0, 2, 0, 6, 0),
    (3, 0, 1, 0, 0, 0, 0, 9),
)


def fit_example(**changes: Any) -> dict[str, Any]:
    """What `meanteacher fit` writes about eight classes of forest finds; `changes` replace whole parts."""
    n, wrong = 100, 27
    whole = {
        "schema": 1,
        "title": "forest-finds",
        "folder": "/home/ann/fit",
        "created": "2026-01-31T12:00:00Z",
        "version": "0.1.0",
        "answer": {
            "helped": "yes",
            "sentence": "The 5,897 unlabelled images helped: 27.0 % of the test images are wrong with them, "
            "41.0 % without.",
            "shipped": "mean-teacher",
        },
        "data": {
            "n_images": 6300,
            "n_labelled": 400,
            "n_unlabelled": 5897,
            "n_unreadable": 3,
            "class_names": list(CLASS_NAMES),
            "labelled_per_class": [50] * len(CLASS_NAMES),
            "size": 32,
            "source": "class folders",
            "photos": "/home/ann/forest-finds",
            "labels_file": None,
        },
        "estimate": {
            "how": "held-out",
            "n": n,
            "confidence": 0.95,
            "n_needed": 40,
            "errors": {
                "mean-teacher": {"error": wrong / n, "low": 0.193, "high": 0.364, "wrong": wrong},
                "supervised": {"error": 0.41, "low": 0.319, "high": 0.508, "wrong": 41},
            },
            "difference": {"points": 14.0, "low": 4.1, "high": 23.9},
        },
        "backbone": None,
        "alternatives": {},
        "trial": None,
        "confusion": [list(row) for row in CONFUSION],
        "per_class": [
            {
                "name": name,
                "n_labelled": 50,
                "n_judged": sum(row),
                "error": 1 - row[i] / sum(row),
                "n_predicted": 640 + 37 * ((5 * i) % 8),
            }
            for i, (name, row) in enumerate(zip(CLASS_NAMES, CONFUSION, strict=True))
        ],
        "calibration": {"temperature": 1.37, "before": 0.112, "after": 0.043, "bins": _bins()},
        "curves": _curves(),
        "vitals": {
            "mean-teacher": {
                "readings": [_reading(0.032, 0.25, 0.19, classification=0.41, consistency=0.087)],
                "alarms": [],
            },
            "supervised": {
                "readings": [_reading(0.019, 1.0, 0.17, classification=0.22)],
                "alarms": [],
            },
        },
        "findings": [
            {
                "kind": "near-duplicate",
                "severity": "note",
                "sentence": "4 images are nearly the same as another; labels for them would teach little.",
                "names": [f"unlabelled/IMG_{2000 + i}.jpg" for i in range(4)],
            },
            {
                "kind": "unreadable",
                "severity": "warning",
                "sentence": "3 files could not be read as images and were left out: replace them or delete them.",
                "names": ["unlabelled/IMG_0412.jpg", "unlabelled/IMG_0413.jpg", "oak leaf/scan (copy).png"],
            },
        ],
        "gallery": {
            "most_confident": [_picture(i, 0.9999 - 0.004 * i) for i in range(12)],
            "least_confident": [_picture(20 + i, 0.21 + 0.011 * i) for i in range(12)],
            "label_next": [
                _picture(40 + i, 0.24 + 0.013 * i) | {"reason": ("unsure", "unlike the others")[i % 2]}
                for i in range(12)
            ],
        },
        "held_out": [f"{CLASS_NAMES[i % 8]}/IMG_{i}.jpg" for i in range(n)],
        "plan": {
            "minutes": 10,
            "size": 32,
            "width": 1.0,
            "steps": 1500,
            "seconds_per_step": {"supervised": 0.17, "mean-teacher": 0.31},
            "flip": True,
        },
        "network": "FastNet",
        "n_parameters": 298_440,
        "planned": "In 10 minutes this machine makes 1,500 steps of a network with 298,440 parameters on images of "
        "32 × 32 pixels.",
        "timing": {
            "total_seconds": 594.2,
            "parts": {"decode": 9.1, "plan": 6.4, "supervised": 71.0, "mean-teacher": 489.3, "predict": 18.4},
        },
        "environment": {"python": "3.11.2", "torch": "2.13.0", "threads": 2},
    }
    return copy.deepcopy(whole | changes)


NO_PLOTS: dict[str, Any] = {
    "curves": {},
    "calibration": {"temperature": 1.37, "before": 0.112, "after": 0.043, "bins": []},
}
"""Changes that leave the plots out of a page: they take most of the time."""


def as_fit(content: dict[str, Any]) -> Fit:
    """The content of fit.json as it is read."""
    return checked(content, Fit)


def pretrained_example(**changes: Any) -> dict[str, Any]:
    """The same on a pretrained network, with everything else that was tried."""
    plan = fit_example()["plan"] | {
        "size": 224,
        "width": 0,
        "steps": 900,
        "backbone": "lite0",
        "cut": 12,
        "n_views": 8,
    }
    estimate = fit_example()["estimate"] | {
        "errors": {
            "mean-teacher": {"error": 0.12, "low": 0.07, "high": 0.198, "wrong": 12},
            "supervised": {"error": 0.23, "low": 0.158, "high": 0.322, "wrong": 23},
        },
        "difference": {"points": 11.0, "low": 3.2, "high": 18.8},
    }
    answer = {
        "helped": "yes",
        "sentence": "Yes, the 5,897 unlabelled images helped beyond what the pretrained network knew: with them the "
        "model was wrong on 12.0 % of 100 images that the models had not learned from, the same network with the "
        "labels alone on 23.0 % at best.",
        "shipped": "mean-teacher",
    }
    backbone = {
        "name": "lite0",
        "title": "EfficientNet-Lite0",
        "trained_on": "ImageNet-1k",
        "licence": "Apache-2.0",
        "sha256": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "size": 224,
    }
    alternatives = {
        "probe": {"error": 0.26, "low": 0.184, "high": 0.354, "wrong": 26},
        "tuned": {"error": 0.23, "low": 0.158, "high": 0.322, "wrong": 23},
        "label-spreading": {"error": 0.17, "low": 0.109, "high": 0.256, "wrong": 17},
    }
    trial = {
        "chosen": "pretrained",
        "n": 400,
        "pretrained": {"error": 0.25, "low": 0.21, "high": 0.295, "wrong": 100},
        "scratch": {"error": 0.41, "low": 0.363, "high": 0.459, "wrong": 164},
        "sentence": "A short trial on 400 labelled images chose the pretrained network EfficientNet-Lite0: it was "
        "wrong on 25.0 %, a small network from scratch on 41.0 %.",
    }
    parts = {"plan": plan, "estimate": estimate, "answer": answer, "backbone": backbone, "alternatives": alternatives}
    parts |= {
        "trial": trial,
        "network": "EfficientNet-Lite0",
        "n_parameters": 3_382_056,
        "planned": "In 10 minutes this machine makes 900 steps of the last layers of EfficientNet-Lite0 on images of "
        "224 × 224 pixels.",
    }
    return fit_example(**{"data": fit_example()["data"] | {"size": 224}} | parts | changes)


def many_classes(n_classes: int) -> dict[str, Any]:
    """The parts of the example that change with the number of classes."""
    draws = random.Random(0)
    names = [f"species {i:04d}" for i in range(n_classes)]
    confusion = [[0] * n_classes for _ in names]
    for i, row in enumerate(confusion):
        row[i] = 8
        for _ in range(3):
            row[draws.randrange(n_classes)] += 1
    data = fit_example()["data"] | {"class_names": names, "labelled_per_class": [20] * n_classes}
    rows = [
        {"name": name, "n_labelled": 20, "n_judged": 11, "error": 1 - row[i] / 11, "n_predicted": draws.randrange(99)}
        for i, (name, row) in enumerate(zip(names, confusion, strict=True))
    ]
    return {"data": data, "confusion": confusion, "per_class": rows}


def _curves() -> dict[str, list[dict[str, Any]]]:
    draws = random.Random(1)
    steps = range(100, 1600, 100)

    def error(step: int, end: float, pace: float, noise: float) -> float:
        return round(end + (0.86 - end) * math.exp(-step / pace) + draws.uniform(-noise, noise), 3)

    return {
        "mean-teacher": [
            {"step": t, "part": "test", "student": error(t, 0.31, 330, 0.022), "teacher": error(t, 0.265, 380, 0.006)}
            for t in steps
        ],
        "supervised": [
            {"step": t, "part": "test", "student": error(t, 0.42, 240, 0.02), "teacher": error(t, 0.41, 250, 0.007)}
            for t in steps[:12]
        ],
    }


def _bins() -> list[dict[str, float]]:
    filled = ((3, 5, 0.35, 0.4), (4, 9, 0.46, 0.444), (5, 11, 0.55, 0.545), (6, 10, 0.66, 0.6))
    filled += ((7, 14, 0.75, 0.786), (8, 20, 0.86, 0.8), (9, 31, 0.96, 0.935))
    return [
        {
            "low": i / 10,
            "high": (i + 1) / 10,
            "n": n,
            "confidence": confidence,
            "accuracy": accuracy,
            "accuracy_low": max(0.0, accuracy - 1 / n**0.5),
            "accuracy_high": min(1.0, accuracy + 1 / n**0.5),
        }
        for i, n, confidence, accuracy in filled
    ]


def _reading(distance: float, labelled: float, largest: float, **gradients: float) -> dict[str, Any]:
    shares = {"labelled_share": labelled, "largest_class_share": largest}
    return {"step": 1400, "gradients": gradients, "distance": distance, **shares}


def _picture(seed: int, confidence: float) -> dict[str, Any]:
    kind = seed % len(CLASS_NAMES)
    name = f"unlabelled/IMG_{1000 + 37 * seed}.jpg"
    return {"name": name, "label": CLASS_NAMES[kind], "confidence": round(confidence, 4), "thumb": thumb(seed)}


@cache
def thumb(seed: int) -> str:
    """A picture that was drawn and not taken, as a data: URI."""
    draws = random.Random(seed)
    hue = _HUES[seed % len(CLASS_NAMES)]
    image = Image.new(
        "RGB", (96, 96), f"hsl({70 + draws.randrange(80)}, {draws.randrange(8, 30)}%, {draws.randrange(28, 78)}%)"
    )
    draw = ImageDraw.Draw(image)
    x, y, radius = draws.randrange(36, 60), draws.randrange(36, 60), draws.randrange(22, 34)
    n_points = 5 + 2 * (seed % 5)
    points = []
    for k in range(2 * n_points):
        reach = radius * (1 if k % 2 else 0.5 + 0.08 * (seed % 4))
        angle = math.pi * k / n_points + seed
        points.append((x + reach * math.cos(angle), y + 1.2 * reach * math.sin(angle)))
    draw.polygon(points, fill=f"hsl({hue}, 55%, {draws.randrange(30, 52)}%)")
    draw.line([(x, y - radius), (x, y + radius)], fill=f"hsl({hue}, 45%, 24%)", width=3)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
