"""Which rows the consistency cost applies to."""

from typing import Literal

from torch import Tensor

from meanteacher.core import UNLABELLED

ConsistencyOn = Literal["all", "unlabelled"]


def consistency_rows(labels: Tensor, consistency_on: ConsistencyOn) -> Tensor | None:
    """[B] of bool, or None for every row.

    The authors leave the labelled row of a batch out on semi-supervised SVHN and nowhere else.
    """
    return None if consistency_on == "all" else labels == UNLABELLED
