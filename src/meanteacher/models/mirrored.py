"""Two looks at every image in evaluation."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meanteacher.core import InitialisesFromData, Problem
from meanteacher.models.spec import ModelSpec
from meanteacher.passes import Logits


@dataclass(frozen=True)
class Mirrored:
    """A network that in evaluation takes the mean over an image and its mirror image, for twice the time.

    It trains as it would alone. For images whose class a mirror does not change.
    """

    model: ModelSpec

    def build(self, problem: Problem) -> nn.Module:
        return MirroredNetwork(self.model.build(problem))


class MirroredNetwork(nn.Module):
    """Images [B, C, H, W] to the logits of the network inside."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def initialise_from(self, images: Tensor) -> None:
        if isinstance(self.network, InitialisesFromData):
            self.network.initialise_from(images)

    def forward(self, x: Tensor) -> Logits:
        if self.training:
            output: Logits = self.network(x)
            return output
        both: Logits = self.network(torch.cat([x, x.flip(-1)]))
        return (
            (_mean_of_halves(both[0]), _mean_of_halves(both[1])) if isinstance(both, tuple) else _mean_of_halves(both)
        )


def _mean_of_halves(logits: Tensor) -> Tensor:
    one, other = logits.chunk(2)
    return (one + other) / 2
