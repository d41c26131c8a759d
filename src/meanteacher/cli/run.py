"""`meanteacher run` and `meanteacher list`, and many runs into one folder."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from meanteacher.cli.console import graceful_stop, said_device
from meanteacher.cli.progress import RunProgress, load_data
from meanteacher.core import InputError
from meanteacher.data import TrainTest
from meanteacher.experiment import Recipe, override, run
from meanteacher.experiment import run as run_in_folder
from meanteacher.formats import percent
from meanteacher.recipes import RECIPES, find


def run_recipe(
    name: str,
    *,
    seed: int,
    out: Path | None,
    resume: bool,
    device: str,
    compiled: Literal["auto", "yes", "no"],
    precision: Literal["auto", "float32", "bfloat16"],
    settings: list[str],
    data: Path | None,
) -> bool:
    """Run it to the end, or to an interruption. Returns whether it is complete."""
    console = Console()
    recipe = override(find(name), *settings)
    out = out or Path("runs") / recipe.name / f"seed-{seed}"
    loaded = load_data(console, recipe, data)

    def announce() -> None:
        console.print("Finishing this step and saving; press Ctrl-C again to stop at once.")

    with (
        RunProgress(console, recipe.name, steps=recipe.steps, n_images=len(loaded.test)) as progress,
        graceful_stop(announce) as should_stop,
    ):
        outcome = run_in_folder(
            recipe,
            seed=seed,
            out=out,
            data=loaded,
            resume=resume,
            device=device,
            compiled=compiled,
            precision=precision,
            announce=lambda line: console.print(escape(line), soft_wrap=True, highlight=False),
            callbacks=(progress,),
            should_stop=should_stop,
        )
    if outcome.record is None:
        options = ["--seed", str(seed), "--out", str(out), "--resume"]
        options += [word for setting in settings for word in ("--set", setting)]
        options += ["--data", str(data)] if data else []
        options += said_device(device)
        command = shlex.join(["meanteacher", "run", name, *options])
        console.print(f"Interrupted after step {outcome.step}; nothing is lost. Resume with:", highlight=False)
        console.print(f"  {escape(command)}", soft_wrap=True, highlight=False)
        return False
    last, n_images = outcome.record["errors"]["last"], len(loaded.test)
    console.print(
        f"Complete. Test error after {last['step']:,} steps: student {percent(last['student']['test'], n_images)}, "
        f"teacher {percent(last['teacher']['test'], n_images)}.",
        highlight=False,
    )
    for alarm in outcome.record["alarms"]:
        console.print(f"[bold red]Alarm[/] at step {alarm['step']}: {escape(alarm['sentence'])}", soft_wrap=True)
    console.print(f"Record: {escape(str(out / 'record.json'))}", soft_wrap=True, highlight=False)
    return True


def print_recipes(pattern: str) -> None:
    """One line a recipe."""
    chosen = [recipe for name, recipe in RECIPES.items() if pattern in name]
    if not chosen:
        raise InputError(f"No recipe has {pattern!r} in its name. See all with: meanteacher list")
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for heading in ("labels", "steps", "paper's error %"):
        table.add_column(heading, justify="right")
    for recipe in chosen:
        claim = recipe.claim
        error = f"{claim.error:.2f} ± {claim.spread:.2f}" if claim and claim.spread is not None else ""
        labels = "all" if recipe.data.n_labelled is None else str(recipe.data.n_labelled)
        table.add_row(recipe.name, labels, str(recipe.steps), error)
    Console().print(table)


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
