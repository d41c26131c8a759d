"""The last layer of a network: one, or two side by side on the same features (Sec. 3.4)."""

from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor, nn

from meanteacher.core import InputError

Outputs = Literal[1, 2]
"""How many last layers a network has.

1  the network returns its logits, [B, n_classes]
2  it returns two such tensors, the first for the classification cost and the second for the consistency
   cost: the dual output trick, which lets the two costs disagree a little
"""


class TwoHeads(nn.Module):
    """(class_logits, consistency_logits) of the same features."""

    def __init__(self, classification: nn.Module, consistency: nn.Module) -> None:
        super().__init__()
        self.classification = classification
        self.consistency = consistency

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.classification(features), self.consistency(features)


def last_layer(outputs: Outputs, make: Callable[[], nn.Module]) -> nn.Module:
    """The layer that `make` makes, or two of them that share nothing.

    One output is the bare layer, so that a network with one output has the same parameters under the same
    names as if there were no choice.

    Raises:
        InputError: neither one nor two outputs.
    """
    check_outputs(outputs)
    return make() if outputs == 1 else TwoHeads(make(), make())


def check_outputs(outputs: int) -> None:
    """Refuse any number of outputs but one and two.

    Raises:
        InputError: says what each of them is for.
    """
    if outputs not in get_args(Outputs):
        raise InputError(
            f"A network has outputs=1, or outputs=2 for separate classification and consistency costs; got {outputs!r}."
        )
