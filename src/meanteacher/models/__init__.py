"""Networks. None knows which method trains it, and any nn.Module can stand in its place."""

from typing import Protocol

from torch import nn

from meanteacher.core import Problem
from meanteacher.models.conv13 import Conv13
from meanteacher.models.external import External
from meanteacher.models.fast import FastNet
from meanteacher.models.generator import ImageGenerator, PointGenerator
from meanteacher.models.mlp import Mlp
from meanteacher.models.resnext152 import ResNeXt152
from meanteacher.models.shake26 import Shake26
from meanteacher.models.wrn import WideResNet


class ModelSpec(Protocol):
    """The part of a recipe that becomes a network once the data are known."""

    def build(self, problem: Problem) -> nn.Module: ...


__all__ = [
    "Conv13",
    "External",
    "FastNet",
    "ImageGenerator",
    "Mlp",
    "ModelSpec",
    "PointGenerator",
    "ResNeXt152",
    "Shake26",
    "WideResNet",
]
