"""Networks and their descriptions. They are independent of the methods, and any nn.Module can replace them."""

from meanteacher.models.conv13 import Conv13Spec
from meanteacher.models.external import ExternalSpec, PooledSpec
from meanteacher.models.fast import FastNetSpec, LaptopNetSpec, MirroredSpec
from meanteacher.models.layers import ModelSpec
from meanteacher.models.lite import LitePairSpec, LiteSpec
from meanteacher.models.mlp import ImageGeneratorSpec, MlpSpec, PointGeneratorSpec
from meanteacher.models.residual import ResNeXt152Spec, Shake26Spec, WideResNetSpec

__all__ = [
    "Conv13Spec",
    "ExternalSpec",
    "FastNetSpec",
    "ImageGeneratorSpec",
    "LaptopNetSpec",
    "LitePairSpec",
    "LiteSpec",
    "MirroredSpec",
    "MlpSpec",
    "ModelSpec",
    "PointGeneratorSpec",
    "PooledSpec",
    "ResNeXt152Spec",
    "Shake26Spec",
    "WideResNetSpec",
]
