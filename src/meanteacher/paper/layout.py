"""The layout of the paper's tables and figures, cell by cell, as names of recipes.

Tables of our own, whose comparisons are not in the paper, and laptop versions have the same form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meanteacher.methods import METHODS
from meanteacher.paper.recipes.figure4 import LAPTOP as LAPTOP_GRID
from meanteacher.paper.recipes.figure4 import PAPER as PAPER_GRID
from meanteacher.paper.recipes.figure4 import TITLES, Grid


@dataclass(frozen=True)
class Quoted:
    """A number of the paper that is quoted from other work and not reproduced here."""

    error: float
    """Error in per cent."""
    spread: float | None
    """Standard deviation over the runs; None if the paper prints none."""
    source: str
    """The work that the number is from."""
    reason: str
    """Reason why there is no recipe."""


Cell = str | Quoted | None
"""The name of a recipe, a quoted number, or None for an empty cell of the paper."""


@dataclass(frozen=True)
class Table:
    """A table, or one part of it. All rows have the same columns."""

    name: str
    """Number in the paper, "1" to "5"; a word for a table of our own."""
    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]
    """name of the system in the paper -> one cell per column"""


@dataclass(frozen=True)
class Figure:
    """Curves over the training steps, or one value per setting. The paper prints no numbers for figures."""

    name: str
    """Number in the paper: "3", "4a" to "4f"."""
    title: str
    kind: Literal["curves", "settings"]
    panels: Mapping[str, Mapping[str, str]]
    """panel -> label of the curve or setting -> name of the recipe"""
    bold: str = ""
    """Label of the setting of the evaluation runs, which the paper prints in bold in figure 4."""


def _cells(start: str, end: str, *labels: str) -> tuple[Cell, ...]:
    """One recipe per number of labels; None for an empty one."""
    return tuple(f"{start}-{n}/{end}" if n else None for n in labels)


_SVHN = ("250", "500", "1000", "all")
_CIFAR10 = ("1000", "2000", "4000", "all")
_OURS = {"Supervised-only": "supervised", "Pi model": "pi-model", "Mean Teacher": "mean-teacher"}
"""system that the authors ran themselves -> name of its method"""


def _ours(start: str, labels: tuple[str, ...], note: str = "") -> dict[str, tuple[Cell, ...]]:
    return {f"{system}{note}": _cells(start, method, *labels) for system, method in _OURS.items()}


_SVHN_ROWS = {
    "GAN (Salimans et al. 2016)": _cells("table1/svhn", "gan", "", "500", "1000", ""),
    "Pi model (Laine & Aila 2017)": _cells("table1/svhn", "pi-model-laine", "", "500", "1000", "all"),
    # Cells without a number in the paper have a recipe, so that all systems can be compared in every column.
    "Temporal Ensembling (Laine & Aila 2017)": _cells("table1/svhn", "temporal-ensembling", *_SVHN),
    "VAT+EntMin (Miyato et al. 2017)": _cells("table1/svhn", "vat-entmin", "250", "500", "1000", ""),
    **_ours("table1/svhn", _SVHN),
}
_CIFAR10_ROWS = {
    "GAN (Salimans et al. 2016)": _cells("table2/cifar10", "gan", "", "", "4000", ""),
    "Pi model (Laine & Aila 2017)": _cells("table2/cifar10", "pi-model-laine", "", "", "4000", "all"),
    "Temporal Ensembling (Laine & Aila 2017)": _cells("table2/cifar10", "temporal-ensembling", *_CIFAR10),
    "VAT+EntMin (Miyato et al. 2017)": _cells("table2/cifar10", "vat-entmin", "1000", "2000", "4000", ""),
    **_ours("table2/cifar10", _CIFAR10),
}
_EXTRA = ("table1/svhn-500", "table3/svhn-500-extra-100k", "table3/svhn-500-extra-500k")
_RESNETS: dict[str, tuple[Cell, ...]] = {
    "State of the art": (
        "table2/cifar10-4000/vat-entmin",
        Quoted(35.24, 0.90, "Pu et al. 2016, a variational autoencoder", "there is no variational autoencoder here"),
    ),
    "ConvNet Mean Teacher": ("table2/cifar10-4000/mean-teacher", None),
    "ResNet Mean Teacher": ("table4/cifar10-4000/mean-teacher-resnet", "table4/imagenet-10/mean-teacher-resnet"),
    "State of the art using all labels": (
        Quoted(
            2.86,
            None,
            "Gastaldi 2017, Shake-Shake 26 2x96d trained with all labels",
            "it has no part without labels; the network is that of the row above",
        ),
        Quoted(
            3.79,
            None,
            "Hu et al. 2017, squeeze-and-excitation networks",
            "there is no squeeze-and-excitation network here",
        ),
    ),
}

_PAPER = (
    Table(
        "1",
        "SVHN: test error with 250, 500, 1000 and all labels",
        ("250 labels", "500 labels", "1000 labels", "73257 labels"),
        _SVHN_ROWS,
    ),
    Table(
        "2",
        "CIFAR-10: test error with 1000, 2000, 4000 and all labels",
        ("1000 labels", "2000 labels", "4000 labels", "50000 labels"),
        _CIFAR10_ROWS,
    ),
    Table(
        "3",
        "SVHN: test error with 500 labels and extra unlabelled images",
        ("73257 images", "173257 images", "573257 images"),
        {
            "Pi model (ours)": tuple(f"{images}/pi-model" for images in _EXTRA),
            "Mean Teacher": tuple(f"{images}/mean-teacher" for images in _EXTRA),
        },
    ),
    Table(
        "4",
        "Residual networks: test error on CIFAR-10, validation error on ImageNet",
        ("CIFAR-10, 4000 labels", "ImageNet 2012, 10 % of the labels, top-5 error"),
        _RESNETS,
    ),
    Table(
        "5",
        "SVHN: test error with and without input augmentation",
        tuple(f"{n} labels" for n in _SVHN),
        {**_SVHN_ROWS, **_ours("table5/svhn", _SVHN, ", without augmentation")},
    ),
    Table(
        "5",
        "CIFAR-10: test error with and without input augmentation",
        tuple(f"{n} labels" for n in _CIFAR10),
        {
            **_CIFAR10_ROWS,
            "Mean Teacher ResNet": (
                "table5/cifar10-1000/mean-teacher-resnet",
                None,
                "table4/cifar10-4000/mean-teacher-resnet",
                None,
            ),
            **_ours("table5/cifar10", _CIFAR10, ", without augmentation"),
        },
    ),
)
TABLES = {name: tuple(part for part in _PAPER if part.name == name) for name in ("1", "2", "3", "4", "5")}
"""number of the table -> its parts"""

OUR_TABLES = {
    "cifar10-250": (
        Table(
            "cifar10-250",
            "CIFAR-10: test error with 250 labels, every method with the fast network",
            ("250 labels",),
            {name: (f"compare/cifar10-250/{name}",) for name in METHODS},
        ),
    ),
    "fast-ablations": (
        Table(
            "fast-ablations",
            "Test error of the fast recipe without some of its parts, ten minutes on one core",
            ("SVHN, 250 labels", "CIFAR-10, 1000 labels"),
            {
                system: (f"fast/svhn-250/ablation/{name}", f"fast/cifar10-1000/ablation/{name}")
                for system, name in {
                    "Supervised-only": "supervised",
                    "Pi model, its target detached": "pi-model",
                    "Mean Teacher without the average (decay 0)": "no-average",
                    "Mean Teacher": "mean-teacher",
                    "FixMatch": "fixmatch",
                }.items()
            },
        ),
    ),
}
"""name -> its parts. The paper has no number for any of their cells."""

LAPTOP = "laptop/"
"""Start of the name of a recipe of a laptop version. The name of the paper's recipe follows."""


def _figure4(grid: Grid, start: str = "") -> dict[str, Figure]:
    """The parts of figure 4, with the start of the names of their recipes."""
    figures = {}
    for part, title in TITLES.items():
        points = [point for point in grid.points() if point.part == part]
        panels: dict[str, dict[str, str]] = {point.panel: {} for point in points}
        for point in points:
            panels[point.panel][point.label] = start + point.name
        (bold,) = [point.label for point in points if point.setting == grid.evaluation]
        figures[part] = Figure(part, f"SVHN, 250 labels: {title}", "settings", panels, bold)
    return figures


FIGURES: dict[str, Figure] = {
    "3": Figure(
        name="3",
        title="SVHN: classification cost and error over the first 100000 steps",
        kind="curves",
        panels={
            panel: {
                "Pi model": f"figure3/{task}/pi-model",
                "Mean Teacher": f"figure3/{task}/mean-teacher",
            }
            for panel, task in (
                ("73257 images, all labels", "svhn-all"),
                ("73257 images, 500 labels", "svhn-500"),
                ("573257 images, 500 labels", "svhn-500-extra-500k"),
            )
        },
    ),
    **_figure4(PAPER_GRID),
}

# --- laptop versions --------------------------------------------------------------------------------------------------

_LAPTOP_SYSTEMS = {
    "Supervised-only": "supervised",
    "Pi model": "pi-model",
    "Temporal Ensembling": "temporal-ensembling",
    "Mean Teacher": "mean-teacher",
}


def _laptop_table(name: str, data: str, task: str, labels: tuple[str, str]) -> tuple[Table]:
    title = f"{data}: test error with {' and '.join(labels)} labels"
    columns = tuple(f"{n} labels" for n in labels)
    rows = {system: _cells(f"{LAPTOP}{task}", method, *labels) for system, method in _LAPTOP_SYSTEMS.items()}
    return (Table(name, title, columns, rows),)


LAPTOP_TABLES: dict[str, tuple[Table, ...]] = {
    "1": _laptop_table("1", "SVHN", "table1/svhn", ("250", "500")),
    "2": _laptop_table("2", "CIFAR-10", "table2/cifar10", ("1000", "4000")),
}
"""number of a table -> its laptop version"""

LAPTOP_FIGURES: dict[str, Figure] = {
    "3": Figure(
        name="3",
        title="classification cost and test error over the training steps",
        kind="curves",
        panels={
            panel: {
                system: f"{LAPTOP}{task}/{method}"
                for system, method in _LAPTOP_SYSTEMS.items()
                if system != "Temporal Ensembling"
            }
            for panel, task in (
                ("SVHN, 250 labels", "table1/svhn-250"),
                ("SVHN, 500 labels", "table1/svhn-500"),
                ("CIFAR-10, 1000 labels", "table2/cifar10-1000"),
            )
        },
    ),
    **_figure4(LAPTOP_GRID, LAPTOP),
}
"""number of a figure -> its laptop version. The curves of figure 3 are those of the runs of the tables."""
