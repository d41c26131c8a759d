"""`meanteacher run`, of one run or a sweep, `meanteacher list` and `meanteacher show`."""

from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from meanteacher.cli.console import graceful_stop, is_first_rank, progress_bar, say
from meanteacher.cli.launch import start_processes
from meanteacher.cli.options import (
    DataOption,
    DeviceOption,
    LogOption,
    MicroBatchOption,
    NprocOption,
    PrecisionOption,
    ResumeOption,
    SettingsOption,
    StartOrResumeOption,
)
from meanteacher.core import InputError

if TYPE_CHECKING:
    from meanteacher.train import RunOptions, ScalarLogger
    from meanteacher.train.loggers import LoggerName


def recipe_names() -> list[str]:
    """The names of all recipes, for the shell: from a list, because the recipes themselves import torch."""
    return files("meanteacher").joinpath("recipes", "names.txt").read_text(encoding="utf-8").split()


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Name of a recipe, for instance digits/mean-teacher, or FILE.py:NAME for one of your own.",
            autocompletion=recipe_names,
        ),
    ],
    seed: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Determines the labelled set, the batches, the noise and the initial weights."
        ),
    ] = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sweep: N runs, with the seeds 0 to N-1.", show_default="one")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for this run; for a sweep, the folder of all runs.", show_default="runs/RECIPE/seed-N, or runs"
        ),
    ] = None,
    resume: ResumeOption = False,
    start_or_resume: StartOrResumeOption = False,
    settings: SettingsOption = None,
    device: DeviceOption = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the networks, which takes minutes and pays on GPUs.")
    ] = False,
    precision: PrecisionOption = None,
    micro_batch: MicroBatchOption = None,
    sync_batch_norm: Annotated[
        bool,
        typer.Option("--sync-batch-norm", help="Several processes: batch statistics of all, not of each process."),
    ] = False,
    log: LogOption = None,
    nproc: NprocOption = 1,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Sweep: runs at the same time; they share the processor's cores.")
    ] = 1,
    print_commands: Annotated[
        bool,
        typer.Option("--print-commands", help="Sweep: print one command per missing run, for any scheduler."),
    ] = False,
    data: DataOption = None,
) -> None:
    """Train one recipe and write its record.

    Ctrl-C finishes the step, saves, and prints the command that resumes. A resumed run ends with the same weights, to
    the byte, as an uninterrupted one. Exit codes: 0 complete, 1 lost another process, 2 invalid input, 3 diverged, 75
    interrupted.

    Several processes train one network with --nproc, torchrun or srun, with the batches of one process.

    A sweep, --seeds 5 --set method.weight.value=1,3,10, trains every combination. Complete runs are not run again, so
    the same command continues it. A page with the differences paired by seed is written to
    OUT/sweep-RECIPE-FIELDS.html, tables and curves as CSV and JSON beside it.
    """
    settings = settings or []
    is_sweep = seeds is not None or jobs > 1 or print_commands
    may_be_sweep = is_sweep or any("," in setting for setting in settings)
    if not may_be_sweep and start_processes(nproc):
        return
    from meanteacher import api, experiment
    from meanteacher.cli.progress import RunProgress, alarm_parts
    from meanteacher.data.download import data_folder
    from meanteacher.experiment.runs import Run
    from meanteacher.formats import count, percent
    from meanteacher.train import RunOptions, StopWhen

    console = Console(quiet=not is_first_rank())
    options = RunOptions(
        device=device, compile=compiled, precision=precision, micro_batch=micro_batch, sync_batch_norm=sync_batch_norm
    )
    given = api.load_recipe(recipe)
    if may_be_sweep:
        from meanteacher.sweeps import variants

        # A value with a comma may be a list that is one value.
        if is_sweep or len(variants(given, settings)) > 1:
            if nproc > 1 or seed:
                raise InputError("A sweep takes --jobs instead of --nproc, and --seeds instead of --seed.")
            _sweep(console, recipe, settings, seeds or 1, out or Path("runs"), data, options, jobs, log, print_commands)
            return
        if start_processes(nproc):
            return
    chosen = experiment.override(given, *settings)
    if chosen is not given:
        say(console, chosen.deviations[-1])
    out = out or Run(recipe, chosen, seed).folder
    loggers = [_logger(log, chosen.name, seed, out)] if log else []
    with progress_bar(console, DownloadColumn(), TransferSpeedColumn()) as show:
        loaded = chosen.data.source.load(data_folder(data), partial(show, "Downloading"))
    n_images = len(loaded.test)
    with (
        RunProgress(console, chosen.name, steps=chosen.training.steps, n_images=n_images) as progress,
        graceful_stop(console) as should_stop,
        ExitStack() as stack,
    ):
        for logger in loggers:
            stack.enter_context(logger)
        record = api.run(
            chosen,
            seed=seed,
            out=out,
            data=loaded,
            resume="auto" if start_or_resume else resume,
            options=options,
            callbacks=(progress, *loggers, StopWhen(should_stop)),
        )
    last = record.errors.last
    student, teacher = (percent(model.test, n_images) for model in (last.student, last.teacher))
    say(console, f"Complete. Test error after {last.step:,} steps: student {student}, teacher {teacher}.")
    if last.student.test_top5 is not None and last.teacher.test_top5 is not None:
        student, teacher = (percent(error, n_images) for error in (last.student.test_top5, last.teacher.test_top5))
        say(console, f"Top-5 error: student {student}, teacher {teacher}.")
    for part, broken in record.data.broken.items():
        say(console, f"{count(broken.n, f'{part} image')} cannot be used, such as {broken.first[0]}.")
    for alarm in record.alarms:
        say(console, *alarm_parts(alarm.step, alarm.sentence))
    say(console, f"Record: {out / 'record.json'}")


def _sweep(
    console: Console,
    recipe: str,
    settings: list[str],
    seeds: int,
    out: Path,
    data: Path | None,
    options: "RunOptions",
    jobs: int,
    log: "LoggerName | None",
    print_commands: bool,
) -> None:
    from meanteacher.cli.progress import RunsProgress
    from meanteacher.cli.reproduce import say_result
    from meanteacher.experiment.workers import command_options, printed_commands
    from meanteacher.sweeps import runs_of_sweep, sweep

    runs = runs_of_sweep(recipe, settings, seeds=seeds, out=out)
    if print_commands:
        for line in printed_commands(runs, command_options(data, options, log=log)):
            typer.echo(line)
        return
    with graceful_stop(console) as should_stop, RunsProgress(console, len(runs), should_stop) as progress:
        result = sweep(
            recipe, settings, seeds=seeds, out=out, data=data, options=options, jobs=jobs, log=log, callback=progress
        )
    say_result(console, result)


def _logger(name: "LoggerName", recipe: str, seed: int, out: Path) -> "ScalarLogger":
    from meanteacher.train import TensorBoardLogger, WandbLogger

    if name == "tensorboard":
        return TensorBoardLogger(out / "tensorboard")
    return WandbLogger(name=f"{recipe}, seed {seed}", folder=out, dir=out)


def show(
    recipe: Annotated[
        str,
        typer.Argument(help="Name of a recipe, or FILE.py:NAME for one of your own.", autocompletion=recipe_names),
    ],
) -> None:
    """Print every field of a recipe, what the paper reports for it, and how it deviates from the paper.

    Fields are named as --set takes them. A class is named in the line of its field, and its own fields follow.
    """
    from meanteacher import api
    from meanteacher.experiment.describe import fingerprint
    from meanteacher.experiment.override import lines

    console, found = Console(), api.load_recipe(recipe)
    claim = found.claim
    about = [("fingerprint", fingerprint(found))]
    about.append(("paper", "no result" if claim is None else f"{claim} % {claim.metric}, {claim.where}"))
    about += [("deviation", deviation) for deviation in found.deviations]
    for name, value in [*lines(found), *about]:
        say(console, (f"{name:<36}  ", "bold"), value)


def list_recipes(
    pattern: Annotated[str, typer.Argument(help="Only recipes with this in their name.")] = "",
) -> None:
    """List the recipes, with the paper's error if it reports one."""
    from rich.table import Table

    from meanteacher.recipes import RECIPES

    chosen = [recipe for name, recipe in RECIPES.items() if pattern in name]
    if not chosen:
        raise InputError(f"No recipe has {pattern!r} in its name. List all with: meanteacher list")
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for heading in ("labels", "steps", "paper's error %"):
        table.add_column(heading, justify="right")
    for recipe in chosen:
        labels = "all" if recipe.data.n_labelled is None else str(recipe.data.n_labelled)
        table.add_row(recipe.name, labels, str(recipe.training.steps), str(recipe.claim or ""))
    Console().print(table)
