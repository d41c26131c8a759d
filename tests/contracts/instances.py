"""At least one instance of every view, normaliser, network and generator of the package, for the contracts to hold."""

import dataclasses
import sys
from types import SimpleNamespace
from unittest import mock

from torch import nn

from meanteacher.core import Augment, Problem
from meanteacher.models import (
    Conv13Spec,
    ExternalSpec,
    FastNetSpec,
    ImageGeneratorSpec,
    LaptopNetSpec,
    LitePairSpec,
    LiteSpec,
    MirroredSpec,
    MlpSpec,
    ModelSpec,
    PointGeneratorSpec,
    PooledSpec,
    ResNeXt152Spec,
    Shake26Spec,
    WideResNetSpec,
    residual,
)
from meanteacher.views import (
    Chain,
    Crop,
    Cutout,
    FeatureDropout,
    Flip,
    Jitter,
    Noise,
    Normaliser,
    PerChannel,
    PerImage,
    RandAugment,
    Rotate,
    Scaled,
    Translate,
    Warp,
    Zca,
)

VIEWS: dict[str, Augment] = {
    "chain": Chain((Flip(), Translate(2), Noise(0.15))),
    "crop": Crop(),
    "crop-resized": Crop(6),
    "cutout": Cutout(3),
    "feature-dropout": FeatureDropout(0.3),
    "flip": Flip(),
    "jitter": Jitter(),
    "noise": Noise(0.15),
    "randaugment": RandAugment(),
    **{f"randaugment-{name}": RandAugment(1, 1.0, (name,)) for name in RandAugment().operations if name != "identity"},
    "rotate": Rotate(),
    "translate": Translate(2),
    "warp": Warp(translate=2.0, degrees=20.0, scale=(0.5, 1.0)),
}

IDENTITIES: dict[str, Augment] = {
    "cutout-of-nothing": Cutout(0),
    "feature-dropout-of-nothing": FeatureDropout(0.0),
    "jitter-of-nothing": Jitter(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0),
    "noise-of-nothing": Noise(0.0),
    "randaugment-identity": RandAugment(1, 1.0, ("identity",)),
    "randaugment-no-magnitude": RandAugment(2, 0.0),
    "randaugment-no-operation": RandAugment(0),
    "rotate-by-nothing": Rotate(0),
    "translate-by-nothing": Translate(0),
    "warp-by-nothing": Warp(flip=False),
}
"""Views whose fields say that they change nothing."""

ALL_VIEWS = {**VIEWS, **IDENTITIES}


def shown_shape(view: Augment, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what was given; only Crop may be asked for another size."""
    return (*shape[:2], view.size, view.size) if isinstance(view, Crop) and view.size else shape


NORMALISERS: dict[str, Normaliser] = {
    "per-channel": PerChannel(),
    "per-image": PerImage(),
    "scaled": Scaled(limit=1.0),
    "zca": Zca(contrast=False, epsilon=1e-3),
    "zca-contrast": Zca(contrast=True, epsilon=0.1),
}


def _create_model(name: str, *, in_chans: int, num_classes: int, **given: object) -> nn.Module:
    features = (nn.Conv2d(in_chans, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
    network = nn.Sequential(*features, nn.Flatten(), nn.Linear(64, num_classes) if num_classes else nn.Identity())
    network.num_features = 64
    return network


class _WithoutLibrary:
    """timm need not be installed to hold what stands on it to the contract."""

    def build(self, problem: Problem) -> nn.Module:
        timm = SimpleNamespace(list_models=lambda: [self.name], create_model=_create_model)
        with mock.patch.dict(sys.modules, {"timm": timm}):
            return super().build(problem)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalStandIn(_WithoutLibrary, ExternalSpec):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledStandIn(_WithoutLibrary, PooledSpec):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShallowResNeXt(ResNeXt152Spec):
    """Two blocks in each stage, one of either kind: all fifty are trained by tests/methods/test_on_images.py."""

    def build(self, problem: Problem) -> nn.Module:
        with mock.patch.object(residual, "_BLOCKS", (2, 2, 2, 2)):
            return super().build(problem)


PROBLEM = Problem(n_classes=4, n_examples=20, input_shape=(3, 32, 32))
NETWORKS: dict[str, ModelSpec] = {
    "conv13": Conv13Spec(width=0.05),
    "conv13-two-outputs": Conv13Spec(width=0.05, outputs=2),
    "external": ExternalStandIn(library="timm", name="any", outputs=2),
    "fast": FastNetSpec(width=0.25),
    "laptop": LaptopNetSpec(),
    "laptop-two-outputs": LaptopNetSpec(dropout=0.5, outputs=2),
    "lite": LiteSpec(width=0.25, depth=0.5),
    "lite-pair": LitePairSpec(width=0.25, depth=0.5, second_width=0.3, second_depth=0.5),
    "mirrored": MirroredSpec(model=Conv13Spec(width=0.05)),
    "mirrored-two-outputs": MirroredSpec(model=WideResNetSpec(depth=10, widen=1, outputs=2)),
    "mlp": MlpSpec(hidden=(20, 10), dropout=0.1, outputs=2),
    "pooled": PooledStandIn(library="timm", name="any"),
    "resnext152": ShallowResNeXt(width=0.05, outputs=2),
    "shake26": Shake26Spec(width=0.05, outputs=2),
    "wrn": WideResNetSpec(depth=10, widen=1, outputs=2),
}
GENERATORS: dict[str, PointGeneratorSpec | ImageGeneratorSpec] = {
    "generator-points": PointGeneratorSpec(),
    "generator-images": ImageGeneratorSpec(width=0.05),
}
