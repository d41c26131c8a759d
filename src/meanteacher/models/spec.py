"""What every description of a network has in common."""

from typing import Protocol

from torch import nn

from meanteacher.core import Problem


class ModelSpec(Protocol):
    """The part of a recipe that becomes a network once the data are known."""

    def build(self, problem: Problem) -> nn.Module: ...
