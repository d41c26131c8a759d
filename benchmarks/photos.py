"""Fits of real photos, evaluated on photos that no fit has seen: python -m benchmarks.photos DATA OUT SCENARIO...

DATA has the folders flowers, flowers-test and cifar10-images, and SVHN's images in svhn.npz. Each
scenario arranges photos below OUT, fits them, evaluates the model and what its user would otherwise do in ten lines,
and writes OUT/SCENARIO.json. A fit that is there already is only evaluated again.
"""

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading

from meanteacher.files.images import decode
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.photos.fitting.config import FitConfig, PrintedProgress
from meanteacher.photos.fitting.fit import run_fit
from meanteacher.photos.fitting.heads import logistic_regression
from meanteacher.photos.model.bundle import load
from meanteacher.records import read_fit
from meanteacher.views.normalise import per_channel

Files = dict[str, list[Path]]
"""class -> its photos"""
_UNLABELLED = "unlabelled"


@dataclass(frozen=True)
class Arranged:
    """Photos to fit and to test on."""

    train: Files
    test: Files


def _in_folder(folder: Path) -> Files:
    return {kind.name: sorted(kind.iterdir()) for kind in sorted(folder.iterdir())}


def _flowers(data: Path, *, draw: int = 0, counts: dict[str, int] | None = None) -> Arranged:
    """Draw 0 has the labels as they are; other draws take them from the test photos, which get the former ones.

    `counts` are other numbers of labels; the test photos are then without the first 20 of each class of the draw.
    """
    train, test = _in_folder(data / "flowers"), _in_folder(data / "flowers-test")
    order = np.random.default_rng(0)
    for kind, files in test.items():
        shuffled = [files[k] for k in order.permutation(len(files))]
        if draw:
            first = slice(10 * (draw - 1), 10 * draw)
            train[kind], test[kind] = shuffled[first], train[kind] + shuffled[: first.start] + shuffled[first.stop :]
        elif counts is not None:
            train[kind], test[kind] = (train[kind] + shuffled[:20])[: counts.get(kind, 10)], shuffled[20:]
    return Arranged(train, test)


def _strangers(data: Path) -> Arranged:
    """A fifth of the unlabelled photos are of no class: those of CIFAR-10."""
    flowers = _flowers(data, counts={})
    others = sorted((data / "cifar10-images" / "train").rglob("*.jpg"))
    n = len(flowers.train[_UNLABELLED]) // 4
    drawn = np.random.default_rng(0).permutation(len(others))[:n]
    flowers.train[_UNLABELLED] += [others[k] for k in drawn]
    return flowers


def _cifar10(data: Path) -> Arranged:
    """40 labels per class, 20,000 unlabelled."""
    draws = np.random.default_rng(0)
    train: Files = {}
    left: list[Path] = []
    for kind, files in _in_folder(data / "cifar10-images" / "train").items():
        shuffled = [files[k] for k in draws.permutation(len(files))]
        train[kind], left = shuffled[:40], left + shuffled[40:]
    train[_UNLABELLED] = [left[k] for k in draws.permutation(len(left))[:20_000]]
    return Arranged(train, _in_folder(data / "cifar10-images" / "test"))


def _svhn(data: Path) -> Arranged:
    """10 labels per digit, 5,000 unlabelled, 5,000 to test; written as files once."""
    draws, arranged, content = np.random.default_rng(0), [], np.load(data / "svhn.npz", allow_pickle=False)
    for part, n in (("train", 5_000), ("test", 5_000)):
        images, labels = content[f"{part}_images"], content[f"{part}_labels"]
        order = draws.permutation(len(labels))
        folder = data / "svhn-photos" / part
        files: Files = {str(digit): [] for digit in range(10)}
        if part == "train":
            chosen = {int(k): str(digit) for digit in range(10) for k in order[labels[order] == digit][:10]}
            files[_UNLABELLED] = []
            chosen |= {int(k): _UNLABELLED for k in [k for k in order if int(k) not in chosen][:n]}
        else:
            chosen = {int(k): str(labels[k]) for k in order[:n]}
        for k, kind in chosen.items():
            path = folder / kind / f"{k:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[k]).save(path)
            files[kind].append(path)
        arranged.append(files)
    return Arranged(*arranged)


_UNEQUAL = {"daisy": 3, "tulip": 30}
SCENARIOS: dict[str, tuple[Callable[[Path], Arranged], float, dict[str, Any]]] = {
    **{f"flowers-{k}-15": (partial(_flowers, draw=k), 15, {}) for k in range(3)},
    **{f"flowers-{k}-3": (partial(_flowers, draw=k), 3, {}) for k in range(3)},
    "flowers-equal": (partial(_flowers, counts={}), 5, {}),
    "flowers-strangers": (_strangers, 5, {}),
    "flowers-unequal": (partial(_flowers, counts=_UNEQUAL), 5, {}),
    "cifar10": (_cifar10, 10, {}),
    "svhn": (_svhn, 5, {}),
    "svhn-scratch": (_svhn, 5, {"backbone": "none"}),
}
"""name -> photos, minutes, further options."""


def run(name: str, data: Path, out: Path) -> dict[str, Any]:
    arrange, minutes, options = SCENARIOS[name]
    folder = out / name
    arranged = arrange(data)
    config = FitConfig(photos=folder / "photos", minutes=minutes, out=folder / "fit", **options)
    if not (config.out / "fit.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _link(arranged.train, folder / "photos")
        _link(arranged.test, folder / "test")
        run_fit(config, PrintedProgress())
        shutil.rmtree(config.out / "cache")
    fitted = asdict(read_fit(config.out))
    tested = load(config.out).evaluate(folder / "test")
    more = [f"--{key} {value}" for key, value in options.items()]
    record = {
        "scenario": name,
        "command": shlex.join(["meanteacher", "fit", "photos", "--minutes", f"{minutes:g}", *" ".join(more).split()]),
        "test": tested,
        "baselines": _baselines(arranged) if name.startswith("flowers") else {},
        **{
            key: fitted[key]
            for key in (
                *("headline", "estimate", "helped", "trial", "backbones", "network", "n_parameters", "n_views"),
                *("pieces", "seconds", "environment"),
            )
        },
    }
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _link(files: Files, folder: Path) -> None:
    for kind, paths in files.items():
        (folder / kind).mkdir(parents=True)
        for k, path in enumerate(paths):
            os.link(path, folder / kind / f"{k:05}{path.suffix}")


def _baselines(arranged: Arranged) -> dict[str, float]:
    """Errors on the test photos of what takes ten lines, and of the same classifier on better features.

    The ten lines: logistic regression or label spreading on EfficientNet-Lite0's features at 160 pixels.
    """
    kinds = sorted(arranged.test)
    labelled = [(path, k) for k, kind in enumerate(kinds) for path in arranged.train[kind]]
    tested = [(path, k) for k, kind in enumerate(kinds) for path in arranged.test[kind]]
    paths = [path for path, _ in labelled] + arranged.train[_UNLABELLED] + [path for path, _ in tested]
    y, truth = (np.array([k for _, k in some]) for some in (labelled, tested))
    n, m = len(labelled), len(tested)
    found = {}
    for size in (160, 224):
        x = _features(paths, size)
        scaled = StandardScaler().fit(x[:-m])
        probe = LogisticRegression(C=0.1, max_iter=2000).fit(scaled.transform(x[:n]), y)
        found[f"standardised probe {size}"] = float((probe.predict(scaled.transform(x[-m:])) != truth).mean())
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        hidden = np.concatenate([y, np.full(len(x) - n - m, -1)])
        spread = LabelSpreading(kernel="knn", n_neighbors=10, alpha=0.8, max_iter=100).fit(unit[:-m], hidden)
        found[f"label spreading {size}"] = float((spread.predict(unit[-m:]) != truth).mean())
        ours = logistic_regression(x[:n], y, len(kinds))
        found[f"probe of the fit {size}"] = float((ours.logits(x[-m:]).argmax(1) != truth).mean())
    return found


def _features(paths: list[Path], size: int) -> np.ndarray:
    backbone = find_backbone("lite0")
    whole = torch.nn.Sequential(per_channel(backbone.mean, backbone.deviation), *backbone.network()).eval()
    compute = computing(whole, (3, size, size), np.uint8)

    def of(part: list[Path]) -> np.ndarray:
        return compute(np.stack([decode(path, size).transpose(2, 0, 1) for path in part]))

    with one_network_per_thread() as (pool, _):
        return np.concatenate(list(pool.map(of, [paths[k : k + 32] for k in range(0, len(paths), 32)])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], help=", ".join(SCENARIOS))
    given = parser.parse_args()
    for scenario in given.scenario or SCENARIOS:
        record = run(scenario, given.data, given.out)
        print(scenario, json.dumps({"error": record["test"]["error"], **record["baselines"]}))  # noqa: T201
