"""What each role sees: whole batches at once, on their device, a draw of its own for every image."""

from meanteacher.views.chain import Chain
from meanteacher.views.flip import Flip
from meanteacher.views.noise import Noise
from meanteacher.views.normalise import Normaliser, PerChannel, PerImage
from meanteacher.views.translate import Translate
from meanteacher.views.zca import Zca

__all__ = ["Chain", "Flip", "Noise", "Normaliser", "PerChannel", "PerImage", "Translate", "Zca"]
