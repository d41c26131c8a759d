"""The commands, each a thin layer over a function of the package."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from meanteacher.cli import photos
from meanteacher.cli.console import EXIT_INTERRUPTED, DeviceOption, errors_explained, keep_freed_memory, recipe_names

app = typer.Typer(
    name="meanteacher",
    help="Learn from few labels and many unlabelled images, with Mean Teacher and the methods it is compared to.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=True,
)

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="MEANTEACHER_DATA",
        help="Folder of the data files; missing ones are downloaded to it.",
        show_default="~/.cache/meanteacher",
    ),
]


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"meanteacher {version('meanteacher')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None: ...


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("demo"),
    draws: Annotated[int, typer.Option(min=2, help="How many label draws each method is trained on.")] = 6,
    device: DeviceOption = "auto",
) -> None:
    """See it work in a minute: supervised-only, Pi model and Mean Teacher on the digits with 40 labels.

    Trains each method on several draws of the labels, prints the errors of student and teacher side by side with
    their spread and the paired gain over supervised-only, and writes a page with the curves. Running it again
    with the same folder shows the finished runs and trains only what is missing.
    """
    with errors_explained():
        from meanteacher.cli.demo import run_demo

        finished = run_demo(out, draws, device)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command()
def gallery(
    out: Annotated[Path, typer.Option(help="Folder for the page, methods.md, and what it shows.")] = Path("gallery"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs themselves.")] = Path("runs/gallery"),
    draws: Annotated[int, typer.Option(min=2, max=10, help="How many label draws each method is trained on.")] = 10,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Write the page again from its numbers and pictures; train nothing.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """See every method decide: all of them on two moons with 6 labels, in a few minutes.

    Trains each method on several draws of the labels, draws the decision of the draw with the median error, and
    writes a page with the errors, the paired difference to supervised-only and a picture a method. Running it again
    trains only what is missing. Ctrl-C saves, and the exit code is 75.
    """
    with errors_explained():
        from meanteacher.cli.gallery import run_gallery, write_methods_page

        if page_only:
            finished = bool(write_methods_page(out))
        else:
            finished = run_gallery(out=out, runs=runs, draws=draws, device=device)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command()
def run(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe's name, for instance small/svhn-500/mean-teacher.", autocompletion=recipe_names),
    ],
    seed: Annotated[
        int, typer.Option(min=0, help="Draws the labelled set, the batches, the noise and the first weights.")
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for this run.", show_default="runs/RECIPE/seed-N")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder, exactly.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the recipe, e.g. steps=300 or method.weight.value=50. Repeatable.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    compiled: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option("--compile", help="Compile the networks; auto: if that is measured to pay within this run."),
    ] = "auto",
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="What the networks compute in; auto: bfloat16 on a CUDA GPU that has it, else float32."),
    ] = "auto",
    data: DataOption = None,
) -> None:
    """Train one recipe and write its record.

    Ctrl-C finishes the step, saves, and says how to resume; the resumed run ends with the same weights, to the
    byte, as one that was never interrupted. Exit codes: 0 complete, 2 something given is wrong, 3 diverged,
    75 interrupted and resumable.
    """
    with errors_explained():
        from meanteacher.cli.run import run_recipe

        finished = run_recipe(
            recipe,
            seed=seed,
            out=out,
            resume=resume,
            device=device,
            compiled=compiled,
            precision=precision,
            settings=settings or [],
            data=data,
        )
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command("list")
def list_recipes(
    pattern: Annotated[str, typer.Argument(help="Only recipes with this in their name.")] = "",
) -> None:
    """List the recipes, with the paper's error where it reports one."""
    with errors_explained():
        from meanteacher.cli.run import print_recipes

        print_recipes(pattern)


for _command in (photos.fit, photos.check, photos.predict, photos.evaluate, photos.export, photos.report, photos.label):
    app.command()(_command)


class _Command(TyperCommand):
    """Refuses an option that is given twice, of which the last would otherwise win in silence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option in given:
                if given.count(option) > 1 and _takes_one_value(option):
                    names = "/".join((*option.opts, *option.secondary_opts))
                    ctx.fail(f"{names} is given {given.count(option)} times. Give it once a run.")
        return super().parse_args(ctx, args)


def _takes_one_value(option: Any) -> bool:
    """A switch without a counterpart means the same however often it is given."""
    return not option.multiple and (bool(option.secondary_opts) or not option.is_flag)


for _info in app.registered_commands:
    _info.cls = _Command


def main() -> None:
    keep_freed_memory()
    # The name is part of what the shell's completion asks by, and on Windows the file is called meanteacher.exe.
    sys.exit(app(prog_name="meanteacher"))
