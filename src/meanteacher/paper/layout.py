"""The layout of the paper's tables and figures, cell by cell, as names of recipes.

Tables of our own, whose comparisons are not in the paper, and laptop versions have the same form.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meanteacher.methods import METHODS
from meanteacher.paper.recipes import RECIPES
from meanteacher.paper.recipes.figure4 import LAPTOP as LAPTOP_GRID
from meanteacher.paper.recipes.figure4 import PAPER as PAPER_GRID
from meanteacher.paper.recipes.figure4 import TITLES, Grid
from meanteacher.records import Claim


@dataclass(frozen=True)
class Quoted:
    """A number of the paper that is quoted from other work and not reproduced here."""

    claim: Claim
    why: str
    """The work that the number is from, and the reason why there is no recipe."""


Row = tuple[str | Quoted | None, ...]
"""Cells: names of recipes, quoted numbers, or None for an empty one."""


@dataclass(frozen=True)
class Table:
    """A table, or one part of it. All rows have the same columns."""

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Row]
    """name of the system in the paper -> one cell per column"""


@dataclass(frozen=True)
class Figure:
    """Curves over the training steps, or one value per setting. The paper prints no numbers for figures."""

    title: str
    panels: Mapping[str, Mapping[str, str]]
    """panel -> label of the curve or setting -> name of the recipe"""
    evaluation: tuple[str, str] | None = None
    """Panel and label of the setting of the evaluation runs, which figure 4 marks; None for curves."""


LAPTOP = "laptop/"
"""Start of the name of a recipe of a laptop version. The name of the paper's recipe follows."""
_SVHN = ("250", "500", "1000", "all")
_CIFAR10 = ("1000", "2000", "4000", "all")
_OURS = {"Supervised-only": "supervised", "Pi model": "pi-model", "Mean Teacher": "mean-teacher"}
"""system that the authors ran themselves -> name of its method"""
_SYSTEMS = {
    "GAN (Salimans et al. 2016)": "gan",
    "Pi model (Laine & Aila 2017)": "pi-model-laine",
    "Temporal Ensembling (Laine & Aila 2017)": "temporal-ensembling",
    "VAT+EntMin (Miyato et al. 2017)": "vat-entmin",
    **_OURS,
}
_LAPTOP_SYSTEMS = {"Temporal Ensembling": "temporal-ensembling", **_OURS}
_NAMES = frozenset(recipe.name for recipe in RECIPES)


def _rows(start: str, labels: tuple[str, ...], systems: Mapping[str, str], note: str = "") -> dict[str, Row]:
    """The recipes of systems with these numbers of labels.

    Some cells without a number in the paper have a recipe, so that all systems can be compared in every column.
    """
    rows = {system: [f"{start}-{n}/{method}" for n in labels] for system, method in systems.items()}
    return {f"{system}{note}": tuple(name if name in _NAMES else None for name in row) for system, row in rows.items()}


_SVHN_ROWS = _rows("table1/svhn", _SVHN, _SYSTEMS)
_CIFAR10_ROWS = _rows("table2/cifar10", _CIFAR10, _SYSTEMS)
_EXTRA = ("table1/svhn-500", "table3/svhn-500-extra-100k", "table3/svhn-500-extra-500k")
_RESNETS: dict[str, Row] = {
    "State of the art": (
        "table2/cifar10-4000/vat-entmin",
        Quoted(
            Claim(error=35.24, spread=0.90, where="Table 4"),
            "Pu et al. 2016, a variational autoencoder; there is no variational autoencoder here.",
        ),
    ),
    "ConvNet Mean Teacher": ("table2/cifar10-4000/mean-teacher", None),
    "ResNet Mean Teacher": ("table4/cifar10-4000/mean-teacher-resnet", "table4/imagenet-10/mean-teacher-resnet"),
    "State of the art using all labels": (
        Quoted(
            Claim(error=2.86, spread=None, where="Table 4"),
            "Gastaldi 2017, Shake-Shake 26 2x96d trained with all labels; it has no part without labels; the network "
            "is that of the row above.",
        ),
        Quoted(
            Claim(error=3.79, spread=None, where="Table 4"),
            "Hu et al. 2017, squeeze-and-excitation networks; there is no squeeze-and-excitation network here.",
        ),
    ),
}

_PAPER = (
    Table(
        "Table 1. SVHN: test error with 250, 500, 1000 and all labels",
        ("250 labels", "500 labels", "1000 labels", "73257 labels"),
        _SVHN_ROWS,
    ),
    Table(
        "Table 2. CIFAR-10: test error with 1000, 2000, 4000 and all labels",
        ("1000 labels", "2000 labels", "4000 labels", "50000 labels"),
        _CIFAR10_ROWS,
    ),
    Table(
        "Table 3. SVHN: test error with 500 labels and extra unlabelled images",
        ("73257 images", "173257 images", "573257 images"),
        {
            "Pi model (ours)": tuple(f"{images}/pi-model" for images in _EXTRA),
            "Mean Teacher": tuple(f"{images}/mean-teacher" for images in _EXTRA),
        },
    ),
    Table(
        "Table 4. Residual networks: test error on CIFAR-10, validation error on ImageNet",
        ("CIFAR-10, 4000 labels", "ImageNet 2012, 10 % of the labels, top-5 error"),
        _RESNETS,
    ),
    Table(
        "Table 5. SVHN: test error with and without input augmentation",
        tuple(f"{n} labels" for n in _SVHN),
        {**_SVHN_ROWS, **_rows("table5/svhn", _SVHN, _OURS, ", without augmentation")},
    ),
    Table(
        "Table 5. CIFAR-10: test error with and without input augmentation",
        tuple(f"{n} labels" for n in _CIFAR10),
        {
            **_CIFAR10_ROWS,
            "Mean Teacher ResNet": (
                "table5/cifar10-1000/mean-teacher-resnet",
                None,
                "table4/cifar10-4000/mean-teacher-resnet",
                None,
            ),
            **_rows("table5/cifar10", _CIFAR10, _OURS, ", without augmentation"),
        },
    ),
)
TABLES = {name: tuple(part for part in _PAPER if part.title.startswith(f"Table {name}.")) for name in "12345"}
"""number of the table -> its parts"""

OUR_TABLES = {
    "cifar10-250": (
        Table(
            "CIFAR-10: test error with 250 labels, every method with the fast network",
            ("250 labels",),
            {name: (f"compare/cifar10-250/{name}",) for name in METHODS},
        ),
    ),
    "fast-ablations": (
        Table(
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


def _figure3(systems: Mapping[str, str], title: str, panels: Mapping[str, str]) -> Figure:
    """Curves of these systems; a panel is given by the start of its recipes' names."""
    named = {
        panel: {system: f"{start}/{method}" for system, method in systems.items()} for panel, start in panels.items()
    }
    return Figure(title, named)


def _figure4(grid: Grid, start: str = "") -> dict[str, Figure]:
    """The parts of figure 4, with the start of the names of their recipes."""
    figures = {}
    for part, title in TITLES.items():
        points = [point for point in grid.points() if point.part == part]
        panels: dict[str, dict[str, str]] = {}
        for point in points:
            panels.setdefault(point.panel, {})[point.label] = start + point.name
        (evaluation,) = [(point.panel, point.label) for point in points if point.setting == grid.evaluation]
        figures[part] = Figure(f"SVHN, 250 labels: {title}", panels, evaluation)
    return figures


FIGURES: dict[str, Figure] = {
    "3": _figure3(
        {system: method for system, method in _OURS.items() if method != "supervised"},
        "SVHN: classification cost and error over the first 100000 steps",
        {
            "73257 images, all labels": "figure3/svhn-all",
            "73257 images, 500 labels": "figure3/svhn-500",
            "573257 images, 500 labels": "figure3/svhn-500-extra-500k",
        },
    ),
    **_figure4(PAPER_GRID),
}

# --- laptop versions --------------------------------------------------------------------------------------------------


LAPTOP_TABLES: dict[str, tuple[Table, ...]] = {
    "1": (
        Table(
            "Table 1. SVHN: test error with 250 and 500 labels",
            ("250 labels", "500 labels"),
            _rows(f"{LAPTOP}table1/svhn", ("250", "500"), _LAPTOP_SYSTEMS),
        ),
    ),
    "2": (
        Table(
            "Table 2. CIFAR-10: test error with 1000 and 4000 labels",
            ("1000 labels", "4000 labels"),
            _rows(f"{LAPTOP}table2/cifar10", ("1000", "4000"), _LAPTOP_SYSTEMS),
        ),
    ),
}
"""number of a table -> its laptop version"""

LAPTOP_FIGURES: dict[str, Figure] = {
    "3": _figure3(
        _OURS,
        "classification cost and test error over the training steps",
        {
            "SVHN, 250 labels": f"{LAPTOP}table1/svhn-250",
            "SVHN, 500 labels": f"{LAPTOP}table1/svhn-500",
            "CIFAR-10, 1000 labels": f"{LAPTOP}table2/cifar10-1000",
        },
    ),
    **_figure4(LAPTOP_GRID, LAPTOP),
}
"""number of a figure -> its laptop version. The curves of figure 3 are those of the runs of the tables."""
