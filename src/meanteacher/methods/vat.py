"""Virtual adversarial training: alone, with entropy minimisation, and with a mean teacher."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from meanteacher.core import Batch, Cost, Scheduled, StepOutput
from meanteacher.costs import entropy, kl_divergence
from meanteacher.distributed import normal_rows
from meanteacher.methods.supervised import Supervised
from meanteacher.passes import SameNoise, class_output, untracked
from meanteacher.schedules import as_schedule
from meanteacher.teacher import Teacher


def adversarial_direction(
    predict: Callable[[Tensor], Tensor], x: Tensor, target: Tensor, *, step_size: float, iterations: int
) -> Tensor:
    """The unit perturbation of each example that changes its prediction most, by power iteration.

    The divergence has its minimum at x, so its gradient there is zero. A finite step away from x, the gradient points
    along the direction of largest curvature. A very small step is lost in the rounding of float32. An iteration takes a
    forward and a backward pass; one is enough in practice. `predict` has the same noise every time.
    """
    direction = _unit(normal_rows(x))
    for _ in range(iterations):
        direction = direction.requires_grad_()
        divergence = kl_divergence(predict(x + step_size * direction), target, class_axis=1)
        (gradient,) = torch.autograd.grad(divergence, direction)
        direction = _unit(gradient)
    return direction


def _unit(vectors: Tensor) -> Tensor:
    flat: Tensor = vectors.detach().flatten(1)
    # The largest entry becomes 1 first, because the squares of a gradient this small would underflow.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(1e-30)
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    unit: Tensor = flat / length.clamp_min(1e-30)
    return unit.view_as(vectors)


@dataclass(frozen=True, kw_only=True)
class Vat(Supervised):
    """Virtual Adversarial Training (Miyato et al. 2017): smoothness in the adversarial direction.

    The prediction must not change under the worst small perturbation of the input.

    The extra passes of a step drop the same units as the first and leave batch statistics untouched.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> Vat(decay=Constant(0.99), buffers="average", weight=SigmoidRampUp(value=1.0, steps=100), epsilon=8.0).roles
    ('student',)
    """

    epsilon: float
    """Euclidean length of the perturbation of an example."""
    weight: Scheduled
    step_size: float = 1e-2
    """Length of the finite step. The original's 1e-6 is below the resolution of float32."""
    iterations: int = 1
    cost_name: ClassVar[str] = "smoothness"

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        x = batch.views["student"]
        noise = SameNoise(x.device)
        logits = class_output(student(x))
        target = self.target(logits, memory, batch)
        weight = as_schedule(self.weight)(step)
        distance = kl_divergence(self.perturbed(student, x, logits.detach(), noise), target, class_axis=1)
        costs = {
            "classification": self.classification(logits, batch.labels),
            self.cost_name: Cost(weight * distance, weight),
        }
        return StepOutput(costs, logits)

    def target(self, logits: Tensor, memory: Teacher, batch: Batch) -> Tensor:
        """The logits that the perturbed student must agree with: its own."""
        return logits.detach()

    def perturbed(self, student: nn.Module, x: Tensor, logits: Tensor, noise: SameNoise) -> Tensor:
        """The student's logits at the adversarial point at distance `epsilon` from x."""

        def predict(perturbed: Tensor) -> Tensor:
            with noise.again():
                return class_output(untracked(student, perturbed))

        direction = adversarial_direction(predict, x, logits, step_size=self.step_size, iterations=self.iterations)
        return predict(x + self.epsilon * direction)


@dataclass(frozen=True, kw_only=True)
class VatEntMin(Vat):
    """VAT with entropy minimisation (Miyato et al. 2017): smoothness and confident predictions.

    VAT, and the entropy of the predictions as a further cost.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> weight = SigmoidRampUp(value=1.0, steps=100)
    >>> VatEntMin(decay=Constant(0.99), buffers="average", weight=weight, epsilon=8.0).entropy_weight
    1.0
    """

    entropy_weight: float = 1.0

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        vat = super().forward(student, memory, batch, step)
        weight = self.entropy_weight * as_schedule(self.weight)(step)
        return StepOutput(
            {**vat.costs, "entropy": Cost(weight * entropy(vat.logits, class_axis=1), weight)}, vat.logits
        )


@dataclass(frozen=True, kw_only=True)
class MeanTeacherVat(Vat):
    """Mean Teacher with VAT: better targets and better perturbations, the combination the paper leaves open.

    Under the adversarial perturbation the student must agree with the teacher.

    "One approach is to choose the perturbation carefully. Another is to choose the teacher model carefully"
    (Sec. 1): VAT chooses the perturbation of the student's input, the weight average gives the target.

    >>> from meanteacher.schedules import Constant, SigmoidRampUp
    >>> weight = SigmoidRampUp(value=1.0, steps=100)
    >>> MeanTeacherVat(decay=Constant(0.99), buffers="own", weight=weight, epsilon=8.0).roles
    ('student', 'teacher')
    """

    roles: ClassVar[tuple[str, ...]] = ("student", "teacher")
    cost_name: ClassVar[str] = "consistency"

    @property
    def teacher_runs(self) -> bool:
        return True

    def target(self, logits: Tensor, memory: Teacher, batch: Batch) -> Tensor:
        return class_output(memory(batch.views["teacher"]))
