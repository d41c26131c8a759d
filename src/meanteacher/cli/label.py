"""`meanteacher label`."""

import webbrowser
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, say


def label(
    photos: Annotated[Path, typer.Argument(help="The photos that the fit was given.")],
    run: Annotated[Path, typer.Option(help="The folder of the fit.")] = Path("fit"),
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV file for the labels. Rows are added to it; a new file starts with the labels of the fit.",
            show_default="RUN/labels.csv",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port of the page; 0 takes a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address and open no browser.")] = False,
) -> None:
    """Label the images that would help most, with one key per class, in your browser.

    Only this computer can open the page. Every answer is written to the labels file at once.
    """
    from meanteacher.formats import count, escape_name
    from meanteacher.photos.label.server import LabelServer
    from meanteacher.photos.label.session import open_session

    console = Console()
    session = open_session(photos, run, labels)
    if session.n_left:
        with LabelServer(session, port) as server, graceful_stop(console) as should_stop:
            say(console, f"{count(session.n_left, 'image')} to label, in the browser at")
            say(console, f"  {server.address}")
            say(console, "Every answer is saved at once. Ctrl-C here ends the labelling.")
            if not no_open:
                # In a thread: a text browser returns only when it is closed.
                Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
            server.serve_until(should_stop)
    file = escape_name(str(session.file))
    n_new, n_left = session.n_answered, session.n_left
    written = f"{count(n_new, 'new label')} in {file}" if n_new else f"Nothing new was written to {file}"
    left = f"{count(n_left, 'image')} left to label" if n_left else "every image is labelled"
    say(console, f"{written}; {left}.")
    if session.file.exists():
        say(console, "Train with all labels so far:")
        say(console, f"  {escape_name(session.command)}")
