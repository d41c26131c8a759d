"""Draw the decision boundary of every method on two moons, and write docs/methods.md.

python docs/tools/gallery.py --out docs
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import methods_page
from meanteacher.cli.console import exit_codes, graceful_stop, say
from meanteacher.cli.demo import points_of, probability, run_folder, train_all
from meanteacher.cli.options import DeviceOption
from meanteacher.core import InputError, Interrupted
from meanteacher.data import Dataset, Split, TrainTest
from meanteacher.experiment import Recipe, run
from meanteacher.files import write_atomic
from meanteacher.recipes import RECIPES, toy
from meanteacher.records import Record
from meanteacher.report import RecordError, boundary, load_record, summarise, to_text
from methods_page import FOLDER, NUMBERS, MethodText, gathered, load_gathered, paragraphs

COMMAND = "python docs/tools/gallery.py"
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Folder for the page, methods.md, and its pictures.")] = Path("docs"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/gallery"),
    draws: Annotated[int, typer.Option(min=2, max=10, help="Number of label draws per method.")] = 10,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Write the page again from its numbers and pictures, without training.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Draw the decision boundary of every method on two moons with 6 labels, in a few minutes.

    Trains each method on several draws of the labels, draws the decision boundary of the draw with the median error,
    and writes a page with the errors, the paired difference to supervised-only and a picture per method. Running it
    again trains only the runs that are missing. Ctrl-C saves, and the exit code is 75.
    """
    options = ["--out", str(out), "--runs", str(runs), "--draws", str(draws), "--device", device]
    with exit_codes([*COMMAND.split(), *options], resume=False):
        if page_only:
            write_methods_page(out)
        else:
            make_gallery(out, runs, draws=draws, device=device)


def make_gallery(out: Path, runs: Path, *, draws: int, device: str) -> None:
    """Train the missing runs, draw the pictures and write the page."""
    console = Console()
    began = time.monotonic()
    try:
        # Before training rather than after it.
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {out / FOLDER}: {error}. Give another folder with --out.") from error
    recipes = moons_recipes()
    say(console, f"Two moons: {len(recipes)} methods, {draws} draws of the labels each.")
    titled = {text.title: recipe for text, recipe in zip(_texts(recipes).values(), recipes.values(), strict=True)}
    data = next(iter(recipes.values())).data.source.load(runs)
    with graceful_stop(console) as should_stop:
        try:
            train_all(console, titled, draws=draws, out=runs, data=data, device=device, should_stop=should_stop)
        except InputError as error:
            # Other commands call the folder of a run --out.
            raise InputError(str(error).replace("--out", "--runs")) from error
        records, pictures = _drawn(recipes, draws, runs, data, device, should_stop)
    # All at the end: a page never stands beside the pictures of other runs.
    for method, picture in pictures.items():
        write_atomic(out / FOLDER / f"{method}.svg", picture)
    write_atomic(out / NUMBERS, gathered(records))
    page = write_methods_page(out)
    console.print()
    for line in to_text(summarise(records)).splitlines():
        say(console, line)
    say(console, f"{time.monotonic() - began:.0f} s. The page: {page}")


def write_methods_page(out: Path) -> Path:
    """Write the page from the numbers and pictures in `out`, without training or drawing anything."""
    recipes = moons_recipes()
    try:
        records = load_gathered(out / NUMBERS)
        page = methods_page.methods_page(records, _texts(recipes), " ".join(paragraphs(toy.__doc__)[1:]))
    except RecordError as error:
        raise InputError(f"{error} Or make everything with: {COMMAND}") from error
    missing = [method for method in recipes if not (out / FOLDER / f"{method}.svg").exists()]
    if missing:
        raise InputError(f"{out / FOLDER} has no picture of {', '.join(missing)}. Draw it with: {COMMAND}")
    return write_atomic(out / "methods.md", page)


def moons_recipes() -> dict[str, Recipe]:
    """Method -> its recipe on two moons."""
    return {name.removeprefix("moons/"): recipe for name, recipe in RECIPES.items() if name.startswith("moons/")}


def _texts(recipes: Mapping[str, Recipe]) -> dict[str, MethodText]:
    return {method: MethodText.of(type(recipe.training.method).__doc__) for method, recipe in recipes.items()}


def _drawn(
    recipes: Mapping[str, Recipe],
    draws: int,
    runs: Path,
    data: TrainTest,
    device: str,
    should_stop: Callable[[], bool],
) -> tuple[list[Record], dict[str, str]]:
    """All records, and method -> the picture of its median run."""
    texts = _texts(recipes)
    train, test = data.train, data.test
    assert isinstance(train, Dataset)
    assert isinstance(test, Dataset)
    window = boundary.Window.around(np.concatenate([train.images.numpy(), test.images.numpy()]))
    records: list[Record] = []
    pictures: dict[str, str] = {}
    for method, recipe in recipes.items():
        if should_stop():
            raise Interrupted
        of_method = [load_record(run_folder(runs, recipe, seed) / "record.json") for seed in range(draws)]
        shown = methods_page.median_run(of_method)
        folder = run_folder(runs, recipe, shown.seed)
        labelled = Split.load(folder / "split.txt").labelled
        state = run(recipe, seed=shown.seed, out=folder, data=data, resume=True).restored(device=device)
        pictures[method] = boundary.draw_boundary(
            window,
            probability(recipe, state, window.grid()),
            points_of(test),
            points_of(train, labelled),
            methods_page.description(texts[method].title, shown),
        )
        records += of_method
    return records, pictures


if __name__ == "__main__":
    sys.exit(app(prog_name=COMMAND))
