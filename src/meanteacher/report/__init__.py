"""Records of runs and fits -> tables, figures and offline HTML pages. Reads JSON; never imports torch.

write_report(["runs"])                          # what `meanteacher report runs` does
print(to_text(summarise(load_records("runs"))))
"""

from collections.abc import Iterable
from pathlib import Path

from meanteacher.files import write_atomic
from meanteacher.files.fields import RecordError
from meanteacher.formats import display_name, listed
from meanteacher.report import fit_page, model_card
from meanteacher.report.compare import Difference, Pair, Row, Spread, paired_difference, summarise, to_text
from meanteacher.report.figures import dot_plot, learning_curves
from meanteacher.report.fit_file import FIT_SCHEMA, read_fit
from meanteacher.report.fit_tables import Fit
from meanteacher.report.page import answer, render_page, write_page
from meanteacher.report.records import Claim, Record, load_record, load_records

__all__ = [
    "FIT_SCHEMA",
    "Claim",
    "Difference",
    "Pair",
    "Record",
    "RecordError",
    "Row",
    "Spread",
    "answer",
    "display_name",
    "dot_plot",
    "learning_curves",
    "load_record",
    "load_records",
    "paired_difference",
    "read_fit",
    "render_page",
    "summarise",
    "to_text",
    "write_fit_pages",
    "write_page",
    "write_report",
]

PAGE = "report.html"


def write_report(folders: Iterable[str | Path], out: str | Path | None = None) -> list[Path]:
    """Write the pages of fits and of runs. Everything is read before anything is written.

    A fit gets its own report.html and MODEL_CARD.md in its folder; all runs together get one page.

    Args:
        folders: each that of a fit, or one with runs at any depth below it
        out: the file for the page of the runs; without it report.html in the folder of the runs, or in the current
            folder where the runs are in several

    Returns:
        The files that were written.

    Raises:
        RecordError: a folder holds neither a fit nor a complete run, or the runs do not fit together.
    """
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
        pages |= _fit_pages({**fit, "folder": str(folder.resolve())}, folder)
    if runs:
        page = Path(out) if out is not None else (runs[0] if len(runs) == 1 else Path()) / PAGE
        title = listed([folder.resolve().name for folder in runs])
        pages[page / PAGE if page.is_dir() else page] = render_page(records.values(), title)
    for path, content in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return list(pages)


def write_fit_pages(fit: Fit, folder: Path) -> None:
    """Write the report and the model card of what fit.json holds."""
    for path, content in _fit_pages(fit, folder).items():
        write_atomic(path, content)


def _fit_pages(fit: Fit, folder: Path) -> dict[Path, str]:
    return {folder / "MODEL_CARD.md": model_card.model_card(fit), folder / PAGE: fit_page.fit_page(fit)}
