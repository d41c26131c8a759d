"""What the consistency methods share: a ramped weight, and the rows it applies to."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from meanteacher.core import UNLABELLED, Batch, Schedule, check_choice
from meanteacher.methods.supervised import Supervised

ConsistencyOn = Literal["all", "unlabelled"]


@dataclass(frozen=True, kw_only=True)
class ConsistencyMethod(Supervised):
    """Two views of each image must be classified alike."""

    weight: Schedule
    consistency_on: ConsistencyOn = "all"
    """The authors leave the labelled row of a batch out on semi-supervised SVHN and nowhere else."""
    roles: ClassVar[tuple[str, ...]] = ("student", "teacher")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("consistency_on", self.consistency_on, get_args(ConsistencyOn))

    def consistency_rows(self, batch: Batch) -> Tensor | None:
        """[B] of bool, or None for every row."""
        return None if self.consistency_on == "all" else batch.labels == UNLABELLED
