"""`meanteacher gallery`: every method on two moons, from labels to a page with a picture each."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape

from meanteacher.cli.console import graceful_stop
from meanteacher.cli.run import run_folder, say_how_to_go_on, train_all
from meanteacher.core import InputError
from meanteacher.data import Dataset, Split
from meanteacher.evaluate import predict_logits
from meanteacher.experiment import Recipe, restored
from meanteacher.files import write_atomic
from meanteacher.recipes import RECIPES, moons
from meanteacher.report import Record, RecordError, load_record, summarise, to_text
from meanteacher.report.boundary import Floats, Points, Window, draw_boundary
from meanteacher.report.methods_page import (
    FOLDER,
    NUMBERS,
    MethodText,
    description,
    gathered,
    load_gathered,
    median_run,
    methods_page,
    paragraphs,
)
from meanteacher.train import TrainState


def run_gallery(*, out: Path, runs: Path, draws: int, device: str = "auto") -> bool:
    """Train what is missing in `runs`, then draw and write everything in `out`. Returns whether it is complete."""
    console = Console()
    began = time.monotonic()
    recipes = _recipes()
    # A folder that cannot be written is better known before the training than after it.
    _make_folder(out / FOLDER)
    console.print(f"Two moons: {len(recipes)} methods, {draws} draws of the labels each.", highlight=False)
    with graceful_stop(lambda: console.print("Saving, then stopping.")) as should_stop:
        done = _train_and_draw(console, recipes, draws, runs, device, should_stop)
    if done is None:
        say_how_to_go_on(console, device, "gallery", "--out", str(out), "--runs", str(runs), "--draws", str(draws))
        return False
    records, pictures = done
    # All at once at the end: a page never stands beside the pictures of other runs.
    for method, picture in pictures.items():
        write_atomic(out / FOLDER / f"{method}.svg", picture)
    write_atomic(out / NUMBERS, gathered(records))
    page = write_methods_page(out)
    console.print()
    console.print(to_text(summarise(records)), highlight=False, soft_wrap=True)
    console.print(f"{time.monotonic() - began:.0f} s. The page: {escape(str(page))}", highlight=False, soft_wrap=True)
    return True


def write_methods_page(out: Path) -> Path:
    """The page from the numbers and pictures in `out`, without training or drawing anything."""
    recipes = _recipes()
    try:
        page = methods_page(load_gathered(out / NUMBERS), _texts(recipes), " ".join(paragraphs(moons.__doc__)[1:]))
    except RecordError as error:
        raise InputError(f"{error} Or make everything with: meanteacher gallery") from error
    missing = [method for method in recipes if not (out / FOLDER / f"{method}.svg").exists()]
    if missing:
        raise InputError(f"{out / FOLDER} has no picture of {', '.join(missing)}. Draw it with: meanteacher gallery")
    return write_atomic(out / "methods.md", page)


def _recipes() -> dict[str, Recipe]:
    """method -> its recipe."""
    return {name.removeprefix("moons/"): recipe for name, recipe in RECIPES.items() if name.startswith("moons/")}


def _texts(recipes: Mapping[str, Recipe]) -> dict[str, MethodText]:
    return {method: MethodText.of(type(recipe.method).__doc__) for method, recipe in recipes.items()}


def _train_and_draw(
    console: Console,
    recipes: Mapping[str, Recipe],
    draws: int,
    runs: Path,
    device: str,
    should_stop: Callable[[], bool],
) -> tuple[list[Record], dict[str, str]] | None:
    """The records, and method -> its picture; None if a stop was asked for."""
    texts = _texts(recipes)
    titled = {texts[method].title: recipe for method, recipe in recipes.items()}
    data = next(iter(recipes.values())).data.source.load(runs)
    try:
        if not train_all(console, titled, draws=draws, out=runs, data=data, device=device, should_stop=should_stop):
            return None
    except InputError as error:
        # Other commands call the folder of a run --out.
        raise InputError(str(error).replace("--out", "--runs")) from error
    window = Window.around(np.concatenate([data.train.images.numpy(), data.test.images.numpy()]))
    records, pictures = [], {}
    for method, recipe in recipes.items():
        if should_stop():
            return None
        folders = [run_folder(runs, recipe, seed) for seed in range(draws)]
        its = [load_record(folder / "record.json") for folder in folders]
        shown = median_run(its)
        folder = folders[shown.seed]
        labelled = Split.load(folder / "split.txt").labelled
        state = restored(recipe, seed=shown.seed, out=folder, data=data, device=device)
        pictures[method] = draw_boundary(
            window,
            probability(recipe, state, window.grid()),
            _points(data.test),
            _points(Dataset(data.train.images[labelled], data.train.labels[labelled], data.train.class_names)),
            description(texts[method].title, shown),
        )
        records += its
    return records, pictures


def probability(recipe: Recipe, state: TrainState, places: Floats) -> Floats:
    """Of class 1, by the network that is evaluated and shipped, at places [..., 2]."""
    points = torch.from_numpy(places).float().flatten(0, -2)
    logits = predict_logits(state.predictor(recipe.method), points, normalise=state.normalise)
    values: Floats = logits.softmax(1)[:, 1].numpy()
    return values.reshape(places.shape[:-1])


def _points(dataset: Dataset) -> Points:
    return Points(dataset.images.numpy(), dataset.labels.numpy())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error}. Give another folder with --out.") from error
