"""`meanteacher demo`: three methods on the digits, from labels to page."""

import time
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meanteacher.cli.interrupt import graceful_stop
from meanteacher.recipes import Recipe, find, run
from meanteacher.report import answer, display_name, load_records, summarise, to_text, write_page

_METHODS = ("supervised", "pi-model", "mean-teacher")


def run_demo(out: Path, draws: int) -> bool:
    """Train what is missing in `out`, then show everything there. Returns whether it is complete."""
    console = Console()
    # The network is too small for two threads to share a layer: they would only wait for each other.
    torch.set_num_threads(1)
    recipes = [find(f"digits/{name}") for name in _METHODS]
    data = recipes[0].data.source.load(out)
    console.print(
        f"Digits: {len(data.train)} training images, {recipes[0].data.n_labelled} of them labelled, "
        f"{len(data.test)} to test on. {len(recipes)} methods, {draws} draws of the labels each.",
        highlight=False,
    )
    began = time.monotonic()
    with _bar(console) as bar, graceful_stop(lambda: console.print("Saving, then stopping.")) as should_stop:
        task = bar.add_task("", total=len(recipes) * draws)
        for seed in range(draws):
            errors = []
            for recipe in recipes:
                bar.update(task, description=f"draw {seed + 1}: {_name(recipe)}")
                folder = out / recipe.name / f"seed-{seed}"
                resume = (folder / "run.json").exists()
                outcome = run(recipe, seed=seed, out=folder, data=data, resume=resume, should_stop=should_stop)
                if outcome.record is None:
                    bar.stop()
                    console.print(
                        f"Interrupted; nothing is lost. Go on with: meanteacher demo --out {escape(str(out))}"
                    )
                    return False
                errors.append(f"{_name(recipe)} {outcome.record['errors']['last']['teacher']['test']:.1%}")
                bar.advance(task)
            console.print(f"draw {seed + 1}: {', '.join(errors)}", highlight=False)
    records = [record for record in load_records(out) if record.seed < draws]
    console.print()
    console.print(to_text(summarise(records)), highlight=False, soft_wrap=True)
    for sentence in answer(records):
        console.print(sentence, highlight=False)
    page = write_page(records, out / "report.html", f"Digits with {recipes[0].data.n_labelled} labels")
    console.print(f"{time.monotonic() - began:.0f} s. The page: {escape(str(page))}", highlight=False, soft_wrap=True)
    return True


def _name(recipe: Recipe) -> str:
    return display_name(recipe.name.rpartition("/")[2])


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )
