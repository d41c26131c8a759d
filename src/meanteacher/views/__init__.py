"""What each role sees: whole batches at once, on their device, a draw of its own for every image."""

from meanteacher.views.chain import Chain
from meanteacher.views.crop import Crop
from meanteacher.views.cutout import Cutout
from meanteacher.views.flip import Flip
from meanteacher.views.jitter import Jitter
from meanteacher.views.noise import Noise
from meanteacher.views.normalise import Normaliser, PerChannel, PerImage
from meanteacher.views.randaugment import RandAugment
from meanteacher.views.rotate import Rotate
from meanteacher.views.translate import Translate
from meanteacher.views.zca import Zca

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
    "Translate",
    "Zca",
]
