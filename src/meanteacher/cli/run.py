"""`meanteacher run`."""

import shlex
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from meanteacher.cli.interrupt import graceful_stop
from meanteacher.cli.options import said_device
from meanteacher.cli.progress import RunProgress, load_data
from meanteacher.formats import percent
from meanteacher.recipes import find, override
from meanteacher.recipes import run as run_in_folder


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
            listeners=(progress,),
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
