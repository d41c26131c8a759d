"""`meanteacher label`."""

import webbrowser
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, say

if TYPE_CHECKING:
    from meanteacher.photos.label.session import Session


def label(
    photos: Annotated[Path, typer.Argument(help="The folder of photos.")],
    classes: Annotated[
        str, typer.Option(metavar="NAME,NAME", help="Classes to begin with; more can be added on the page.")
    ] = "",
    run: Annotated[
        Path | None,
        typer.Option(
            help="The folder of a fit of these photos.", show_default="fit, if it holds one; otherwise no fit is needed"
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV file for the labels. Rows are added to it; a new file starts with the labels of the fit.",
            show_default="the labels file of the fit, RUN/labels.csv, or without a fit labels.csv",
        ),
    ] = None,
    review: Annotated[
        bool, typer.Option("--review", help="Look again at labels that the fit contradicts, the surest first.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port of the page; 0 takes a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address and open no browser.")] = False,
) -> None:
    """Label photos with one key per class, in your browser: before a fit, and after it those that would help most.

    Only this computer can open the page. Every answer is written to the labels file at once.
    """
    from meanteacher.formats import count, escape_name
    from meanteacher.photos.label.opening import open_session
    from meanteacher.photos.label.server import LabelServer

    console = Console()
    names = [name for each in classes.split(",") if (name := each.strip())]
    session = open_session(photos, run, labels, classes=names, review=review)
    nouns = ("label to review", "labels to review") if review else ("photo without a label", "photos without a label")
    over = Event()
    if session.n_left:
        with session.exclusive(), LabelServer(session, port) as server, graceful_stop(console) as should_stop:
            say(console, f"{count(session.n_left, *nouns)}. The page is at")
            say(console, f"  {server.address}")
            say(console, "Every answer is saved at once. Ctrl-C here ends the labelling.")
            if not no_open:
                # In a thread: a text browser returns only when it is closed.
                Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
            choosing = Thread(target=_keep_choosing, args=[session, over.is_set], daemon=True)
            if not review:
                choosing.start()
            try:
                server.serve_until(should_stop)
            finally:
                over.set()
                if choosing.is_alive():  # onnxruntime crashes a process that ends while it computes
                    choosing.join()
    file = escape_name(str(session.file))
    n_new, n_left = session.n_answered, session.n_left
    done = count(n_new, "reviewed label" if review else "new label")
    written = f"{done} in {file}" if n_new else f"Nothing new was written to {file}"
    say(console, f"{written}; {count(n_left, *nouns) if n_left else f'no {nouns[0]}'} left.")
    if session.file.exists():
        say(console, "Fit with all labels so far:")
        say(console, f"  {escape_name(session.command)}")


def _keep_choosing(session: "Session", should_stop: Callable[[], bool]) -> None:
    """Import what computes features in the background, because that takes seconds."""
    from meanteacher.photos.fitting.choosing import keep_choosing

    keep_choosing(session, should_stop)
