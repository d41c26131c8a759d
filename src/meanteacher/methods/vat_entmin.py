"""VAT with entropy minimisation (Miyato et al. 2017): smooth, and decided."""

from dataclasses import dataclass

from torch import nn

from meanteacher.core import Batch, StepOutput
from meanteacher.costs import entropy
from meanteacher.methods.vat import Vat


@dataclass(frozen=True, kw_only=True)
class VatEntMin(Vat):
    """VAT and a cost on every prediction that is not made up."""

    entropy_weight: float = 1.0

    def forward(self, student: nn.Module, memory: nn.Module, batch: Batch, step: int) -> StepOutput:
        vat = super().forward(student, memory, batch, step)
        weight = self.entropy_weight * self.weight(step)
        return StepOutput(
            {**vat.costs, "entropy": weight * entropy(vat.logits)}, vat.logits, {**vat.weights, "entropy": weight}
        )
