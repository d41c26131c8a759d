"""How a command ends: its exit codes, and one clear sentence for what a person can mend."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

EXIT_INPUT = 2
EXIT_DIVERGED = 3
EXIT_INTERRUPTED = 75


@contextmanager
def errors_explained() -> Iterator[None]:
    """A sentence for what a person can mend; a traceback only for what we must."""
    from meanteacher.core import DivergedError, InputError

    try:
        yield
    except InputError as error:
        typer.secho(f"Error: {error}", fg="red", err=True)
        raise typer.Exit(EXIT_INPUT) from error
    except DivergedError as error:
        typer.secho(f"Diverged: {error}", fg="red", err=True)
        raise typer.Exit(EXIT_DIVERGED) from error
