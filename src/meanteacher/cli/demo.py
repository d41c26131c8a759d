"""`meanteacher demo` and `meanteacher gallery`: several methods on small data, from labels to a page."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import DeviceOption, graceful_stop, progress_bar, say
from meanteacher.core import InputError, Interrupted
from meanteacher.files import write_atomic
from meanteacher.formats import percent

if TYPE_CHECKING:
    from meanteacher.data import Dataset, TrainTest
    from meanteacher.experiment import Recipe
    from meanteacher.records import Record
    from meanteacher.report.boundary import Floats, Points
    from meanteacher.report.methods_page import MethodText
    from meanteacher.train import TrainState


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("demo"),
    draws: Annotated[int, typer.Option(min=2, help="Number of label draws per method.")] = 6,
    device: DeviceOption = "auto",
) -> None:
    """Compare supervised-only, Pi model and Mean Teacher on digits with 40 labels, in about a minute.

    Trains each method on several draws of the labels, prints the errors of student and teacher with their spread and
    the paired gain over supervised-only, and writes a page with the curves. Running it again with the same folder
    trains only the runs that are missing.
    """
    from meanteacher.recipes import find
    from meanteacher.report import answer, display_name, load_records, summarise, to_text, write_page

    console = Console()
    began = time.monotonic()
    recipes = {display_name(name): find(f"digits/{name}") for name in ("supervised", "pi-model", "mean-teacher")}
    spec = next(iter(recipes.values())).data
    data = spec.source.load(out)
    say(
        console,
        f"Digits: {len(data.train)} training images, {spec.n_labelled} of them labelled, and {len(data.test)} test "
        f"images. {len(recipes)} methods, {draws} draws of the labels each.",
    )
    with graceful_stop(console) as should_stop:
        train_all(console, recipes, draws=draws, out=out, data=data, device=device, should_stop=should_stop)
    records = [record for record in load_records(out) if record.seed < draws]
    console.print()
    for line in to_text(summarise(records)).splitlines():
        say(console, line)
    for sentence in answer(records):
        say(console, sentence)
    page = write_page(records, out / "report.html", f"Digits with {spec.n_labelled} labels")
    say(console, f"{time.monotonic() - began:.0f} s. The page: {page}")


def gallery(
    out: Annotated[Path, typer.Option(help="Folder for the page, methods.md, and its pictures.")] = Path("gallery"),
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
    from meanteacher.report import summarise, to_text
    from meanteacher.report.methods_page import FOLDER, NUMBERS, gathered

    if page_only:
        write_methods_page(out)
        return
    console = Console()
    began = time.monotonic()
    try:
        # Before training rather than after it.
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {out / FOLDER}: {error}. Give another folder with --out.") from error
    recipes = _recipes()
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
    """The page from the numbers and pictures in `out`, without training or drawing anything."""
    from meanteacher.recipes import moons
    from meanteacher.report import RecordError
    from meanteacher.report.methods_page import FOLDER, NUMBERS, load_gathered, methods_page, paragraphs

    recipes = _recipes()
    try:
        page = methods_page(load_gathered(out / NUMBERS), _texts(recipes), " ".join(paragraphs(moons.__doc__)[1:]))
    except RecordError as error:
        raise InputError(f"{error} Or make everything with: meanteacher gallery") from error
    missing = [method for method in recipes if not (out / FOLDER / f"{method}.svg").exists()]
    if missing:
        raise InputError(f"{out / FOLDER} has no picture of {', '.join(missing)}. Draw it with: meanteacher gallery")
    return write_atomic(out / "methods.md", page)


def train_all(
    console: Console,
    recipes: "Mapping[str, Recipe]",
    *,
    draws: int,
    out: Path,
    data: "TrainTest",
    device: str,
    should_stop: Callable[[], bool],
) -> None:
    """Train the runs that are missing in `out`, draw by draw, so that the complete draws can always be compared.

    Args:
        console: where the errors of each draw are printed
        recipes: title -> recipe; all with the same data
        draws: of the labelled set, with the seeds 0, 1, …
        out: a folder for all of the runs
        data: what the recipes' source loads
        device: where to compute
        should_stop: asked after every step; True saves

    Raises:
        Interrupted: by `should_stop`. The same call continues exactly where this one ended.
    """
    import torch

    from meanteacher import api

    # These networks are too small for several threads to save time.
    torch.set_num_threads(1)
    with progress_bar(console) as show:
        for seed in range(draws):
            errors: list[str] = []
            for title, recipe in recipes.items():
                show(f"draw {seed + 1}: {title}", seed * len(recipes) + len(errors), draws * len(recipes))
                folder = _run_folder(out, recipe, seed)
                record = api.run(
                    recipe,
                    seed=seed,
                    out=folder,
                    data=data,
                    resume=(folder / "run.json").exists(),
                    device=device,
                    compiled="no",
                    precision="float32",
                    should_stop=should_stop,
                )
                errors.append(f"{title} {percent(record.error('test'))}")
            say(console, f"draw {seed + 1}: {', '.join(errors)}")


def _run_folder(out: Path, recipe: "Recipe", seed: int) -> Path:
    return out / recipe.name / f"seed-{seed}"


def _recipes() -> "dict[str, Recipe]":
    """Method -> its recipe on two moons."""
    from meanteacher.recipes import RECIPES

    return {name.removeprefix("moons/"): recipe for name, recipe in RECIPES.items() if name.startswith("moons/")}


def _texts(recipes: "Mapping[str, Recipe]") -> "dict[str, MethodText]":
    from meanteacher.report.methods_page import MethodText

    return {method: MethodText.of(type(recipe.method).__doc__) for method, recipe in recipes.items()}


def _drawn(
    recipes: "Mapping[str, Recipe]",
    draws: int,
    runs: Path,
    data: "TrainTest",
    device: str,
    should_stop: Callable[[], bool],
) -> "tuple[list[Record], dict[str, str]]":
    """All records, and method -> the picture of its median run."""
    import numpy as np

    from meanteacher.data import Dataset, Split
    from meanteacher.experiment import restored
    from meanteacher.report import boundary, load_record, methods_page

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
        of_method = [load_record(_run_folder(runs, recipe, seed) / "record.json") for seed in range(draws)]
        shown = methods_page.median_run(of_method)
        folder = _run_folder(runs, recipe, shown.seed)
        labelled = Split.load(folder / "split.txt").labelled
        state = restored(recipe, seed=shown.seed, out=folder, data=data, device=device)
        pictures[method] = boundary.draw_boundary(
            window,
            probability(recipe, state, window.grid()),
            _points(test),
            _points(Dataset(train.images[labelled], train.labels[labelled], train.class_names)),
            methods_page.description(texts[method].title, shown),
        )
        records += of_method
    return records, pictures


def probability(recipe: "Recipe", state: "TrainState", places: "Floats") -> "Floats":
    """Of class 1, by the network that is evaluated, at places [..., 2]."""
    import torch

    from meanteacher.evaluate import predict_logits

    points = torch.from_numpy(places).float().flatten(0, -2)
    logits = predict_logits(state.predictor(recipe.method), points, normalise=state.normalise)
    values: Floats = logits.softmax(1)[:, 1].numpy()
    return values.reshape(places.shape[:-1])


def _points(dataset: "Dataset") -> "Points":
    from meanteacher.report.boundary import Points

    return Points(dataset.images.numpy(), dataset.labels.numpy())
