"""The common part of the consistency methods: the cost, its ramped weight, and the rows it applies to."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from meanteacher.core import UNLABELLED, Batch, Cost, InputError, Scheduled, StepOutput, check_choice
from meanteacher.costs import ConsistencyCost, Mse, logit_distance
from meanteacher.methods.supervised import M, TeacherMethod
from meanteacher.passes import Logits, both_outputs, per_place
from meanteacher.schedules import as_schedule

ConsistencyOn = Literal["all", "unlabelled"]


@dataclass(frozen=True, kw_only=True)
class ConsistencyMethod(TeacherMethod[M]):
    """Two views of each image must get the same prediction. The methods differ in the source of the target."""

    weight: Scheduled
    cost: ConsistencyCost = Mse()
    consistency_on: ConsistencyOn = "all"
    """The authors leave labelled rows out on semi-supervised SVHN only."""
    logit_distance: float | None = None
    """Weight of the cost on the distance of a network's two outputs (Sec. 3.4); None for a network with one output."""
    roles: ClassVar[tuple[str, ...]] = ("student", "teacher")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("consistency_on", self.consistency_on, get_args(ConsistencyOn))

    def outputs(self, output: Logits) -> tuple[Tensor, Tensor]:
        """The student's logits for classification and for consistency."""
        both = both_outputs(output)
        if (self.logit_distance is None) == isinstance(output, tuple):
            raise InputError(
                f"{type(self).__name__}: logit_distance={self.logit_distance} does not fit a network with "
                f"{'two outputs' if isinstance(output, tuple) else 'one output'}. Give a number, for instance 0.01, "
                "with outputs=2, and None with outputs=1. If the second output is not logits but, for instance, "
                "features, select the first: LogitsOf(network, 0)."
            )
        return both

    def checked(self, output: Logits) -> Tensor:
        return self.outputs(output)[0]

    def step_output(
        self,
        logits: Tensor,
        consistency_logits: Tensor,
        target: Tensor,
        batch: Batch,
        step: int,
        rows: Tensor | None = None,
    ) -> StepOutput:
        """The classification cost, the consistency cost, and for two outputs the cost on their distance.

        All logits have one shape, [B, C] or [B, C, ...]; the method decides whether the target is detached. A mask of
        `rows`, bool [B], or [B, ...] per place, keeps rows in addition to `consistency_on`. The consistency cost is
        inactive if none is left.
        """
        weight = as_schedule(self.weight)(step)
        active = self.cost.is_active(target)
        if rows is not None:
            active = active & rows.any()
        value = self.cost(consistency_logits, target, self.consistency_rows(batch, rows))
        costs = {
            "classification": self.classification(logits, batch.labels),
            "consistency": Cost(weight * value, weight * active),
        }
        if self.logit_distance is not None:
            distance = logit_distance(logits, consistency_logits, class_axis=1)
            costs["logit distance"] = Cost(self.logit_distance * distance, self.logit_distance)
        return StepOutput(costs, logits)

    def consistency_rows(self, batch: Batch, rows: Tensor | None = None) -> Tensor | None:
        """Mask of rows: bool [B], or [B, ...] if labels are per place; None for all rows."""
        if self.consistency_on == "all":
            return rows
        unlabelled = self.labels(batch) == UNLABELLED
        return unlabelled if rows is None else unlabelled & per_place(rows, unlabelled.shape)
