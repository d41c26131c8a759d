"""Many recipes over many label draws into one folder, resumable, with one bar: the demo's work and the gallery's."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meanteacher.cli.options import said_device
from meanteacher.data import TrainTest
from meanteacher.formats import percent
from meanteacher.recipes import Recipe, run


def run_folder(out: Path, recipe: Recipe, seed: int) -> Path:
    """Where one of the runs is."""
    return out / recipe.name / f"seed-{seed}"


def train_all(
    console: Console,
    recipes: Mapping[str, Recipe],
    *,
    draws: int,
    out: Path,
    data: TrainTest,
    device: str,
    should_stop: Callable[[], bool],
) -> bool:
    """Train what is missing in `out`, draw by draw, so that what is there can always be compared.

    Args:
        console: where the errors of each draw are printed
        recipes: what a reader calls it -> the recipe; all of the same data
        draws: of the labelled set, with the seeds 0, 1, …
        out: a folder for all of the runs
        data: what the recipes' source loads
        device: where to compute
        should_stop: asked after every step; True saves and ends

    Returns:
        Whether everything is there. If not, the same call goes on exactly where this one ended.
    """
    # These networks are too small for two threads to share a layer: they would only wait for each other.
    torch.set_num_threads(1)
    with _bar(console) as bar:
        task = bar.add_task("", total=len(recipes) * draws)
        for seed in range(draws):
            errors = []
            for name, recipe in recipes.items():
                bar.update(task, description=escape(f"draw {seed + 1}: {name}"))
                folder = run_folder(out, recipe, seed)
                resume = (folder / "run.json").exists()
                outcome = run(
                    recipe, seed=seed, out=folder, data=data, resume=resume, device=device, should_stop=should_stop
                )
                if outcome.record is None:
                    return False
                errors.append(f"{name} {percent(outcome.record['errors']['last']['teacher']['test'])}")
                bar.advance(task)
            console.print(escape(f"draw {seed + 1}: {', '.join(errors)}"), highlight=False, soft_wrap=True)
    return True


def say_how_to_go_on(console: Console, device: str, *command: str) -> None:
    """After an interruption: the command that goes on, to be copied."""
    words = escape(shlex.join(["meanteacher", *command, *said_device(device)]))
    console.print(f"Interrupted; nothing is lost. Go on with: {words}", highlight=False, soft_wrap=True)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )
