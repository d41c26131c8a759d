"""The layout of the paper's tables and figures, cell by cell, as names of recipes.

Tables of our own, whose comparisons are not in the paper, have the same form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meanteacher.methods import METHODS


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

_SVHN_QUOTED: dict[str, tuple[Cell, ...]] = {
    "GAN (Salimans et al. 2016)": _cells("table1/svhn", "gan", "", "500", "1000", ""),
    "Pi model (Laine & Aila 2017)": _cells("table1/svhn", "pi-model-laine", "", "500", "1000", "all"),
    # Cells without a number in the paper have a recipe, so that all systems can be compared in every column.
    "Temporal Ensembling (Laine & Aila 2017)": _cells("table1/svhn", "temporal-ensembling", *_SVHN),
    "VAT+EntMin (Miyato et al. 2017)": _cells("table1/svhn", "vat-entmin", "250", "500", "1000", ""),
}
_SVHN_OURS: dict[str, tuple[Cell, ...]] = {
    "Supervised-only": _cells("table1/svhn", "supervised", *_SVHN),
    "Pi model": _cells("table1/svhn", "pi-model", *_SVHN),
    "Mean Teacher": _cells("table1/svhn", "mean-teacher", *_SVHN),
}
_CIFAR10_QUOTED: dict[str, tuple[Cell, ...]] = {
    "GAN (Salimans et al. 2016)": _cells("table2/cifar10", "gan", "", "", "4000", ""),
    "Pi model (Laine & Aila 2017)": _cells("table2/cifar10", "pi-model-laine", "", "", "4000", "all"),
    "Temporal Ensembling (Laine & Aila 2017)": _cells("table2/cifar10", "temporal-ensembling", *_CIFAR10),
    "VAT+EntMin (Miyato et al. 2017)": _cells("table2/cifar10", "vat-entmin", "1000", "2000", "4000", ""),
}
_CIFAR10_OURS: dict[str, tuple[Cell, ...]] = {
    "Supervised-only": _cells("table2/cifar10", "supervised", *_CIFAR10),
    "Pi model": _cells("table2/cifar10", "pi-model", *_CIFAR10),
    "Mean Teacher": _cells("table2/cifar10", "mean-teacher", *_CIFAR10),
}


def _without_augmentation(task: str, *labels: str) -> dict[str, tuple[Cell, ...]]:
    return {
        f"{system}, without augmentation": _cells(f"table5/{task}", method, *labels)
        for system, method in (
            ("Supervised-only", "supervised"),
            ("Pi model", "pi-model"),
            ("Mean Teacher", "mean-teacher"),
        )
    }


TABLES: dict[str, tuple[Table, ...]] = {
    "1": (
        Table(
            name="1",
            title="SVHN: test error with 250, 500, 1000 and all labels",
            columns=("250 labels", "500 labels", "1000 labels", "73257 labels"),
            rows={**_SVHN_QUOTED, **_SVHN_OURS},
        ),
    ),
    "2": (
        Table(
            name="2",
            title="CIFAR-10: test error with 1000, 2000, 4000 and all labels",
            columns=("1000 labels", "2000 labels", "4000 labels", "50000 labels"),
            rows={**_CIFAR10_QUOTED, **_CIFAR10_OURS},
        ),
    ),
    "3": (
        Table(
            name="3",
            title="SVHN: test error with 500 labels and extra unlabelled images",
            columns=("73257 images", "173257 images", "573257 images"),
            rows={
                "Pi model (ours)": (
                    "table1/svhn-500/pi-model",
                    "table3/svhn-500-extra-100k/pi-model",
                    "table3/svhn-500-extra-500k/pi-model",
                ),
                "Mean Teacher": (
                    "table1/svhn-500/mean-teacher",
                    "table3/svhn-500-extra-100k/mean-teacher",
                    "table3/svhn-500-extra-500k/mean-teacher",
                ),
            },
        ),
    ),
    "4": (
        Table(
            name="4",
            title="Residual networks: test error on CIFAR-10, validation error on ImageNet",
            columns=("CIFAR-10, 4000 labels", "ImageNet 2012, 10 % of the labels, top-5 error"),
            rows={
                "State of the art": (
                    "table2/cifar10-4000/vat-entmin",
                    Quoted(
                        error=35.24,
                        spread=0.90,
                        source="Pu et al. 2016, a variational autoencoder",
                        reason="there is no variational autoencoder here",
                    ),
                ),
                "ConvNet Mean Teacher": ("table2/cifar10-4000/mean-teacher", None),
                "ResNet Mean Teacher": (
                    "table4/cifar10-4000/mean-teacher-resnet",
                    "table4/imagenet-10/mean-teacher-resnet",
                ),
                "State of the art using all labels": (
                    Quoted(
                        error=2.86,
                        spread=None,
                        source="Gastaldi 2017, Shake-Shake 26 2x96d trained with all labels",
                        reason="it has no part without labels; the network is that of the row above",
                    ),
                    Quoted(
                        error=3.79,
                        spread=None,
                        source="Hu et al. 2017, squeeze-and-excitation networks",
                        reason="there is no squeeze-and-excitation network here",
                    ),
                ),
            },
        ),
    ),
    "5": (
        Table(
            name="5",
            title="SVHN: test error with and without input augmentation",
            columns=("250 labels", "500 labels", "1000 labels", "all labels"),
            rows={**_SVHN_QUOTED, **_SVHN_OURS, **_without_augmentation("svhn", *_SVHN)},
        ),
        Table(
            name="5",
            title="CIFAR-10: test error with and without input augmentation",
            columns=("1000 labels", "2000 labels", "4000 labels", "all labels"),
            rows={
                **_CIFAR10_QUOTED,
                **_CIFAR10_OURS,
                "Mean Teacher ResNet": (
                    "table5/cifar10-1000/mean-teacher-resnet",
                    None,
                    "table4/cifar10-4000/mean-teacher-resnet",
                    None,
                ),
                **_without_augmentation("cifar10", *_CIFAR10),
            },
        ),
    ),
}
"""number of the table -> its parts"""

OUR_TABLES: dict[str, tuple[Table, ...]] = {
    "cifar10-250": (
        Table(
            name="cifar10-250",
            title="CIFAR-10: test error with 250 labels, every method with the fast network",
            columns=("250 labels",),
            rows={name: (f"compare/cifar10-250/{name}",) for name in METHODS},
        ),
    ),
}
"""name -> its parts. The paper has no number for any of their cells."""

_EVALUATION = "figure4/evaluation"
"""The setting of table 1. Every part of figure 4 contains it, but it is run only once."""


def _varied(panel: str, settings: Mapping[str, str], evaluation: str) -> dict[str, str]:
    """label -> recipe. One label is that of the evaluation setting."""
    return {label: _EVALUATION if label == evaluation else f"{panel}/{name}" for label, name in settings.items()}


def _noise(*, augmented: bool) -> dict[str, str]:
    """Settings with and without input noise and dropout."""
    word, name = ("augmentation", "augmentation") if augmented else ("no augmentation", "no-augmentation")
    return _varied(
        "figure4a",
        {
            f"{word}{', input noise' if noise else ''}{', dropout' if dropout else ''}": (
                f"{name}{'-noise' if noise else ''}{'-dropout' if dropout else ''}"
            )
            for noise in (True, False)
            for dropout in (True, False)
        },
        "augmentation, input noise, dropout",
    )


_RATES = ("0", "0.25", "0.5", "0.75")
_DISTANCES = ("0", "0.001", "0.01", "0.1", "1")

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
    "4a": Figure(
        name="4a",
        title="SVHN, 250 labels: input augmentation, input noise and dropout",
        kind="settings",
        panels={"with augmentation": _noise(augmented=True), "without augmentation": _noise(augmented=False)},
        bold="augmentation, input noise, dropout",
    ),
    "4b": Figure(
        name="4b",
        title="SVHN, 250 labels: dropout of the student and of the teacher",
        kind="settings",
        panels={
            f"student's dropout {student}": _varied(
                "figure4b",
                {f"student {student}, teacher {t}": f"student-{student}-teacher-{t}" for t in _RATES},
                "student 0.5, teacher 0.5",
            )
            # The setting without dropout on either side is in figure 4a.
            | ({"student 0, teacher 0": "figure4a/augmentation-noise"} if student == "0" else {})
            for student in _RATES
        },
        bold="student 0.5, teacher 0.5",
    ),
    "4c": Figure(
        name="4c",
        title="SVHN, 250 labels: weight of the consistency cost, as the authors count it",
        kind="settings",
        panels={
            "consistency weight": _varied(
                "figure4c", {w: f"weight-{w}" for w in ("0", "0.1", "0.3", "1", "3", "10", "30")}, "1"
            )
        },
        bold="1",
    ),
    "4d": Figure(
        name="4d",
        title="SVHN, 250 labels: decay of the teacher's average",
        kind="settings",
        panels={
            "decay": _varied(
                "figure4d",
                {
                    d: f"decay-{d}"
                    for d in ("0", "0.9", "0.97", "0.99", "0.997", "0.999", "0.9997", "0.9999", "0.99, then 0.999")
                },
                "0.99, then 0.999",
            )
        },
        bold="0.99, then 0.999",
    ),
    "4e": Figure(
        name="4e",
        title="SVHN, 250 labels: weight of the distance between two outputs, as the authors count it",
        kind="settings",
        panels={
            "with ramp-up": _varied(
                "figure4e", {"one output": "", **{w: f"distance-{w}" for w in _DISTANCES}}, "one output"
            ),
            "without ramp-up": {
                "one output, no ramp-up": "figure4e/one-output-no-ramp-up",
                **{f"{w}, no ramp-up": f"figure4e/distance-{w}-no-ramp-up" for w in _DISTANCES},
            },
        },
        bold="one output",
    ),
    "4f": Figure(
        name="4f",
        title="SVHN, 250 labels: from squared error (tau = 0) to KL divergence (tau = 1)",
        kind="settings",
        panels={
            "tau": _varied(
                "figure4f",
                {t: f"tau-{t}" for t in ("0", "0.01", "0.1", "0.3", "0.5", "0.7", "0.9", "0.99", "1")},
                "0",
            )
        },
        bold="0",
    ),
}
