"""An image as the page shows it: decoded and written anew, so that no byte of a file reaches the browser."""

from functools import lru_cache
from io import BytesIO

from PIL import Image

from meanteacher.fit.decode import decode, header
from meanteacher.fit.photos import Photos

LARGEST = 1024
SMALLEST = 384
"""A tiny image is enlarged here, more smoothly than a browser does it."""


class Pictures:
    """The images of a folder as JPEG, the last few of them kept."""

    def __init__(self, photos: Photos) -> None:
        self._photos = photos
        # So the picture that was looked at to tell whether it is readable is not decoded again to be sent.
        self.jpeg = lru_cache(maxsize=8)(self._jpeg)

    def _jpeg(self, index: int) -> bytes:
        """The image with its sides in proportion, the longer one from SMALLEST to LARGEST pixels.

        Raises:
            UnreadableError: says why in a few words.
        """
        path = self._photos.path(index)
        width, height, _ = header(path)
        longer = max(width, height)
        # The square holds the whole image, squeezed; what follows gives it back its proportions.
        square = Image.fromarray(decode(path, min(longer, LARGEST)))
        scale = min(max(longer, SMALLEST), LARGEST) / longer
        shown = square.resize((max(1, round(scale * width)), max(1, round(scale * height))), Image.Resampling.BICUBIC)
        file = BytesIO()
        shown.save(file, "JPEG", quality=90)
        return file.getvalue()
