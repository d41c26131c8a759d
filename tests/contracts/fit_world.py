"""A made-up folder of photos whose true answers are known, fits of it in seconds, and what they left, read anew.

Nothing here asks the code under test what is right: images are decoded with Pillow, weights are read from the
checkpoints, and every number of a fit is computed from them with numpy.
"""

import atexit
import csv
import dataclasses
import json
import math
import tempfile
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from meanteacher.core import Problem
from meanteacher.data import Fixed
from meanteacher.models import FastNetSpec
from meanteacher.photos.fitting import fit, results, stands, training
from meanteacher.photos.fitting.config import FitConfig
from meanteacher.photos.fitting.plan import Machine
from meanteacher.records import Plan
from meanteacher.schedules import Constant
from meanteacher.train import Callback
from meanteacher.views import Translate

METHODS = ("mean-teacher", "supervised")
CLASSES = ("ash", "birch", "cedar")
NEW_CLASS = "bay"
"""Stands between the others when classes are sorted: whoever counts by position counts wrong from there on."""
_TINTS = {"ash": (210, 60, 60), "bay": (200, 200, 40), "birch": (60, 190, 60), "cedar": (60, 60, 210)}
_SIZE = 32
_WIDTH = 0.125
_STEPS = 20
_ROWS = 12
N_COPIES = 4
"""Of each class: as many exact copies, and as many that were brightened and saved again."""
_Z = 1.959963984540054


# --- the photos -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Photos:
    """A folder of images, and what its maker knows about them."""

    root: Path
    names: tuple[str, ...]
    """Sorted; unreadable ones among them."""
    unreadable: frozenset[str]
    truth: Mapping[str, str]
    """name -> the class it was painted as, hidden where it lies unlabelled."""
    copies: tuple[tuple[str, str], ...]
    """Pairs of names that show the same picture."""

    def labels(self, more: Mapping[str, str]) -> dict[str, str]:
        """name -> label of every readable image that has one: by its folder, or by a row of a labels file."""
        lying = {name: name.split("/")[0] for name in self.names if not name.startswith("unlabelled/")}
        return {name: label for name, label in {**lying, **more}.items() if name not in self.unreadable}

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
def photos(n_labelled: int) -> Photos:
    """So many different labelled images a class and their copies, and unlabelled ones with some that are of no class.

    The fewer are among the more, under the same names.
    """
    root = scratch() / f"photos-{n_labelled}"
    truth: dict[str, str] = {}
    copies: list[tuple[str, str]] = []

    def save(name: str, label: str, pixels: np.ndarray) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        truth[name] = label

    for label in CLASSES:
        draws = np.random.default_rng(CLASSES.index(label))
        for number in range(n_labelled):
            picture = _painted(label, draws)
            save(f"{label}/{number:02}.png", label, picture)
            if number < 2 * N_COPIES:
                exact = number < N_COPIES
                name = f"{label}/{'copy' if exact else 'again'}-{number:02}.png"
                save(name, label, picture if exact else picture // 2 + picture // 2 + 3)
                copies.append((f"{label}/{number:02}.png", name))
                if number < 2:
                    save(f"unlabelled/of-{label}-{number:02}.png", label, picture)
                    copies.append((f"{label}/{number:02}.png", f"unlabelled/of-{label}-{number:02}.png"))
    draws = np.random.default_rng(9)
    for number in range(12):
        label = (*CLASSES, NEW_CLASS)[number % 4]
        picture = _painted(label, draws)
        save(f"unlabelled/{number:02}.png", label, picture)
        if number < N_COPIES:
            save(f"unlabelled/twin-{number:02}.png", label, picture)
            copies.append((f"unlabelled/{number:02}.png", f"unlabelled/twin-{number:02}.png"))
    unreadable = {"birch/00-broken.png", "unlabelled/00-broken.jpg"}
    for name in unreadable:
        (root / name).write_bytes(b"not an image")
    names = tuple(sorted({*truth, *unreadable}))
    return Photos(root, names, frozenset(unreadable), truth, tuple(copies))


def _painted(label: str, draws: np.random.Generator) -> np.ndarray:
    """A pattern of its own, tinted as its class is."""
    coarse = draws.integers(0, 256, (5, 5, 3)).astype(np.uint8)
    pattern = np.asarray(Image.fromarray(coarse).resize((40, 36), Image.Resampling.BICUBIC), dtype=float)
    share = draws.uniform(0.4, 0.6)
    noise = draws.normal(scale=8, size=pattern.shape)
    return (share * pattern + (1 - share) * np.array(_TINTS[label]) + noise).clip(0, 255).astype(np.uint8)


# --- fits -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fit:
    """What a fit left, and what it was given."""

    out: Path
    trained: Path
    """The folder with its runs."""
    photos: Photos
    added: Mapping[str, str]
    """name -> label of the labels file."""
    given: tuple[Any, ...]
    """The first arguments that the results were written from: config, validation, comparison and findings."""
    options: Mapping[str, Any]
    """The others."""

    @cached_property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.out / "fit.json").read_text(encoding="utf-8"))
        return content

    @cached_property
    def labels(self) -> dict[str, str]:
        return self.photos.labels(self.added)

    @cached_property
    def class_names(self) -> list[str]:
        return sorted(set(self.labels.values()))

    @cached_property
    def runs(self) -> dict[str, "Run"]:
        return {path.name: Run(path, self) for path in sorted(self.trained.iterdir())}

    @cached_property
    def judged(self) -> "Judged":
        """What judged the models, by the teachers in the checkpoints."""
        logits, rows = {}, []
        for method in METHODS:
            judges = [run for name, run in self.runs.items() if name == method or name.startswith(f"{method}-fold-")]
            rows = [row for run in judges for row in run.split["validation"]]
            logits[method] = np.concatenate([run.logits(run.teacher, run.split["validation"]) for run in judges])
        truth = [self.class_names.index(self.labels[self.photos.names[row]]) for row in rows]
        return Judged(rows, np.array(truth), logits)

    @cached_property
    def probabilities(self) -> np.ndarray:
        """[N, n_classes] of all images, by the shipped weights at the temperature that is told."""
        weights = load_file(self.out / "model" / "weights.safetensors")
        network, normalise = under("network.", weights), under("normalise.", weights)
        logits = forward(network, normalise, self.photos.pixels, len(self.class_names))
        return softmax(logits / self.content["calibration"]["temperature"])

    def table(self, name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((self.out / name).read_text(encoding="utf-8").splitlines()))

    def index(self, name: str) -> int:
        return self.photos.names.index(name)


@dataclasses.dataclass(frozen=True)
class Judged:
    """The outputs of both methods for the images that judge, each from a model that the image did not teach."""

    rows: list[int]
    truth: np.ndarray
    logits: Mapping[str, np.ndarray]

    def wrong(self, method: str) -> np.ndarray:
        wrong: np.ndarray = self.logits[method].argmax(1) != self.truth
        return wrong

    @property
    def better(self) -> str:
        ours, theirs = (self.wrong(method).sum() for method in METHODS)
        return METHODS[0] if ours <= theirs else METHODS[1]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run below a fit, as its files tell."""

    folder: Path
    fit: Fit

    @cached_property
    def split(self) -> dict[str, list[int]]:
        """ "examples", "labelled" and "validation" of split.txt."""
        lines = (self.folder / "split.txt").read_text(encoding="utf-8").splitlines()[1:]
        return {name: [int(value) for value in values] for name, *values in map(str.split, lines)}

    @cached_property
    def recipe(self) -> dict[str, Any]:
        recipe: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))["recipe"]
        return recipe

    def tensors(self, part: str) -> dict[str, Tensor]:
        checkpoints = self.folder / "checkpoints"
        return load_file(checkpoints / (checkpoints / "last").read_text().strip() / f"{part}.safetensors")

    @cached_property
    def teacher(self) -> dict[str, Tensor]:
        return under("network.", self.tensors("memory"))

    def logits(self, weights: Mapping[str, Tensor], rows: list[int]) -> np.ndarray:
        return forward(weights, self.tensors("normalise"), self.fit.photos.pixels[rows], len(self.fit.class_names))


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def forward(
    weights: Mapping[str, Tensor], normalise: Mapping[str, Tensor], pixels: np.ndarray, n_classes: int
) -> np.ndarray:
    """[N, n_classes] logits in double precision, of a network with these weights."""
    problem = Problem(n_classes=n_classes, n_examples=1, input_shape=(3, *pixels.shape[2:]))
    network = FastNetSpec(width=_WIDTH).build(problem)
    network.load_state_dict(dict(weights))
    x = (torch.from_numpy(pixels).double() / 255 - normalise["mean"].double()) / normalise["deviation"].double()
    with torch.no_grad():
        logits: np.ndarray = network.double().eval()(x).numpy()
    return logits


def make_fit(
    given: Photos,
    name: str,
    *,
    untaught: str | None = None,
    added: Mapping[str, str] | None = None,
    start: Path | None = None,
    pages: bool = False,
) -> Fit:
    """Fit these photos with a few short steps.

    Args:
        given: the photos
        name: of the folder
        untaught: a method whose learning rate is zero, so that the other one is sure to be the better
        added: name -> label, for a labels file
        start: the folder of a fit to go on from
        pages: whether the report and the model card are written, too
    """
    out = Path(tempfile.mkdtemp(dir=scratch())) / name
    file = None
    if added:
        file = out.parent / "labels.csv"
        file.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in added.items()))
    config = FitConfig(
        photos=given.root,
        labels=file,
        minutes=60.0,
        out=out,
        flip=False,
        start=start,
        device="cpu",
        backbone="none",
    )
    written: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    with pytest.MonkeyPatch.context() as patch:
        write, real = results.write_results, stands.photo_training

        def note(*arguments: Any, **options: Any) -> dict[str, Any]:
            written.append((arguments, options))
            return write(*arguments, **options)

        def short(plan: Plan, method: str, **options: Any) -> Any:
            recipe = real(plan, method, **options)
            batch = Fixed(size=_ROWS if method == "supervised" else 2 * _ROWS, labelled=_ROWS, unlabelled_pool="all")
            recipe = dataclasses.replace(
                recipe, batch=batch, views={"student": Translate(2), "teacher": Translate(1)}, evaluate_every=plan.steps
            )
            if method != untaught:
                return recipe
            still = dataclasses.replace(recipe.optim, learning_rate=Constant(0.0), sgd_learning_rate=Constant(0.0))
            return dataclasses.replace(recipe, optim=still, steps=2, evaluate_every=2)

        patch.setattr(fit, "write_results", note)
        patch.setattr(fit, "measure_machine", _machine)
        patch.setattr(training, "make_plan", _plan)
        patch.setattr(training, "FEWEST_STEPS", _STEPS)
        patch.setattr(stands, "photo_training", short)
        if not pages:
            patch.setattr(results, "write_fit_pages", lambda *_: None)
        fit.run_fit(config, Callback())
    return Fit(out, out / "runs", given, dict(added or {}), *written[0])


def _machine(width: float | None, **given: Any) -> Machine:
    return Machine(threads=1, seconds_per_step={width or _WIDTH: {"supervised": 0.1, "mean-teacher": 0.1}})


def _plan(machine: Machine, **given: Any) -> Plan:
    """A few steps, however much time there is."""
    ((width, cost),) = machine.seconds_per_step.items()
    given = {name: given[name] for name in ("minutes", "size", "flip", "n_rounds")}
    return Plan(
        **given, width=width, steps=_STEPS, weak_labelled_view=False, threads=1, seconds_per_step=cost, seconds=1.0
    )


@cache
def held_out() -> Fit:
    """Enough labels that a part is held out; Mean Teacher is better."""
    return make_fit(photos(30), "held-out", untaught="supervised")


@cache
def in_folds() -> Fit:
    """Few labels, which take turns; supervised-only is better, and trained again on all of them."""
    return make_fit(photos(10), "in-folds", untaught="mean-teacher")


# --- arithmetic -------------------------------------------------------------------------------------------------------


def wilson(wrong: int, n: int) -> tuple[float, float]:
    """The ends of Wilson's 95 % interval: the two shares p with |wrong/n - p| = z sqrt(p (1 - p) / n)."""
    a, b, c = 1 + _Z**2 / n, -(2 * wrong / n + _Z**2 / n), (wrong / n) ** 2
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def paired(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Baseline's error minus ours and its 95 % interval: half a pair added to each kind, as Agresti and Min do."""
    n = len(ours)
    saved = sum(bool(b and not a) for a, b in zip(ours, theirs, strict=True))
    lost = sum(bool(a and not b) for a, b in zip(ours, theirs, strict=True))
    b, c, m = saved + 0.5, lost + 0.5, n + 2
    half = _Z * math.sqrt((b + c) - (b - c) ** 2 / m) / m
    return (saved - lost) / n, (b - c) / m - half, (b - c) / m + half


def confusion(truth: np.ndarray, guess: np.ndarray, n_classes: int) -> list[list[int]]:
    """A row for each true class, a column for each guess."""
    return [[int(((truth == i) & (guess == j)).sum()) for j in range(n_classes)] for i in range(n_classes)]


def softmax(logits: np.ndarray) -> np.ndarray:
    exponential = np.exp(logits - logits.max(1, keepdims=True))
    share: np.ndarray = exponential / exponential.sum(1, keepdims=True)
    return share


def temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The one that makes the labels most probable, each believed but for 1 / (n + 2); found on ever finer grids."""
    n = len(labels)
    doubt = 1 / (n + 2)

    def surprise(logarithm: float) -> float:
        log_p = np.log(np.maximum(softmax(logits / math.exp(logarithm)), 1e-300))
        return float(-((1 - doubt) * log_p[np.arange(n), labels] + doubt * log_p.mean(1)).sum())

    low, high = -math.log(100.0), math.log(100.0)
    for _ in range(8):
        grid = np.linspace(low, high, 41)
        k = int(np.argmin([surprise(x) for x in grid]))
        low, high = grid[max(k - 1, 0)], grid[min(k + 1, 40)]
    return math.exp((low + high) / 2)


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
