"""Views: what each role sees. They work on whole batches on any device, with independent draws per image."""

from meanteacher.views.basic import Chain, Flip, Noise, Translate
from meanteacher.views.geometry import Crop, Cutout, Rotate
from meanteacher.views.normalise import Normaliser, PerChannel, PerImage, Scaled, Zca
from meanteacher.views.strong import Jitter, RandAugment

__all__ = [
    "Chain",
    "Crop",
    "Cutout",
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
    "Zca",
]
