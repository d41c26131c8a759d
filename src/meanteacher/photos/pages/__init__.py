"""Pages about a fit: its report and its model card, made from fit.json. Never imports torch."""

from pathlib import Path

from meanteacher.files import write_atomic
from meanteacher.photos.pages import fit_page, model_card
from meanteacher.records import Fit
from meanteacher.report import PAGE

__all__ = ["fit_pages", "write_fit_pages"]


def fit_pages(fit: Fit, folder: Path) -> dict[Path, str]:
    """File -> content: the report and the model card of a fit."""
    return {folder / "MODEL_CARD.md": model_card.model_card(fit), folder / PAGE: fit_page.fit_page(fit)}


def write_fit_pages(fit: Fit, folder: Path) -> None:
    """Write the report and the model card of a fit."""
    for path, content in fit_pages(fit, folder).items():
        write_atomic(path, content)
