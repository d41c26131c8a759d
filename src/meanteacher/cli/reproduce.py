"""`meanteacher table` and `meanteacher figure`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, say
from meanteacher.cli.options import (
    DataOption,
    DeviceOption,
    LogOption,
    MicroBatchOption,
    NprocOption,
    PrecisionOption,
    SettingsOption,
)
from meanteacher.core import InputError
from meanteacher.formats import count, duration

if TYPE_CHECKING:
    from meanteacher.experiment.runs import Run
    from meanteacher.experiment.workers import Trained


def reproduce(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="As the paper numbers it: table 1 to 5, figure 3 or 4a to 4f. Table cifar10-250 compares all methods."
        ),
    ],
    cell: Annotated[
        str,
        typer.Option(
            metavar="TEXT", help="Only cells with this in their name: svhn-500/mean-teacher, svhn-500, mean-teacher."
        ),
    ] = "",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of runs per cell.", show_default="as many as the paper's"),
    ] = None,
    laptop: Annotated[
        bool,
        typer.Option(
            "--laptop",
            help="The laptop version (tables 1 and 2, all figures): a small network, minutes per run on one core. "
            "Its errors are not the paper's.",
        ),
    ] = False,
    preset: Annotated[
        Literal["paper", "as-coded"],
        typer.Option(help="as-coded: the settings of the authors' scripts if they differ from the paper's text."),
    ] = "paper",
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs at the same time; they share the processor's cores.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the missing runs and an estimate of their time here; run nothing.")
    ] = False,
    print_commands: Annotated[
        bool,
        typer.Option("--print-commands", help="Print one command per missing run, for any scheduler; run nothing."),
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Write the table or figure from the runs so far; run nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of all runs, and of the written table or figure.")] = Path("runs"),
    settings: SettingsOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    micro_batch: MicroBatchOption = None,
    log: LogOption = None,
    nproc: NprocOption = 1,
    data: DataOption = None,
) -> None:
    """Reproduce a table or figure of the paper, with the paper's numbers beside ours.

    Trains the missing runs. Complete runs are not run again, interrupted ones are resumed, and runs that another
    process has taken are waited for. Ctrl-C saves all runs; the same command continues. A table is written to
    OUT/table-N.md and .html, a figure to OUT/figure-N.svg and .png.
    """
    from meanteacher.cli.progress import RunsProgress
    from meanteacher.experiment import workers
    from meanteacher.paper import runs
    from meanteacher.train import RunOptions

    console = Console()
    modes = {"--dry-run": dry_run, "--print-commands": print_commands, "--show": show}
    chosen = [flag for flag, given in modes.items() if given]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} do not go together; give one of them.")
    is_table = context.info_name == "table"
    found = runs.find_table(name, laptop=laptop) if is_table else runs.find_figure(name, laptop=laptop)
    wanted = runs.runs_of(
        runs.recipe_names(found, cell=cell), seeds=seeds, preset=preset, out=out, settings=settings or ()
    )
    run_options = RunOptions(device=device, precision=precision, micro_batch=micro_batch)
    if dry_run:
        _plan(console, wanted, jobs, device)
    elif print_commands:
        for line in workers.printed_commands(wanted, workers.command_options(data, run_options, nproc, log)):
            typer.echo(line)
    else:
        from meanteacher.paper.reproduce import figure, table  # they draw, and take a second to import

        with graceful_stop(console) as should_stop, RunsProgress(console, len(wanted), should_stop) as progress:
            result = (table if is_table else figure)(
                name,
                cell=cell,
                seeds=seeds,
                laptop=laptop,
                preset=preset,
                out=out,
                data=data,
                options=run_options,
                settings=settings or (),
                nproc=nproc,
                log=log,
                jobs=jobs,
                train=not show,
                callback=progress,
            )
        say_result(console, result)


def say_result(console: Console, result: "Trained") -> None:
    """Print what the runs show, what failed and what was written."""
    console.print()
    for line in result.text.splitlines():
        say(console, line)
    for problem in result.problems:
        say(console, ("Failed: ", "bold red"), problem)
    for path in result.files:
        say(console, f"Written: {path}")
    if result.problems:
        raise typer.Exit(1)


def _plan(console: Console, wanted: "Sequence[Run]", jobs: int, device: str) -> None:
    """Print the complete and the missing runs, and an estimate of their time."""
    from rich.table import Table

    from meanteacher.paper.runs import estimated_seconds

    states = {run: run.state() for run in wanted}
    missing = [run for run, state in states.items() if state != "complete"]
    seconds = estimated_seconds(missing, device=device)
    shown = Table(box=None, pad_edge=False)
    shown.add_column("recipe", no_wrap=True)
    for heading in ("runs", "complete", "steps", "time per run"):
        shown.add_column(heading, justify="right")
    total = 0.0
    for recipe in {run.recipe.name: run.recipe for run in wanted}.values():
        its = [run for run in wanted if run.recipe.name == recipe.name]
        done = [run for run in its if states[run] == "complete"]
        for run in its:
            if run not in done:
                total += seconds[recipe.name] * (1 - min(1.0, run.steps_done() / recipe.training.steps))
        each = duration(seconds[recipe.name]) if recipe.name in seconds else "–"
        shown.add_row(recipe.name, str(len(its)), str(len(done)), f"{recipe.training.steps:,}", each)
    console.print(shown)
    say(
        console,
        f"{count(len(missing), 'run')} to train, about {duration(total)} of training on this machine, one run at a time"
        + (f"; with --jobs {jobs} the runs share the cores" if jobs > 1 else "")
        + ". Evaluations come on top. Nothing was run.",
    )
