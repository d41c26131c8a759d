"""Checks of a running training: a cost that trains nothing, a teacher that does not follow, a label that leaks.

Each alarm is a sentence that names the likely cause. Reading the gradients takes one backward pass per cost, so it
happens at steps 0, 1, 2, 4, 8 … and later every thousand; these readings are kept in the record of the run. What is
cheap is also checked whenever the run logs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from meanteacher.core import UNLABELLED, Batch, Cost, labelled_rows
from meanteacher.distributed import ALONE, Ranks
from meanteacher.formats import percent
from meanteacher.records import Alarm, Reading

READ_EVERY = 10
"""Steps between two readings of what is cheap."""
_PATIENCE = 3
"""Readings in a row before an alarm, for what may happen once by chance."""
_ENOUGH_READINGS = 10
"""Readings before an alarm about a whole run."""
_ENOUGH_ROWS = 20
"""Rows of a stream that tell a collapse from a run of examples of one class."""
_ENDLESS_STEPS = 2000
"""An on-line run has no end, so inactive costs and collapsed predictions are judged as in a run of so many steps."""
_COLLAPSED = 0.95
"""Share of one class among the predictions that counts as collapse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the recipe declares. A run that does otherwise raises an alarm."""

    n_labelled: int
    labelled_share: float
    exact: bool
    """Whether every batch has that share, or only the average batch."""
    steps: int
    evaluates_student: bool = False
    """Whether the evaluated network is the student itself: nothing learns from the average, and its decay is 0."""


class Vitals:
    """Checks one run; `declared` is None if it is on-line. Reading changes no weight, not by a bit."""

    def __init__(self, declared: Declared | None) -> None:
        self.declared = declared
        self._steps = _ENDLESS_STEPS if declared is None else declared.steps
        self.readings: list[Reading] = []
        self.alarms: list[Alarm] = []
        self._streaks: dict[str, int] = {}
        self._uncounted: list[tuple[Tensor, Tensor]] = []
        self._labelled: set[int] = set()
        self._rows = 0
        self._labelled_rows = 0
        self._sums: dict[str, float] = {}
        self._gradients: dict[int, dict[str, float]] = {}
        """By step; of the last reading, until `read` takes it."""
        self._before_step = 0.0

    def reads_gradients(self, step: int) -> bool:
        scheduled = step < 2 or step & (step - 1) == 0 if step < 1000 else step % 1000 == 0
        return scheduled or self._streaks.get("overdue", 0) > 0

    def read_gradients(
        self,
        step: int,
        costs: Mapping[str, Cost],
        student: nn.Module,
        trained: Sequence[nn.Parameter],
        labels: Tensor | None = None,
        ranks: Ranks = ALONE,
        scale: float = 1.0,
    ) -> list[Alarm]:
        """Read the student's mode and the gradient of each cost. Call it before `backward` frees the graph.

        In float16 costs are multiplied by `scale`, and their gradients divided by it, so that small ones do not vanish.

        With several processes it is that of the whole batch: one of them may have no labelled row. Labels of None are
        not known: a cost without a row to act on is inactive then.
        """
        raised = []
        if not student.training:
            raised += self._raise(
                step,
                "student-in-evaluation",
                "The student trains in evaluation mode, with old batch statistics and without dropout. Likely cause: "
                "student.train() is missing after an evaluation, or a library returned the network in that mode.",
            )
        unlabelled = labels is not None and not bool((labels != UNLABELLED).any())
        # Labels may be rare in a stream: the next step with one is read instead.
        if self.declared is None and self._streak("overdue", unlabelled) >= _ENDLESS_STEPS // 2:
            raised += self._raise(
                step,
                "no-labels",
                f"No label has arrived in {_ENDLESS_STEPS // 2:,} steps: the classification cost trains nothing. "
                "Likely cause: the labels are lost on their way, or all of them are -1.",
            )
        if unlabelled:
            return raised  # the classification cost has no row to act on
        norms = {name: _gradient_norm(cost.value, trained, ranks, scale) for name, cost in costs.items()}
        self._gradients = {step: norms}
        for name, cost in costs.items():
            dead = norms[name] == 0 and (cost.weight is None or float(cost.weight) != 0)
            # Without a path to the student one reading is enough. With one, the gradient may be zero because
            # teacher and student start equal.
            certain = dead and not cost.value.requires_grad
            if self._streak(f"dead {name}", dead) >= _PATIENCE or certain:
                raised += self._raise(
                    step,
                    f"dead-cost/{name}",
                    f"The cost '{name}' is active, but its gradient on the student is exactly zero: it trains nothing. "
                    "Likely cause: the student's side is detached, or the cost compares the teacher with itself.",
                )
        return raised

    def note_labels(self, batch: Batch) -> None:
        """Keep the labels for the next reading: counting them now would wait for the device. Call it every step."""
        self._uncounted.append((batch.labels, batch.index))

    def read(
        self,
        step: int,
        costs: Mapping[str, Cost],
        student: nn.Module,
        predictor: nn.Module,
        logits: Tensor | None = None,
    ) -> list[Alarm]:
        """Read what is cheap: labels, predictions, and the distance of the teacher."""
        raised = self._check_labels(step) + self._check_rest(step, costs)
        largest = 0.0 if logits is None else _largest_class_share(logits)
        # Few rows of a stream may well be of one class.
        enough = logits is not None and (self.declared is not None or len(logits) >= _ENOUGH_ROWS)
        late = enough and step >= self._steps // 5
        if self._streak("collapse", late and largest > _COLLAPSED) >= _PATIENCE:
            raised += self._raise(
                step,
                "collapse",
                f"{percent(largest)} of the predictions are one class. Likely cause: the consistency weight is "
                "too large for so few labels, or rises too early; lower it or lengthen its ramp-up.",
            )
        distance = None
        if predictor is not student:
            distance = _distance(predictor, student)
            raised += self._check_teacher(step, student, predictor, distance)
        gradients = self._gradients.pop(step, {})
        if gradients and all(map(math.isfinite, gradients.values())):
            self.readings.append(
                Reading(
                    step=step,
                    gradients=gradients,
                    distance=distance,
                    labelled_share=self._labelled_rows / max(self._rows, 1),
                    largest_class_share=largest,
                )
            )
        return raised

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, in plain values."""
        self._count_labels()
        return {
            "readings": [asdict(reading) for reading in self.readings],
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "streaks": self._streaks,
            "labelled": sorted(self._labelled),
            "rows": self._rows,
            "labelled_rows": self._labelled_rows,
            "sums": self._sums,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.readings = [Reading(**reading) for reading in state["readings"]]
        self.alarms = [Alarm(**alarm) for alarm in state["alarms"]]
        self._streaks = dict(state["streaks"])
        self._labelled = set(state["labelled"])
        self._rows, self._labelled_rows = state["rows"], state["labelled_rows"]
        self._sums = dict(state["sums"])

    def _count_labels(self) -> None:
        for labels, index in self._uncounted:
            labelled = labelled_rows(labels.cpu())
            self._rows += len(labelled)
            self._labelled_rows += int(labelled.sum())
            if self.declared is not None and len(self._labelled) <= self.declared.n_labelled:
                self._labelled.update(index.cpu()[labelled].tolist())
        self._uncounted.clear()

    def _check_labels(self, step: int) -> list[Alarm]:
        self._count_labels()
        declared = self.declared
        if declared is None:
            return []
        raised = []
        if len(self._labelled) > declared.n_labelled:
            raised += self._raise(
                step,
                "hidden-labels",
                f"More than the {declared.n_labelled} declared examples have shown a label. Likely cause: "
                "hidden labels enter the batches, or every process draws a labelled set of its own.",
            )
        seen = self._labelled_rows / max(self._rows, 1)
        spread = math.sqrt(declared.labelled_share * (1 - declared.labelled_share) / max(self._rows, 1))
        slack = 0.0 if declared.exact else 6 * spread + 1 / max(self._rows, 1)
        if abs(seen - declared.labelled_share) > slack + 1e-9:
            # Two decimals: a batch of the paper has one labelled row in a hundred.
            shares = [percent(share, n_images=10_000) for share in (seen, declared.labelled_share)]
            raised += self._raise(
                step,
                "labelled-share",
                f"{shares[0]} of the rows are labelled, {shares[1]} were declared. Likely cause: "
                "the sampler and the labelled set do not belong together.",
            )
        return raised

    def _check_rest(self, step: int, costs: Mapping[str, Cost]) -> list[Alarm]:
        """A cost may be inactive until its ramp-up begins, or until the teacher is certain of something."""
        n_read = self._streak("read", condition=True)
        raised = []
        for name, cost in costs.items():
            inactive = cost.weight is not None and float(cost.weight) == 0
            never_acted = self._streak(f"resting {name}", inactive) == n_read
            if never_acted and n_read >= _ENOUGH_READINGS and step >= self._steps // 2:
                time = "half of the run" if self.declared is not None else f"the first {step:,} steps"
                raised += self._raise(
                    step,
                    f"resting-cost/{name}",
                    f"The cost '{name}' has trained nothing in {time}. Likely cause: its weight is zero, or "
                    "the teacher was never certain enough; lower the threshold of the cost, or give more labels.",
                )
        return raised

    def _check_teacher(self, step: int, student: nn.Module, predictor: nn.Module, distance: float) -> list[Alarm]:
        raised = []
        # One that shares the student's tensors has its gradients, too, and is reported below.
        if distance and any(p.grad is not None for p in predictor.parameters()):
            raised += self._raise(
                step,
                "teacher-gradient",
                "A gradient has reached the teacher's weights. Likely cause: the teacher's pass is not under "
                "no_grad, or the optimiser was given its parameters; only the average may move it.",
            )
        before, self._sums = self._sums, {"student": _checksum(student), "teacher": _checksum(predictor)}
        # Before the first label nothing trains; between two steps, as with accumulated gradients, nothing moves.
        trains = step > 0 and not self._streaks.get("overdue")
        if before.get("student") == self._sums["student"]:
            if trains and self._streak("still student", condition=True) >= _ENOUGH_READINGS:
                raised += self._raise(
                    step,
                    "still-student",
                    "The student's weights do not change. Likely cause: the optimiser was given the parameters of "
                    "another network, its learning rate is 0, or its step is not called.",
                )
            return raised
        self._streak("still student", condition=False)
        if self._streak("stale teacher", before.get("teacher") == self._sums["teacher"]) >= _PATIENCE:
            raised += self._raise(
                step,
                "stale-teacher",
                "The student moves and the teacher does not. Likely cause: the average is not updated after "
                "the step, or its decay is 1.",
            )
        # After step 0 the average is that of one student, so the two are equal.
        by_design = self.declared is not None and self.declared.evaluates_student
        if self._streak("equal teacher", distance == 0 and trains and not by_design) >= _PATIENCE:
            raised += self._raise(
                step,
                "teacher-is-student",
                "Teacher and student have the same weights. Likely cause: the decay is 0, the two share "
                "their tensors, or the student is evaluated in place of the teacher.",
            )
        return raised

    def note_teacher(self, predictor: nn.Module) -> None:
        """Remember the teacher's weights before the step of the optimiser, for `check_order`."""
        self._before_step = _checksum(predictor)

    def check_order(self, step: int, predictor: nn.Module) -> list[Alarm]:
        """Check that the teacher has not moved since `note_teacher`. Call it after the step of the optimiser."""
        if _checksum(predictor) == self._before_step:
            return []
        return self._raise(
            step,
            "early-update",
            "The teacher was updated before the optimiser's step, so it averages students of one step before. Call "
            "teacher.update(student) after optimizer.step().",
        )

    def _streak(self, name: str, condition: bool) -> int:
        self._streaks[name] = self._streaks.get(name, 0) + 1 if condition else 0
        return self._streaks[name]

    def _raise(self, step: int, kind: str, sentence: str) -> list[Alarm]:
        """At most one alarm of each kind per run."""
        if any(alarm.kind == kind for alarm in self.alarms):
            return []
        self.alarms.append(Alarm(step, kind, sentence))
        return self.alarms[-1:]


def _gradient_norm(cost: Tensor, parameters: Sequence[nn.Parameter], ranks: Ranks, scale: float) -> float:
    if not cost.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(cost * scale, parameters, retain_graph=True, allow_unused=True)
    found = [gradient for gradient in gradients if gradient is not None]
    if ranks.size > 1 and found:
        flat = torch.cat([gradient.flatten() for gradient in found])
        found = [ranks.summed(flat, "reading the gradients of a cost") / ranks.size]
    return math.sqrt(sum(_squares(found))) / scale


def _largest_class_share(logits: Tensor) -> float:
    guesses = logits.detach().argmax(1).flatten()
    return float(torch.bincount(guesses, minlength=logits.shape[1]).max() / len(guesses))


@torch.no_grad()
def _distance(predictor: nn.Module, student: nn.Module) -> float:
    """Between the weights, relative to the student's length."""
    other: list[Tensor] = list(student.parameters())
    own = [each.to(its.device) for each, its in zip(predictor.parameters(), other, strict=True)]
    squares = _squares([*torch._foreach_sub(own, other), *other])
    apart, length = sum(squares[: len(own)]), sum(squares[len(own) :])
    return math.sqrt(apart / length) if length else 0.0


@torch.no_grad()
def _checksum(network: nn.Module) -> float:
    return sum(_squares(list(network.parameters())))


def _squares(tensors: list[Tensor]) -> list[float]:
    """The sum of squares of each tensor, in float64, by a few kernels and with one wait for the device."""
    if tensors and tensors[0].device.type == "mps":  # which has no float64
        tensors = [tensor.cpu() for tensor in tensors]
    norms = list(torch._foreach_norm(tensors, 2, torch.float64)) if tensors else []
    found: list[float] = torch.stack(norms).square().tolist() if norms else []
    return found
