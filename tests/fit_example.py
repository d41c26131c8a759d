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
        "headline": "Right on about 3 of 4 new photos (64 to 81 %). Weakest: oak leaf. Next: label these 12.",
        "estimate": {"error": 0.274, "low": 0.193, "high": 0.364, "wrong": wrong, "n": n, "confidence": 0.95},
        "helped": {
            "verdict": "yes",
            "sentence": "The 5,897 unlabelled photos helped: of 100 tested photos, 27 were wrong with them and 41 with "
            "the labels alone. The gain is most likely between 4.1 and 23.9 percentage points.",
            "points": 14.0,
            "low": 4.1,
            "high": 23.9,
        },
        "since": {"n": 60, "before": 21, "now": 15},
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
        "backbones": [],
        "trial": None,
        "confusion": [list(row) for row in CONFUSION],
        "per_class": [
            {
                "name": name,
                "n_labelled": 50,
                "n_tested": sum(row),
                "error": 1 - row[i] / sum(row),
                "n_predicted": 640 + 37 * ((5 * i) % 8),
                "share": 0.125,
            }
            for i, (name, row) in enumerate(zip(CLASS_NAMES, CONFUSION, strict=True))
        ],
        "calibration": {"temperature": 1.37, "before": 0.112, "after": 0.043, "bins": _bins()},
        "sure": [
            {"confidence": 0.5, "share": 0.9, "error": 0.2, "n": 90},
            {"confidence": 0.8, "share": 0.6, "error": 0.05, "n": 61},
            {"confidence": 0.95, "share": 0.1, "error": None, "n": 0},
        ],
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
            "disagreements": [
                _picture(20 + i, 0.97 - 0.011 * i) | {"reason": "labelled fern, looks like moss"} for i in range(12)
            ],
            "label_next": [
                _picture(40 + i, 0.24 + 0.013 * i) | {"reason": ("unsure", "unlike the others")[i % 2]}
                for i in range(12)
            ],
        },
        "minutes": 10,
        "flip": True,
        "network": "FastNet",
        "n_parameters": 298_440,
        "n_views": 1,
        "pieces": {"reading": 9.1, "training": 489.3, "results": 18.4},
        "seconds": 594.2,
        "environment": {"python": "3.11.2", "torch": "2.13.0", "threads": 2},
    }
    return copy.deepcopy(whole | changes)


NO_PLOTS: dict[str, Any] = {
    "calibration": {"temperature": 1.37, "before": 0.112, "after": 0.043, "bins": []},
}
"""Changes that leave the plots out of a page: they take most of the time."""


def as_fit(content: dict[str, Any]) -> Fit:
    """The content of fit.json as it is read."""
    return checked(content, Fit)


def pretrained_example(**changes: Any) -> dict[str, Any]:
    """The same on two pretrained networks, chosen by a trial."""
    backbones = [
        {
            "name": name,
            "title": f"EfficientNet-L{name[1:]}",
            "trained_on": "ImageNet-1k",
            "licence": "Apache-2.0",
            "sha256": digit * 64,
            "size": size,
        }
        for name, digit, size in (("lite0", "5", 224), ("lite2", "9", 260))
    ]
    trial = {
        "chosen": "pretrained",
        "n": 400,
        "pretrained": {"error": 0.25, "low": 0.21, "high": 0.295, "wrong": 100},
        "scratch": {"error": 0.41, "low": 0.363, "high": 0.459, "wrong": 164},
        "sentence": "A short trial on 400 labelled images chose the pretrained network EfficientNet-Lite0: it was "
        "wrong on 25.0 %, a small network from scratch on 41.0 %.",
    }
    parts = {
        "backbones": backbones,
        "trial": trial,
        "network": "EfficientNet-Lite0 and EfficientNet-Lite2",
        "n_parameters": 8_382_056,
        "n_views": 6,
        "pieces": {"reading": 9.1, "lite0 plain": 60.0, "head": 4.0, "results": 3.0, "lite2 plain": 120.0},
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
        {"name": name, "n_labelled": 20, "n_tested": 11, "error": 1 - row[i] / 11}
        | {"n_predicted": draws.randrange(99), "share": 1 / n_classes}
        for i, (name, row) in enumerate(zip(names, confusion, strict=True))
    ]
    return {"data": data, "confusion": confusion, "per_class": rows}


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
