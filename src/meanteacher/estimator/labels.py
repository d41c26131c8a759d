"""Labels as scikit-learn's users give them: of any type, and -1 or a missing value if they are unknown."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError

_MARKS = (UNLABELLED, str(UNLABELLED))
"""An unknown label, and what numpy makes of it among strings."""


def read_labels(y: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The known labels, and [N] which rows have one.

    Unknown are -1, NaN, None and pandas' NA. The known labels have the type that numpy gives them without the others.

    >>> labels, known = read_labels(["cat", None, "dog", -1])
    >>> labels.tolist(), known.tolist()
    (['cat', 'dog'], [True, False, True, False])
    >>> read_labels([True, float("nan"), False])[0].dtype
    dtype('bool')
    """
    if y is None:
        raise InputError("A classifier requires y to be passed, but the target y is None.")
    plain = isinstance(y, np.ndarray) and y.dtype.kind != "O"
    values = column_or_1d(y if plain else np.array(y, dtype=object), warn=True)
    if not plain:
        known = np.array([not _is_missing(label) and label not in _MARKS for label in values], dtype=bool)
        return np.array(values[known].tolist()), known
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise InputError("y contains infinity, which is no class. Give -1 or NaN if a label is unknown.")
    known = ~(np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool))
    if values.dtype.kind != "b":  # numpy compares True with 1, never with -1
        known &= values != _MARKS[values.dtype.kind in "SU"]
    return values[known], known


def _is_missing(label: object) -> bool:
    # pandas' own markers are known by name, because this package does without pandas.
    nameless = label is None or type(label).__name__ in ("NAType", "NaTType")
    return nameless or (isinstance(label, float | np.floating) and math.isnan(label))


def encoded(labels: NDArray[Any], known: NDArray[np.bool_], classes: NDArray[Any]) -> Tensor:
    """[N], the position of each known label among the sorted classes, `UNLABELLED` for the others."""
    found = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    strange = classes[found] != labels
    if strange.any():
        raise InputError(
            f"y has the label {labels[strange][0]!r}, which is none of the classes {classes.tolist()}. Name every "
            "class in the first call of partial_fit."
        )
    positions = torch.full((len(known),), UNLABELLED)
    positions[torch.from_numpy(known)] = torch.from_numpy(found)
    return positions
