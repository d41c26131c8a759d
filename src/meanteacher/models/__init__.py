"""Networks and their descriptions. None knows which method trains it, and any nn.Module can replace it."""

from meanteacher.models.conv13 import Conv13Spec
from meanteacher.models.external import ExternalSpec
from meanteacher.models.fast import FastNetSpec, MirroredSpec
from meanteacher.models.layers import ModelSpec
from meanteacher.models.lite import LiteSpec
from meanteacher.models.mlp import ImageGeneratorSpec, MlpSpec, PointGeneratorSpec
from meanteacher.models.residual import ResNeXt152Spec, Shake26Spec, WideResNetSpec

__all__ = [
    "Conv13Spec",
    "ExternalSpec",
    "FastNetSpec",
    "ImageGeneratorSpec",
    "LiteSpec",
    "MirroredSpec",
    "MlpSpec",
    "ModelSpec",
    "PointGeneratorSpec",
    "ResNeXt152Spec",
    "Shake26Spec",
    "WideResNetSpec",
]
