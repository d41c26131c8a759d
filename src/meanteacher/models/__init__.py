"""Networks. None knows which method trains it, and any nn.Module can stand in its place."""

from meanteacher.models.conv13 import Conv13
from meanteacher.models.external import External
from meanteacher.models.fast import FastNet, Mirrored
from meanteacher.models.generator import ImageGenerator, PointGenerator
from meanteacher.models.layers import ModelSpec
from meanteacher.models.mlp import Mlp
from meanteacher.models.resnext152 import ResNeXt152
from meanteacher.models.shake26 import Shake26
from meanteacher.models.wrn import WideResNet

__all__ = [
    "Conv13",
    "External",
    "FastNet",
    "ImageGenerator",
    "Mirrored",
    "Mlp",
    "ModelSpec",
    "PointGenerator",
    "ResNeXt152",
    "Shake26",
    "WideResNet",
]
