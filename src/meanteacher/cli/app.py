"""The command line, assembled: every command is a function of the module that is named after it."""

import io
import sys
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from meanteacher.cli.console import exit_codes, tune_malloc
from meanteacher.cli.demo import demo
from meanteacher.cli.fit import check, fit
from meanteacher.cli.label import label
from meanteacher.cli.pack import pack
from meanteacher.cli.predict import evaluate, export, predict
from meanteacher.cli.report import report
from meanteacher.cli.reproduce import reproduce
from meanteacher.cli.run import list_recipes, run, show


class Group(TyperGroup):
    """Shows the options of the program itself without types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _readable(super().get_params(ctx))


class Command(TyperCommand):
    """Refuses an option that is given twice, of which the last would win silently, and turns errors into exit codes."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _readable(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            ctx.meta["args"] = list(args)
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option in given:
                if given.count(option) > 1 and _takes_one_value(option):
                    names = "/".join((*option.opts, *option.secondary_opts))
                    ctx.fail(f"{names} is given {given.count(option)} times; give it once.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        resume = any(option.name == "resume" for option in self.params)
        with exit_codes(["meanteacher", ctx.info_name, *ctx.meta["args"]], resume=resume):
            return super().invoke(ctx)


def _readable(parameters: list[Any]) -> list[Any]:
    """The parameters as the help shows them: arguments in capitals, and switches without a type."""
    for parameter in parameters:
        if parameter.metavar is None:
            is_argument = isinstance(parameter, TyperArgument)
            parameter.metavar = parameter.name.upper() if is_argument else "" if parameter.is_flag else None
    return parameters


def _takes_one_value(option: Any) -> bool:
    """A switch without a counterpart may be repeated."""
    return not option.multiple and (bool(option.secondary_opts) or not option.is_flag)


app = typer.Typer(
    cls=Group,
    name="meanteacher",
    help="Train an image classifier from few labels and many unlabelled images, by Mean Teacher.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=True,
)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"meanteacher {version('meanteacher')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None: ...


_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Your photos": {
        "fit": fit,
        "check": check,
        "predict": predict,
        "evaluate": evaluate,
        "label": label,
        "export": export,
        "report": report,
    },
    "The paper": {
        "run": run,
        "list": list_recipes,
        "show": show,
        "table": reproduce,
        "figure": reproduce,
        "demo": demo,
    },
    "Tools": {"pack": pack},
}
"""Panel of the help -> its commands, in the order of the help."""
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _help = cleandoc(_command.__doc__ or "").replace("table or figure", _name)
        app.command(_name, cls=Command, help=_help, rich_help_panel=_panel)(_command)


def main() -> None:
    tune_malloc()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without a character must not end a run
    # The shell's completion asks by this name, and on Windows the file is called meanteacher.exe.
    sys.exit(app(prog_name="meanteacher"))
