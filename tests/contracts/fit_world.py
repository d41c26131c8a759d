"""A made-up folder of photos whose true answers are known, a fit of it in seconds, and what it left, read anew.

Nothing here asks the code under test what is right: images are decoded with Pillow, weights are read from the model,
and every number of a fit is computed from them and from the tables with numpy.
"""

import atexit
import csv
import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from backbone_support import small_networks
from meanteacher.core import Problem
from meanteacher.models import FastNetSpec, LitePairSpec
from meanteacher.photos.features import extraction
from meanteacher.photos.fitting import fit, heads, results
from meanteacher.photos.fitting.estimate import OutOfFold
from meanteacher.photos.fitting.pretrained import Pretrained
from meanteacher.train import Callback

CLASSES = ("ash", "birch", "cedar")
_TINTS = {"ash": (210, 60, 60), "birch": (60, 190, 60), "cedar": (60, 60, 210)}
_SIZE = 32
_N_LABELLED, _N_UNLABELLED = 8, {"ash": 9, "birch": 3, "cedar": 2}
ANOTHER = "ash/07.png"
_Z = 1.959963984540054


# --- the photos -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Photos:
    """A folder of images, and what its maker knows about them."""

    root: Path
    names: tuple[str, ...]
    """Sorted; unreadable ones among them."""
    unreadable: frozenset[str]
    copies: tuple[tuple[str, str], ...]
    """Pairs of names that show the same picture."""

    @cached_property
    def labels(self) -> dict[str, str]:
        """name -> label of every readable image that has one."""
        lying = {name: name.split("/")[0] for name in self.names if not name.startswith("unlabelled/")}
        return {name: label for name, label in lying.items() if name not in self.unreadable}

    @cached_property
    def pixels(self) -> np.ndarray:
        """[N, 3, size, size]; zeros where unreadable."""
        found = np.zeros((len(self.names), 3, _SIZE, _SIZE), np.uint8)
        for k, name in enumerate(self.names):
            if name not in self.unreadable:
                found[k] = decoded(self.root / name, _SIZE).transpose(2, 0, 1)
        return found


def decoded(path: Path, size: int) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0))


@cache
def scratch() -> Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def photos() -> Photos:
    """Labelled images of each class in equal numbers, two of them twice and one under a wrong label; others unequal."""
    root = scratch() / "photos"
    copies: list[tuple[str, str]] = []
    names: set[str] = set()

    def save(name: str, pixels: np.ndarray) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        names.add(name)

    draws = np.random.default_rng(0)
    for label in CLASSES:
        for number in range(_N_LABELLED):
            # The first of each class looks like one of the next class, and so does another one of the first class:
            # there are errors to count, and not as many of each class.
            other = CLASSES[(CLASSES.index(label) + 1) % len(CLASSES)]
            name = f"{label}/{number:02}.png"
            picture = _painted(other if number == 0 or name == ANOTHER else label, draws)
            save(name, picture)
            if number < 2:
                save(f"{label}/copy-{number:02}.png", picture)
                copies.append((f"{label}/{number:02}.png", f"{label}/copy-{number:02}.png"))
        for number in range(_N_UNLABELLED[label]):
            picture = _painted(label, draws)
            save(f"unlabelled/{label}-{number:02}.png", picture)
            if number == 0:
                save(f"unlabelled/{label}-twin.png", picture)
                copies.append((f"unlabelled/{label}-00.png", f"unlabelled/{label}-twin.png"))
    unreadable = {"birch/00-broken.png", "unlabelled/00-broken.jpg"}
    for name in unreadable:
        (root / name).write_bytes(b"not an image")
    return Photos(root, tuple(sorted({*names, *unreadable})), frozenset(unreadable), tuple(copies))


def _painted(label: str, draws: np.random.Generator) -> np.ndarray:
    """A pattern of its own, tinted as its class is."""
    coarse = draws.integers(0, 256, (5, 5, 3)).astype(np.uint8)
    pattern = np.asarray(Image.fromarray(coarse).resize((60, 56), Image.Resampling.BICUBIC), dtype=float)
    share = draws.uniform(0.3, 0.6)
    return (share * pattern + (1 - share) * np.array(_TINTS[label])).clip(0, 255).astype(np.uint8)


# --- a fit ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fit:
    """What a fit left, and what it tested."""

    out: Path
    photos: Photos
    tested: OutOfFold
    """The answers of cross-validation that the results were written from."""
    recipes: tuple[tuple[str, Any], ...]
    """By the name of its recipe, each head that was fitted and each result of cross-validation, in their order."""

    @cached_property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.out / "fit.json").read_text(encoding="utf-8"))
        return content

    @cached_property
    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.out / "model" / "model.json").read_text(encoding="utf-8"))
        return manifest

    @cached_property
    def probabilities(self) -> np.ndarray:
        """[N, n_classes] of all images, by the shipped weights at the temperature of the model."""
        weights = load_file(self.out / "model" / "weights.safetensors")
        logits = _pair(under("network.", weights), under("normalise.", weights), self.photos.pixels)
        return softmax(logits / self.manifest["temperature"])

    @cached_property
    def answers(self) -> list[dict[str, str]]:
        """The rows of predictions.csv that have an answer."""
        return [row for row in self.table("predictions.csv") if row["guess"]]

    @cached_property
    def judged(self) -> list[dict[str, str]]:
        """Those about a photo with a label."""
        return [row for row in self.answers if row["given"]]

    def table(self, name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((self.out / name).read_text(encoding="utf-8-sig").splitlines()))

    def index(self, name: str) -> int:
        return self.photos.names.index(name)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def forward(
    weights: Mapping[str, Tensor], normalise: Mapping[str, Tensor], pixels: np.ndarray, n_classes: int
) -> np.ndarray:
    """[N, n_classes] logits in double precision, of a small network from scratch with these weights."""
    problem = Problem(n_classes=n_classes, n_examples=1, input_shape=(3, *pixels.shape[2:]))
    return _logits(FastNetSpec(width=0.125).build(problem), weights, normalise, pixels)


def _pair(weights: Mapping[str, Tensor], normalise: Mapping[str, Tensor], pixels: np.ndarray) -> np.ndarray:
    spec = LitePairSpec(width=0.1, depth=0.1, second_width=0.2, second_depth=0.1)
    network = spec.build(Problem(len(CLASSES), 1, (3, *pixels.shape[2:])))
    return _logits(network, weights, normalise, pixels)


def _logits(
    network: torch.nn.Module, weights: Mapping[str, Tensor], normalise: Mapping[str, Tensor], pixels: np.ndarray
) -> np.ndarray:
    network.load_state_dict(dict(weights))
    x = (torch.from_numpy(pixels).double() / 255 - normalise["mean"].double()) / normalise["deviation"].double()
    with torch.no_grad():
        logits: np.ndarray = network.double().eval()(x).numpy()
    return logits


def make_fit() -> Fit:
    """Fit the photos with two tiny networks and two views."""
    out = Path(tempfile.mkdtemp(dir=scratch())) / "fit"
    tested: list[OutOfFold] = []
    recipes: list[tuple[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        small_networks(patch)
        patch.setattr(heads, "_FEWEST", 5)  # so that the unlabelled photos teach
        patch.setattr(extraction, "VIEWS", ("plain", "mirrored"))
        patch.setattr(results, "write_fit_pages", lambda *_: None)
        write = results.write_results

        def note(root: Any, data: Any, learned: Any, *rest: Any) -> Any:
            tested.append(learned.out_of_fold)
            return write(root, data, learned, *rest)

        def noting(real: Callable[..., Any]) -> Callable[..., Any]:
            def noted(self: Any, features: Any, recipe: Any) -> Any:
                recipes.append((recipe.__name__, real(self, features, recipe)))
                return recipes[-1][1]

            return noted

        for name in ("_fitted", "_tested"):
            patch.setattr(Pretrained, name, noting(getattr(Pretrained, name)))
        patch.setattr(fit, "write_results", note)
        fit.fit(photos().root, minutes=60.0, out=out, device="cpu", callback=Callback())
    return Fit(out, photos(), tested[-1], tuple(recipes))


# --- arithmetic -------------------------------------------------------------------------------------------------------


def wilson(wrong: int, n: int) -> tuple[float, float]:
    """The ends of Wilson's 95 % interval: the two shares p with |wrong/n - p| = z sqrt(p (1 - p) / n)."""
    a, b, c = 1 + _Z**2 / n, -(2 * wrong / n + _Z**2 / n), (wrong / n) ** 2
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def confusion(truth: np.ndarray, guess: np.ndarray, n_classes: int) -> list[list[int]]:
    """A row for each true class, a column for each guess."""
    return [[int(((truth == i) & (guess == j)).sum()) for j in range(n_classes)] for i in range(n_classes)]


def softmax(logits: np.ndarray) -> np.ndarray:
    exponential = np.exp(logits - logits.max(1, keepdims=True))
    share: np.ndarray = exponential / exponential.sum(1, keepdims=True)
    return share


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Over ten bins of confidence: how far it lies from how often it is right, by the number of images."""
    total = 0.0
    for k in range(10):
        inside = [
            (max(p), int(np.argmax(p)) == label)
            for p, label in zip(probabilities, labels, strict=True)
            if min(int(max(p) * 10), 9) == k
        ]
        if inside:
            total += abs(sum(c for c, _ in inside) - sum(right for _, right in inside))
    return total / len(labels)
