"""`meanteacher demo`: several methods on small data, from labels to a page."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, progress_bar, say
from meanteacher.cli.options import DeviceOption
from meanteacher.formats import percent

if TYPE_CHECKING:
    from meanteacher.data import TrainTest
    from meanteacher.experiment import Recipe


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("demo"),
    draws: Annotated[int, typer.Option(min=2, metavar="N", help="Number of label draws per method.")] = 6,
    device: DeviceOption = "auto",
) -> None:
    """Compare three methods on digits with 40 labels, in about a minute.

    Trains supervised-only, Pi model and Mean Teacher on several draws of the labels, prints the errors of student and
    teacher with their spread and the paired gain over supervised-only, and writes a page with the curves. Running it
    again with the same folder trains only the runs that are missing.
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

    The recipes (title -> recipe) have the same data; the draws of the labelled set have the seeds 0, 1, …
    After an interruption by `should_stop`, the same call continues from the last step.
    """
    import torch

    from meanteacher import api
    from meanteacher.train import RunOptions, StopWhen

    # These networks are too small for several threads to save time.
    torch.set_num_threads(1)
    with progress_bar(console) as show:
        for seed in range(draws):
            errors: list[str] = []
            for title, recipe in recipes.items():
                show(f"draw {seed + 1}: {title}", seed * len(recipes) + len(errors), draws * len(recipes))
                folder = run_folder(out, recipe, seed)
                record = api.run(
                    recipe,
                    seed=seed,
                    out=folder,
                    data=data,
                    resume=(folder / "run.json").exists(),
                    options=RunOptions(device=device, precision="float32"),
                    callbacks=[StopWhen(should_stop)],
                )
                errors.append(f"{title} {percent(record.error('test'))}")
            say(console, f"draw {seed + 1}: {', '.join(errors)}")


def run_folder(out: Path, recipe: "Recipe", seed: int) -> Path:
    """The folder of one run below `out`."""
    return out / recipe.name / f"seed-{seed}"
