"""Fits of real photos, evaluated on photos that no fit has seen.

    python -m benchmarks.photos DATA OUT [SCENARIO...]
    python -m benchmarks.photos --page docs/records/photos docs/experiments/whole-fits.md

DATA has the folders flowers, flowers-test, things, things-test and cifar10-images, and SVHN's images in svhn.npz. Each
scenario arranges photos below OUT, fits them, evaluates the model and logistic regression on the same features, and
writes docs/records/photos/SCENARIO.json. Without names, all of `TABLES` are made. A scenario with a record is left out,
and a fit that was killed continues. With --page the page is written from the records.
"""

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from meanteacher.files import write_json
from meanteacher.files.images import decode
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.features.compute import computing, one_network_per_thread
from meanteacher.photos.fitting.fit import fit
from meanteacher.photos.fitting.heads import logistic_regression
from meanteacher.photos.model.bundle import Classifier
from meanteacher.records import read_fit
from meanteacher.views.normalise import per_channel

Files = dict[str, list[Path]]
"""class -> its photos"""
_UNLABELLED = "unlabelled"
_SIZE = 224


@dataclass(frozen=True)
class Arranged:
    """Photos to fit and to test on."""

    train: Files
    test: Files
    mix: dict[str, float] | None = None
    """Share of each class that test errors are weighted by; None for that of the test photos."""


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


def _flowers_tail(data: Path, *, draw: int = 0) -> Arranged:
    """The same labels; 20:1 unequal classes among the unlabelled photos, by a classifier of all known ones."""
    found = _flowers(data, draw=draw)
    kinds, others = sorted(found.test), found.train[_UNLABELLED]
    known = [(path, k) for k, kind in enumerate(kinds) for path in [*found.train[kind], *found.test[kind]]]
    x = features_of([path for path, _ in known] + others, _SIZE)
    head = logistic_regression(x[: len(known)], np.array([k for _, k in known]), len(kinds))
    guesses = head.logits(x[len(known) :]).argmax(1)
    draws = np.random.default_rng(draw)
    mix = draws.permutation(20.0 ** (-np.arange(len(kinds)) / (len(kinds) - 1)))
    mix /= mix.sum()
    of_kind = [draws.permutation(np.flatnonzero(guesses == k)) for k in range(len(kinds))]
    most = min(len(rows) / share for rows, share in zip(of_kind, mix, strict=True))
    kept = np.concatenate([rows[: int(most * share)] for rows, share in zip(of_kind, mix, strict=True)])
    found.train[_UNLABELLED] = [others[k] for k in draws.permutation(kept)]
    return Arranged(found.train, found.test, dict(zip(kinds, mix.tolist(), strict=True)))


def _things(data: Path, *, draw: int = 0) -> Arranged:
    """Draw 0 has the 8 labels of each kind as they are; other draws have 6 of them, and the rest is unlabelled."""
    train, test = _in_folder(data / "things"), _in_folder(data / "things-test")
    draws = np.random.default_rng(draw)
    for kind in sorted(test) if draw else ():
        files = [train[kind][k] for k in draws.permutation(len(train[kind]))]
        train[kind] = files[:6]
        train[_UNLABELLED] += files[6:]
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
    train, test = arranged
    return Arranged(train, test)


_UNEQUAL = {"daisy": 3, "tulip": 30}
_SETS = {"flowers": _flowers, "flowers-tail": _flowers_tail, "things": _things}
TABLES: dict[str, tuple[Callable[[Path], Arranged], float, dict[str, Any]]] = {
    f"{name}-{draw}-{minutes}": (partial(arrange, draw=draw), minutes, {})
    for minutes in (10, 2)
    for draw in range(3)
    for name, arrange in _SETS.items()
}
"""The fits that the page shows: name -> photos, minutes, further options."""
SCENARIOS = TABLES | {
    **{f"flowers-{draw}-1": (partial(_flowers, draw=draw), 1, {}) for draw in range(3)},
    "flowers-equal": (partial(_flowers, counts={}), 5, {}),
    "flowers-strangers": (_strangers, 5, {}),
    "flowers-unequal": (partial(_flowers, counts=_UNEQUAL), 5, {}),
    "cifar10": (_cifar10, 10, {}),
    "svhn": (_svhn, 5, {}),
    "svhn-scratch": (_svhn, 5, {"backbone": "none"}),
}
RECORDS = Path(__file__).parents[1] / "docs/records/photos"


def run(name: str, data: Path, out: Path, records: Path = RECORDS) -> None:
    """Fit and evaluate a scenario, unless it has a record. Photos and fit are deleted afterwards."""
    arrange, minutes, options = SCENARIOS[name]
    folder, record = out / name, records / f"{name}.json"
    if record.exists():
        return
    arranged = arrange(data)
    shutil.rmtree(folder / "photos", ignore_errors=True)
    shutil.rmtree(folder / "test", ignore_errors=True)
    _link(arranged.train, folder / "photos")
    _link(arranged.test, folder / "test")
    model = fit(folder / "photos", minutes=minutes, out=folder / "fit", resume="auto", **options)
    fitted = asdict(read_fit(folder / "fit"))
    more = [f"--{key} {value}" for key, value in options.items()]
    content = {
        "scenario": name,
        "command": shlex.join(["meanteacher", "fit", "photos", "--minutes", f"{minutes:g}", *" ".join(more).split()]),
        "mix": arranged.mix,
        "test": (tested := model.evaluate(folder / "test")),
        "error": _weighted({each["name"]: each["error"] for each in tested["per_class"]}, arranged),
        "logistic regression": _regression(model, arranged) if fitted["backbones"] else None,
        **{
            key: fitted[key]
            for key in (
                *("headline", "estimate", "helped", "trial", "network", "n_parameters", "n_views"),
                *("pieces", "seconds", "environment"),
            )
        },
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, content)
    shutil.rmtree(folder)


def _weighted(errors: Mapping[str, float], arranged: Arranged) -> float:
    """The error in the mix of the folder."""
    mix = arranged.mix or {kind: float(len(files)) for kind, files in arranged.test.items()}
    return sum(mix[kind] * errors[kind] for kind in mix) / sum(mix.values())


def _regression(model: Classifier, arranged: Arranged) -> float:
    """The test error of logistic regression on the labels, on the same features as the model."""
    kinds, network = sorted(arranged.test), cast(torch.nn.Sequential, model.network)
    body = torch.nn.Sequential(model.normalise, network[:-1]).eval()
    of_kind = {
        kind: features_of([*arranged.train[kind], *files], model.size, body) for kind, files in arranged.test.items()
    }
    n = {kind: len(arranged.train[kind]) for kind in kinds}
    x = np.concatenate([of_kind[kind][: n[kind]] for kind in kinds])
    head = logistic_regression(x, np.repeat(np.arange(len(kinds)), [n[kind] for kind in kinds]), len(kinds))
    wrong = {kind: head.logits(of_kind[kind][n[kind] :]).argmax(1) != k for k, kind in enumerate(kinds)}
    return _weighted({kind: float(each.mean()) for kind, each in wrong.items()}, arranged)


def page(records: Path) -> str:
    """The page of the records: every fit beside logistic regression, and the means of each set."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(records.glob("*.json"))}
    parts = [_PAGE]
    for minutes in (10, 2):
        names = [name for name in TABLES if name in found and name.endswith(f"-{minutes}")]
        if not names:
            continue
        parts += [f"## {minutes} minutes", "", _HEADER]
        for kind in _SETS:
            fits = [found[name] for name in names if name in {f"{kind}-{draw}-{minutes}" for draw in range(3)}]
            parts += [_row(fit["scenario"], [fit]) for fit in fits]
            parts += [_row(f"{kind}, mean", fits)] if len(fits) > 1 else []
        parts.append("")
    return "\n".join(parts)


def _row(name: str, fits: Sequence[Mapping[str, Any]]) -> str:
    """The row of a fit, or of the mean of several."""
    error, regression = (100 * fmean(fit[key] for fit in fits) for key in ("error", "logistic regression"))
    more = " | | | |"
    if len(fits) == 1:
        (fit,) = fits
        low, high = (100 * fit["estimate"][key] for key in ("low", "high"))
        own = "–" if fit["estimate"]["error"] is None else f"{100 * fit['estimate']['error']:.1f}"
        inside = "yes" if low <= error <= high else "no"
        more = (
            f" {own} ({low:.1f} to {high:.1f}) | {inside} | {fit['n_views']}, {fit['network']} | {fit['seconds']:.0f} |"
        )
    return f"| {name} | {error:.1f} | {regression:.1f} | {error - regression:+.1f} |{more}"


_HEADER = """| scenario | fit | logistic regression | difference | own estimate | covers | views, networks | seconds |
|---|---|---|---|---|---|---|---|"""
_PAGE = """# Whole fits

Test errors in % of `meanteacher fit`, beside logistic regression on the labels with the same features. The photos are
[flowers](../results.md), the same with 20:1 unequal classes among the unlabelled photos (test errors are weighted to
that mix), and `things`, 40 kinds in natural, very unequal numbers, on which nothing was tuned. Draws take other labels:
flowers 10 for each class, `things` all 8 of each kind in draw 0 and 6 of these 8 in the others. "Covers" says whether
the 95 % interval of the fit's own estimate contains the test error. The page is written from docs/records/photos by
`python -m benchmarks.photos --page`, and the records by `python -m benchmarks.photos DATA OUT`.
"""


def _link(files: Files, folder: Path) -> None:
    for kind, paths in files.items():
        (folder / kind).mkdir(parents=True)
        for k, path in enumerate(paths):
            os.link(path, folder / kind / f"{k:05}{path.suffix}")


def features_of(paths: list[Path], size: int, body: torch.nn.Module | None = None) -> np.ndarray:
    """The features of photos by a network that takes bytes; by default EfficientNet-Lite0."""
    if body is None:
        backbone = find_backbone("lite0")
        body = torch.nn.Sequential(per_channel(backbone.mean, backbone.deviation), *backbone.network()).eval()
    compute = computing(body, (3, size, size), np.uint8)

    def of(part: list[Path]) -> np.ndarray:
        return compute(np.stack([decode(path, size).transpose(2, 0, 1) for path in part]))

    with one_network_per_thread() as (pool, _):
        return np.concatenate(list(pool.map(of, [paths[k : k + 32] for k in range(0, len(paths), 32)])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page of the records")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    given = parser.parse_args()
    if given.page:
        given.out.write_text(page(given.data), encoding="utf-8")
    for scenario in () if given.page else given.scenarios or TABLES:
        run(scenario, given.data, given.out)
