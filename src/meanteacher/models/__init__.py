"""Networks. None knows which method trains it, and any nn.Module can stand in its place."""

from meanteacher.models.conv13 import Conv13
from meanteacher.models.external import External
from meanteacher.models.fast import FastNet
from meanteacher.models.generator import ImageGenerator, PointGenerator
from meanteacher.models.mirrored import Mirrored
from meanteacher.models.mlp import Mlp
from meanteacher.models.resnext152 import ResNeXt152
from meanteacher.models.shake26 import Shake26
from meanteacher.models.spec import ModelSpec
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
