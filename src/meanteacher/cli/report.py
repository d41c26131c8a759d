"""`meanteacher report`: the pages of fits and of runs."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import say


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER", help="Folders of fits, and folders with runs at any depth.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file for the page about runs.", show_default="report.html in the only folder of runs"),
    ] = None,
) -> None:
    """Write the report of a fit again, or one page about runs.

    The page about runs shows the errors of each recipe with their spread over the seeds, the paper's result beside
    them, the differences paired by seed, and the curves. A fit gets its own report.html and MODEL_CARD.md again.
    """
    say(Console(), f"Written: {', '.join(map(str, write_report(folders, out)))}")


def write_report(folders: Iterable[str | Path], out: str | Path | None = None) -> list[Path]:
    """Write the pages of fits and of runs, and return their paths. Everything is read before anything is written.

    A fit gets its own report.html and MODEL_CARD.md in its folder. All runs together get one page: `out`, or else
    report.html in the folder of the runs, or in the current folder if the runs are in several.

    Raises:
        RecordError: a folder holds neither a fit nor a complete run, or the runs do not fit together.
    """
    from meanteacher.files import write_atomic
    from meanteacher.files.typed import RecordError
    from meanteacher.formats import listed
    from meanteacher.photos.pages import fit_pages
    from meanteacher.records import load_records, read_fit
    from meanteacher.report import PAGE, render_page

    given = [Path(folder) for folder in folders]
    fits = {folder: read_fit(folder) for folder in given if (folder / "fit.json").exists()}
    runs = [folder for folder in given if folder not in fits]
    if out is not None and not runs:
        raise RecordError(f"{out}: the report of a fit is written into its own folder. Leave --out out.")
    # A run that is below two of the folders counts once.
    records = {Path(record.file).resolve(): record for folder in runs for record in load_records(folder)}
    pages: dict[Path, str] = {}
    for folder, fit in fits.items():
        # The folder may have been moved since.
        pages |= fit_pages(replace(fit, folder=str(folder.resolve())), folder)
    if runs:
        page = Path(out) if out is not None else (runs[0] if len(runs) == 1 else Path()) / PAGE
        title = listed([folder.resolve().name for folder in runs])
        pages[page / PAGE if page.is_dir() else page] = render_page(records.values(), title)
    for path, content in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return list(pages)
