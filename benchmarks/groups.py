"""How well photos that belong together are found by their features: simulated bursts, and distinct photos.

    python benchmarks/groups.py FLOWERS_TEST [THINGS_TEST ...]

Each argument is a folder with one folder of photos per class. The shots of a burst are crops of one photo, turned and
brightened. Prints the table of docs/experiments/groups.md.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from meanteacher.files.images import decode
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.photos.features.compute import computing
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.photos.folder.groups import together

STRENGTHS = {"little": 0.5, "as much as in a minute": 1.0, "far more": 1.6}
N_SHOTS, N_THINGS = 6, 4
N_LABELLED = (10, 24)
N_PER_CLASS, N_DRAWS = 30, 5


def main(folders: list[str]) -> None:
    backbone = find_backbone("lite0")
    write = sys.stdout.write
    write("| photos | distinct photos that join another, 10 and 24 per class | bursts in one group | and numbered |\n")
    write("|---|---|---|---|\n")
    for folder in folders:
        photos, draws = find_photos(Path(folder)), Random(0)
        rows = [k for label in range(len(photos.class_names)) for k in _some(photos.labels == label, draws)]
        labels = photos.labels[rows]
        images = [Image.open(photos.path(k)).convert("RGB") for k in rows]
        features = _features(images, backbone)
        joined = [np.mean([_joined(features, labels, n, draw) for draw in range(N_DRAWS)]) for n in N_LABELLED]
        things = [k for label in np.unique(labels) for k in np.flatnonzero(labels == label)[:N_THINGS].tolist()]
        for name, strength in STRENGTHS.items():
            shots = _features([_shot(images[k], draws, strength) for k in things for _ in range(N_SHOTS)], backbone)
            whole = [_whole(shots, labels[things], numbered=numbered) for numbered in (False, True)]
            cells = (" and ".join(f"{100 * part:.1f} %" for part in joined), *(f"{100 * part:.0f} %" for part in whole))
            write(f"| {Path(folder).name}, shots differ {name} | {' | '.join(cells)} |\n")


def _some(is_of_class: NDArray[np.bool_], draws: Random) -> list[int]:
    rows = np.flatnonzero(is_of_class).tolist()
    return draws.sample(rows, min(N_PER_CLASS, len(rows)))


def _shot(image: Image.Image, draws: Random, strength: float) -> Image.Image:
    width, height = (int(side * draws.uniform(1 - 0.35 * strength, 1)) for side in image.size)
    left, top = draws.randint(0, image.width - width), draws.randint(0, image.height - height)
    mean = tuple(int(level) for level in np.asarray(image).mean((0, 1)))
    turned = image.rotate(draws.uniform(-12, 12) * strength, Image.Resampling.BILINEAR, fillcolor=mean)
    lit = ImageEnhance.Brightness(turned).enhance(draws.uniform(1 - 0.25 * strength, 1 + 0.25 * strength))
    return ImageEnhance.Color(lit.crop((left, top, left + width, top + height))).enhance(draws.uniform(0.8, 1.2))


def _features(images: list[Image.Image], backbone: Backbone) -> NDArray[np.float32]:
    size = backbone.size
    compute = computing(backbone.network(), (3, size, size), np.float32)
    mean, deviation = np.array(backbone.mean, np.float32), np.array(backbone.deviation, np.float32)

    def work(start: int) -> NDArray[np.float32]:
        batch = np.stack([decode(image, size) for image in images[start : start + 16]])
        return compute(((batch / np.float32(255) - mean) / deviation).transpose(0, 3, 1, 2)).reshape(len(batch), -1)

    with ThreadPoolExecutor(2) as pool:
        return np.concatenate(list(pool.map(work, range(0, len(images), 16))))


def _groups(features: NDArray[np.float32], labels: NDArray[np.int64], names: list[str]) -> NDArray[np.int64]:
    photos = Photos(Path(), tuple(names), labels, tuple(map(str, range(labels.max() + 1))), None)
    return together(photos, np.arange(len(labels)), np.full(len(labels), np.nan), features)


def _joined(features: NDArray[np.float32], labels: NDArray[np.int64], n: int, seed: int) -> float:
    """The share of distinct photos, n per class, whose group has another photo."""
    draws = np.random.default_rng(seed)
    rows = np.concatenate([draws.permutation(np.flatnonzero(labels == label))[:n] for label in np.unique(labels)])
    groups = _groups(features[rows], labels[rows], [f"{k}a.jpg" for k in range(0, 2 * len(rows), 2)])
    return float((np.bincount(groups)[groups] > 1).mean())


def _whole(shots: NDArray[np.float32], labels: NDArray[np.int64], *, numbered: bool) -> float:
    """The share of bursts whose shots are all in one group."""
    step = 1 if numbered else 2
    names = [f"IMG_{k}.jpg" for k in range(0, step * len(shots), step)]
    groups = _groups(shots, np.repeat(labels, N_SHOTS), names).reshape(-1, N_SHOTS)
    return float((groups == groups[:, :1]).all(axis=1).mean())


if __name__ == "__main__":
    main(sys.argv[1:])
