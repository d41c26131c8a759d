"""`meanteacher label`."""

import webbrowser
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.markup import escape

from meanteacher.cli.console import graceful_stop
from meanteacher.formats import count
from meanteacher.label.server import LabelServer
from meanteacher.label.session import Session, open_session
from meanteacher.photos.find import escape_name


def run_label(photos: Path, run: Path, labels: Path | None, port: int, open_browser: bool) -> None:
    """Ask in a browser until Ctrl-C, then say what was written and how to train with it."""
    console = Console()
    session = open_session(photos, run, labels)
    if session.n_left:
        _serve(console, session, port, open_browser)
    _say_how_to_go_on(console, session)


def _serve(console: Console, session: Session, port: int, open_browser: bool) -> None:
    with (
        LabelServer(session, port) as server,
        graceful_stop(lambda: console.print("Stopping.")) as should_stop,
    ):
        console.print(f"{count(session.n_left, 'image')} to label, in the browser at", highlight=False)
        console.print(f"  {server.address}", soft_wrap=True, highlight=False)
        console.print("Every answer is saved at once; Ctrl-C here ends it.", highlight=False)
        if open_browser:
            # In a thread: a browser without a window holds its caller until it is closed.
            Thread(target=webbrowser.open, args=[server.address], daemon=True).start()
        server.serve_until(should_stop)


def _say_how_to_go_on(console: Console, session: Session) -> None:
    file = escape(escape_name(str(session.file)))
    n_new, n_left = session.n_answered, session.n_left
    written = f"{count(n_new, 'new label')} in {file}" if n_new else f"Nothing new was written to {file}"
    left = f"{count(n_left, 'image')} left to label" if n_left else "every image is labelled"
    console.print(f"{written}; {left}.", highlight=False, soft_wrap=True)
    if session.file.exists():
        console.print("Train with all labels so far:", highlight=False)
        console.print(f"  {escape(escape_name(session.command))}", soft_wrap=True, highlight=False)
