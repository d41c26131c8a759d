"""Views: the images as each role sees them. They work on whole batches on any device, with draws per image."""

from meanteacher.views.basic import Chain, Crop, Cutout, FeatureDropout, Flip, Noise, Rotate, Translate, Warp
from meanteacher.views.normalise import Normaliser, PerChannel, PerImage, Scaled, Zca
from meanteacher.views.strong import Jitter, RandAugment

__all__ = [
    "Chain",
    "Crop",
    "Cutout",
    "FeatureDropout",
    "Flip",
    "Jitter",
    "Noise",
    "Normaliser",
    "PerChannel",
    "PerImage",
    "RandAugment",
    "Rotate",
    "Scaled",
    "Translate",
    "Warp",
    "Zca",
]
